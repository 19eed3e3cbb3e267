"""What a log must hold, worked out the slow and obvious way, and compared with what it holds.

`Twin` is a partition as a dictionary. `Draw` makes up operations that are legal for one. `History`
remembers what was submitted to a log and what it answered, and says after a crash whether the log
came back in a state that it may be in.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from fairway.errors import OutcomeUnknown
from fairway.storage.wal import DELETE, INT_MAX, Entry, HardState, Operation, Tail

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from fairway.storage.wal import Failures, Group, Wal

EVERYTHING = 10**9


class Contents(NamedTuple):
    """All that a log says about one partition."""

    tail: Tail
    entries: tuple[Entry, ...]
    meta: tuple[tuple[str, bytes], ...]
    hard_state: HardState | None


NOTHING = Contents(Tail(), (), (), None)


def contents(wal: Wal, partition: int) -> Contents:
    """Read all of one partition."""
    return Contents(
        wal.tail(partition),
        tuple(wal.read(partition, limit=EVERYTHING)),
        tuple(wal.meta_scan(partition, limit=EVERYTHING)),
        wal.hard_state(partition),
    )


@dataclass
class Twin:
    """One partition as a dictionary: the rules of `Operation`, each in the plainest words."""

    entries: dict[int, Entry] = field(default_factory=dict)
    meta: dict[str, bytes] = field(default_factory=dict)
    hard_state: HardState | None = None
    last_key: int = 0
    floor: int = 1
    exists: bool = False

    def apply(self, change: Operation) -> None:
        if change.delete:
            self.__init__()  # type: ignore[misc]
            return
        self.exists = True
        if change.truncate_after is not None:
            for key in [key for key in self.entries if key > change.truncate_after]:
                del self.entries[key]
            self.last_key = min(self.last_key, change.truncate_after)
        for entry in change.entries:
            self.entries[entry.key] = entry
            self.last_key = entry.key
        if change.compact_before is not None:
            for key in [key for key in self.entries if key < change.compact_before]:
                del self.entries[key]
            self.floor = max(self.floor, change.compact_before)
        for first, last in change.remove:
            for key in [key for key in self.entries if first <= key <= last]:
                del self.entries[key]
        for name, value in change.meta.items():
            self.meta.pop(name, None)
            if value is not None:
                self.meta[name] = value
        if change.hard_state is not None:
            self.hard_state = change.hard_state

    def tail(self) -> Tail:
        last_term = self.entries[max(self.entries)].term if self.entries else 0
        return Tail(self.last_key, last_term, self.floor)

    def contents(self) -> Contents:
        return Contents(
            self.tail(),
            tuple(self.entries[key] for key in sorted(self.entries)),
            tuple(sorted(self.meta.items(), key=lambda item: item[0].encode())),
            self.hard_state,
        )


class Draw:
    """A random source of legal operations, no two of which leave the same state behind."""

    VOTES = ("", "a", "Knoten-ä")

    def __init__(self, rng: random.Random, *, hard: float = 0.2) -> None:
        """`hard` is how likely an operation holds hard state, which is always synced."""
        self.rng = rng
        self._hard = hard
        self._stamps = itertools.count(1)

    def run(self, twin: Twin, *, longest: int = 4, delete: float = 0.08) -> list[Operation]:
        """A few operations in a row, each legal after the ones before; a delete ends the run."""
        twin = copy.deepcopy(twin)
        run = []
        for _ in range(self.rng.randint(1, longest)):
            run.append(self.operation(twin))
            twin.apply(run[-1])
        if self.rng.random() < delete:
            run.append(DELETE)
        return run

    def operation(self, twin: Twin) -> Operation:
        rng = self.rng
        truncate_after = compact_before = hard_state = None
        last_key = twin.last_key
        if rng.random() < 0.25:
            # At an entry, the floor, or beyond the end: gaps have a test of their own.
            places = [*twin.entries, twin.floor - 1, last_key, min(last_key + 2, INT_MAX)]
            truncate_after = rng.choice(places)
            last_key = min(last_key, truncate_after)
        entries: list[Entry] = []
        for _ in range(rng.choice([0, 1, 1, 2, 4])):
            key = last_key + rng.choice([1, 1, 1, 1, 2, 5, 2**60])
            if key > INT_MAX:
                break
            last_key = key
            entries.append(Entry(key, self.payload(), rng.choice([0, 1, 2, 3, INT_MAX])))
        if rng.random() < 0.2:
            compact_before = min(max(1, last_key + 1 - rng.randint(0, 8)), INT_MAX)
        remove: list[tuple[int, int]] = []
        while last_key and rng.random() < 0.2:
            ends = [*twin.entries, *(entry.key for entry in entries), rng.randint(1, last_key)]
            first, last = sorted(min(end, last_key) for end in rng.choices(ends, k=2))
            remove.append((first, last))
        if rng.random() < self._hard:
            hard_state = HardState(rng.randint(0, 9), rng.choice(self.VOTES))
        return Operation(
            entries=entries,
            meta=self.meta(),
            truncate_after=truncate_after,
            compact_before=compact_before,
            hard_state=hard_state,
            remove=remove,
        )

    def meta(self) -> dict[str, bytes | None]:
        changes: dict[str, bytes | None] = {
            self.name(): None if self.rng.random() < 0.3 else self.payload()
            for _ in range(self.rng.choice([0, 0, 1, 3]))
        }
        if self.rng.random() < 0.8:  # an operation without metadata may take another path
            changes["stamp"] = b"%d" % next(self._stamps)
        return changes

    def name(self, *, shortest: int = 1) -> str:
        return "".join(self.rng.choices("ab/_%é中😀", k=self.rng.randint(shortest, 2)))

    def payload(self) -> bytes:
        stamp = b"%d." % next(self._stamps)
        return stamp * self.rng.choice([0, 1, 1, 1, 3, 900])


class Broken(AssertionError):
    """The log came back in a state that it must not be in. `kind` says which promise was broken."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind


