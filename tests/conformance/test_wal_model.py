"""Every backend against a twin made of dictionaries, over random histories with restarts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairway.storage.wal import INT_MAX, Operation
from tests.support.history import Draw, Twin, contents, show

if TYPE_CHECKING:
    import random
    from collections import Counter

    from fairway.storage.wal import Wal
    from tests.conformance.backends import Backend
    from tests.conftest import Campaign

PARTITIONS = [0, 1, 2, 3, 7, INT_MAX]
STEPS = 60
WEIGHTS = {"write": 10, "sweep": 3, "read": 3, "scan": 2, "reopen": 1, "kill": 1, "maintain": 1}
LIMITS = [1, 2, 3, 1000]


@dataclass
class Walk:
    """One random history of one store and its twin, treated alike."""

    backend: Backend
    rng: random.Random
    tally: Counter[str]
    twins: dict[int, Twin] = field(default_factory=lambda: {n: Twin() for n in PARTITIONS})
    dying: set[int] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draw = Draw(self.rng)

    def run(self) -> None:
        self.wal: Wal = self.backend.fresh()
        assert self.wal.open() == {}
        try:
            for move in self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=STEPS):
                self.steps.append(move)
                getattr(self, move)()
                self.tally[move] += 1
            self.check_all()
        except BaseException as failure:
            failure.add_note("\n  ".join([f"after {len(self.steps)} steps:", *self.steps[-9:]]))
            raise
        self.backend.discard(self.wal)

    # --- moves

    def write(self) -> None:
        alive = [number for number in PARTITIONS if number not in self.dying]
        chosen = self.rng.sample(alive, min(len(alive), self.rng.randint(1, 3)))
        group = {number: self.draw.run(self.twins[number]) for number in chosen}
        sync = self.rng.random() < 0.5
        self.steps[-1] = f"write sync={sync} {show(group)}"
        assert self.wal.write(group, sync=sync) == {}
        for number, run in group.items():
            for operation in run:
                self.twins[number].apply(operation)
                self.count(operation)
            if run[-1].delete:
                self.dying.add(number)
            self.check(number)
        self.look_at_the_dying()

    def sweep(self) -> None:
        limit = self.rng.choice(LIMITS)
        self.steps[-1] = f"sweep {limit}"
        if not self.wal.sweep(limit=limit):
            assert self.wal.deleting() == set()
        self.look_at_the_dying()
        self.check_all()

    def reopen(self) -> None:
        self.replace(self.backend.reopen(self.wal))

    def kill(self) -> None:
        self.replace(self.backend.kill(self.wal))

    def maintain(self) -> None:
        self.wal.maintain()
        self.check_all()

    def read(self) -> None:
        number, backwards = self.rng.choice(PARTITIONS), self.rng.random() < 0.5
        twin = self.twins[number]
        around = [0, 1, INT_MAX, *(key + by for key in twin.entries for by in (-1, 0, 1))]
        first, last = self.rng.choice(around), self.rng.choice(around)
        last = min(last, INT_MAX)
        limit, max_bytes = self.rng.choice(LIMITS), self.rng.choice([0, 5, 20, 4000, INT_MAX])
        expected = [
            twin.entries[key]
            for key in sorted(twin.entries, reverse=backwards)
            if first <= key <= last
        ][:limit]
        while len(expected) > 1 and sum(len(entry.payload) for entry in expected) > max_bytes:
            expected.pop()
        self.steps[-1] = f"read {(number, first, last, limit, max_bytes, backwards)}"
        found = self.wal.read(
            number, first=first, last=last, limit=limit, max_bytes=max_bytes, backwards=backwards
        )
        assert found == expected
        entry = twin.entries.get(last)
        assert self.wal.term_at(number, last) == (entry.term if entry else None)

    def scan(self) -> None:
        number, limit = self.rng.choice(PARTITIONS), self.rng.choice(LIMITS)
        prefix, after = self.draw.name(shortest=0), self.draw.name(shortest=0)
        self.steps[-1] = f"scan {(number, prefix, after, limit)}"
        twin = self.twins[number]
        matching = [
            (name, value)
            for name, value in twin.contents().meta
            if name.startswith(prefix) and name.encode() > after.encode()
        ]
        assert (
            self.wal.meta_scan(number, prefix=prefix, after=after, limit=limit) == matching[:limit]
        )
        assert self.wal.meta(number, after) == twin.meta.get(after)

    # --- comparing

    def replace(self, wal: Wal) -> None:
        self.wal = wal
        tails = wal.open()
        for number, twin in self.twins.items():
            if twin.meta or twin.hard_state or twin.last_key:  # else it need not be remembered
                assert number in tails
            assert tails.pop(number, twin.tail()) == twin.tail()
        assert not tails, "partitions that never were"
        self.look_at_the_dying()
        self.check_all()

    def look_at_the_dying(self) -> None:
        """Numbers leave the set one by one and never return by themselves."""
        left = self.wal.deleting()
        assert left <= self.dying
        self.tally["swept"] += len(self.dying - left)
        self.dying = left

    def check(self, number: int) -> None:
        assert contents(self.wal, number) == self.twins[number].contents()

    def check_all(self) -> None:
        for number in PARTITIONS:
            self.check(number)

    def count(self, operation: Operation) -> None:
        self.tally["operation"] += 1
        self.tally["truncation"] += operation.truncate_after is not None
        self.tally["compaction"] += operation.compact_before is not None
        self.tally["removal"] += bool(operation.remove)
        self.tally["hard_state"] += operation.hard_state is not None
        self.tally["deletion"] += operation.delete


def test_random_histories_agree_with_the_twin(backend: Backend, campaign: Campaign) -> None:
    rounds = campaign.rounds(share=backend.examples, full=25 * backend.examples)
    for number in range(rounds):
        Walk(backend, campaign.random(number), campaign.tally).run()
    for event in (
        "truncation",
        "compaction",
        "removal",
        "hard_state",
        "deletion",
        "swept",
        "reopen",
        "kill",
    ):
        assert campaign.tally[event] > rounds // 4, event