@dataclass
class Submitted:
    """A group on its way: what the log was given, and what it answered for each partition."""

    group: Group
    sync: bool
    answered: bool = False
    refused: set[int] = field(default_factory=set)
    doubtful: set[int] = field(default_factory=set)

    def holds(self, partition: int) -> bool:
        """Whether the group may have changed this partition."""
        return partition in self.group and partition not in self.refused

    def promises(self, partition: int, *, power: bool) -> bool:
        """Whether the partition's part is to survive: power loss, or else the process's death."""
        if not self.answered or partition in self.doubtful or not self.holds(partition):
            return False
        hard = any(operation.hard_state for operation in self.group[partition])
        return self.sync or hard or not power


class History:
    """What was submitted to one log since its state was last known, in order.

    `shard_of` says which partitions share a file: in one file, groups survive in their order.
    """

    def __init__(self, shard_of: Callable[[int], int] | None = None) -> None:
        self.twins: dict[int, Twin] = {}  # what is there if all goes well
        self.dying: set[int] = set()
        self._shard_of = shard_of
        self._known: dict[int, Twin] = {}  # what was there for certain
        self._submitted: list[Submitted] = []

    def twin(self, partition: int) -> Twin:
        return self.twins.setdefault(partition, Twin())

    def submit(self, group: Group, *, sync: bool) -> Submitted:
        """Call before the write: what a crash interrupts was submitted too."""
        self._submitted.append(Submitted(group, sync))
        return self._submitted[-1]

    def answer(self, submitted: Submitted, failures: Failures) -> None:
        """Call after the write, with what it returned."""
        submitted.answered = True
        for partition, operations in submitted.group.items():
            failure = failures.get(partition)
            if isinstance(failure, OutcomeUnknown):
                submitted.doubtful.add(partition)
            elif failure is not None:
                submitted.refused.add(partition)
            else:
                for operation in operations:
                    self.twin(partition).apply(operation)
                if operations[-1].delete:
                    self.dying.add(partition)

    def recover(self, wal: Wal, tails: dict[int, Tail], *, power: bool = True) -> int:
        """Check what an opened log holds after a crash; how many groups it did not keep.

        Raises `Broken`: *lost* if something promised is missing, *torn* if a partition is in no
        state that it ever passed through, *order* if one file kept a later group but not an
        earlier one, *tails* if `open` and `tail` disagree. From then on, what it holds is known.
        """
        kept: dict[int, set[int]] = {}
        for partition in sorted({number for one in self._submitted for number in one.group}):
            cuts = self._check(wal, partition, power=power)
            shard = self._shard_of(partition) if self._shard_of is not None else partition
            kept[shard] = kept.get(shard, cuts) & cuts
            if not kept[shard]:
                raise Broken("order", f"partition {partition} is of another moment than its shard")
        for partition in {*tails, *self.twins}:
            if tails.get(partition, Tail()) != wal.tail(partition):
                raise Broken("tails", f"partition {partition} opened with {tails.get(partition)}")
        lost = len(self._submitted) - min((max(cuts) for cuts in kept.values()), default=0)
        self._settle(wal)
        return lost if kept else 0

    def _check(self, wal: Wal, partition: int, *, power: bool) -> set[int]:
        """After how many groups the partition was as it is now."""
        found = contents(wal, partition)
        promised = 0
        for number, submitted in enumerate(self._submitted, start=1):
            if submitted.promises(partition, power=power):
                promised = number
        matching = {cut for cut, state in self._states(partition) if state == found}
        cuts = {cut for cut in matching if cut >= promised}
        if cuts:
            return cuts
        if matching:
            raise Broken(
                "lost", f"partition {partition} is as after {max(matching)} groups, not {promised}"
            )
        raise Broken("torn", f"partition {partition} was never like this: {found}")

    def _states(self, partition: int) -> Iterator[tuple[int, Contents]]:
        """The partition after each number of groups. What was in doubt may be absent as well."""
        twin = copy.deepcopy(self._known.get(partition, Twin()))
        yield 0, twin.contents()
        for number, submitted in enumerate(self._submitted, start=1):
            if submitted.holds(partition):
                if partition in submitted.doubtful:
                    yield number, twin.contents()
                for operation in submitted.group[partition]:
                    twin.apply(operation)
            yield number, twin.contents()

    def _settle(self, wal: Wal) -> None:
        """Take what the log holds now as the truth that everything else follows."""
        for partition in {number for one in self._submitted for number in one.group}:
            found = contents(wal, partition)
            self._known[partition] = Twin(
                {entry.key: entry for entry in found.entries},
                dict(found.meta),
                found.hard_state,
                found.tail.last_key,
                found.tail.floor,
                exists=found != NOTHING,
            )
        self._submitted.clear()
        self.twins = copy.deepcopy(self._known)


def show(group: Group) -> str:
    """A group in a few words, for the reader of a failed history."""
    return "  ".join(
        f"{number}: [{'; '.join(map(show_operation, operations))}]"
        for number, operations in group.items()
    )


def show_operation(operation: Operation) -> str:
    """An operation in a few words: what it changes, and sizes in place of payloads."""
    if operation.delete:
        return "delete"
    words = []
    if operation.truncate_after is not None:
        words.append(f"truncate after {operation.truncate_after}")
    words += [f"{key}@{term}({len(payload)}b)" for key, payload, term in operation.entries]
    if operation.compact_before is not None:
        words.append(f"compact before {operation.compact_before}")
    words += [f"remove {first} to {last}" for first, last in operation.remove]
    for name, value in operation.meta.items():
        words.append(f"{name}=" + ("gone" if value is None else f"({len(value)}b)"))
    if operation.hard_state is not None:
        words.append(f"{operation.hard_state}")
    return ", ".join(words) or "nothing"
