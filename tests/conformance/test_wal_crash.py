"""Power loss, kill -9 and failing disks, at every point, for the stores whose disk is simulated.

After each crash the history is compared with what the log holds: what was acknowledged with a sync
is there, every operation is whole or absent, and what survives of a partition is a beginning of
what was submitted. RocksDB and PostgreSQL are crashed for real in `tests/integration`.
"""

from __future__ import annotations

import errno
import shutil
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal
from zlib import crc32

import apsw
import pytest

from fairway.errors import Corrupt, InvalidOperation, OutcomeUnknown, WriteFailed
from fairway.storage.wal import DELETE, Entry, HardState, Operation
from fairway.storage.wals.memory import MemoryWal
from fairway.storage.wals.sqlite import SqliteWal
from fairway.storage.watermark import Watermark
from fairway.testing.disk import PowerLoss, SimulatedDisk
from fairway.testing.vfs import SimulatedVFS
from tests.support.history import Broken, Draw, History

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from fairway.storage.wal import Failures, Group, Tail, Wal
    from tests.conftest import Campaign

PARTITIONS = list(range(5))
GROUPS = 30
LIVES = 3
NEVER = 10**9

Survival = Literal["random", "lose", "prefix", "keep"]
SURVIVALS: list[Survival] = ["random", "random", "lose", "prefix", "keep"]


class Rig(ABC):
    """A store on a disk whose power can fail. `steps` counts the points at which it can."""

    wal: Wal
    hard = 0.2
    """How likely an operation holds hard state, which syncs all before it."""

    def __init__(self, seed: str, shards: int) -> None:
        self.seed = seed
        self.shards = shards

    @property
    @abstractmethod
    def steps(self) -> int: ...

    @property
    @abstractmethod
    def powered(self) -> bool: ...

    @abstractmethod
    def crash_after(self, steps: int) -> None:
        """Lose power in the step after so many more."""

    @abstractmethod
    def start(self) -> None:
        """Put a log on the disk as it is, not yet open, in `wal`."""

    @abstractmethod
    def restart(self, survival: Survival, rng: random.Random) -> None:
        """Bring the power back; what was not synced has survived as told."""

    def reopen(self) -> None:
        self.wal.close()
        self.start()

    def shard_of(self, partition: int) -> int:
        return partition % self.shards

    def close(self) -> None:
        self.wal.close()


class MemoryRig(Rig):
    """Power fails before a group is written, or while it waits for its sync."""

    def __init__(self, seed: str, shards: int, scratch: Path) -> None:
        super().__init__(seed, shards)
        self._steps = 0
        self._last = NEVER
        self._disk: MemoryWal | None = None

    @property
    def steps(self) -> int:
        return self._steps

    @property
    def powered(self) -> bool:
        return self._steps <= self._last

    def crash_after(self, steps: int) -> None:
        self._last = self._steps + steps

    def start(self) -> None:
        if self._disk is None:
            self._disk = MemoryWal(shards=self.shards)
        self._disk._sync = self._disk.before_write = self._step
        self.wal = self._disk

    def restart(self, survival: Survival, rng: random.Random) -> None:
        assert self._disk is not None
        if survival == "keep":
            self._disk = self._disk.kill()
        else:
            self._disk = self._disk.crash(rng if survival in ("random", "prefix") else None)
        self._last = NEVER

    def reopen(self) -> None:
        assert self._disk is not None
        self._disk = self._disk.reopened()
        self.start()

    def _step(self) -> None:
        self._steps += 1
        if self._steps > self._last:
            raise PowerLoss(f"in step {self._steps}")


class SqliteRig(Rig):
    """Power fails in any write, truncation, sync or deletion that SQLite asks of its disk.

    The lock and the watermark are real files. The watermark is written after the sync it speaks
    of and is never newer than the data, so it may survive whole.
    """

    def __init__(self, seed: str, shards: int, scratch: Path) -> None:
        super().__init__(seed, shards)
        self.disk = SimulatedDisk(crc32(seed.encode()))
        self.directory = scratch / f"store-{crc32(seed.encode())}"

    @property
    def steps(self) -> int:
        return self.disk.ops

    @property
    def powered(self) -> bool:
        return self.disk.powered

    def crash_after(self, steps: int) -> None:
        self.disk.crash_at(steps)

    def start(self) -> None:
        vfs = SimulatedVFS(self.disk)
        self._sqlite = SqliteWal(self.directory, shards=self.shards, vfs=vfs.name)
        self.wal = self._sqlite

    def restart(self, survival: Survival, rng: random.Random) -> None:
        self.disk.restart(survival)
        shards = list(self._sqlite.shards)
        with suppress(apsw.Error):  # its connections died with the power
            self.wal.close()
        for shard in shards:
            shard._mark.close()
        self._sqlite._lock.release()  # as the kernel does for the dead

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.directory, ignore_errors=True)


RIGS: dict[str, tuple[Any, int]] = {
    "memory": (MemoryRig, 1),
    "memory-sharded": (MemoryRig, 3),
    "sqlite": (SqliteRig, 1),
    "sqlite-sharded": (SqliteRig, 2),
}


@pytest.fixture(params=list(RIGS))
def make_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[object], Rig]:
    kind, shards = RIGS[request.param]
    return lambda seed: kind(str(seed), shards, tmp_path)


class Story:
    """One store through several lives, with its history and where the randomness comes from."""

    def __init__(self, rig: Rig, rng: random.Random, tally: Counter[str]) -> None:
        self.rig = rig
        self.rng = rng
        self.draw = Draw(rng, hard=rig.hard)
        self.tally = tally
        self.history = History(rig.shard_of)
        self.power_lost = False  # since the log was last seen to be whole; else only killed

    def live(self, groups: int = GROUPS) -> None:
        """Open, check against the history, write; until done or dead."""
        try:
            self._live(groups)
        except Exception as error:
            if self.rig.powered:
                raise
            raise PowerLoss("and the dying program said something else") from error

    def _live(self, groups: int) -> None:
        self.opened = False
        self.rig.start()
        self.look(self.rig.wal.open())
        self.opened = True
        for _ in range(groups):
            self.write()
            if self.rng.random() < 0.1:
                self.rig.wal.maintain()
            if self.rng.random() < 0.2:
                self.rig.wal.sweep(limit=self.rng.choice([1, 3, 1000]))

    def look(self, tails: dict[int, Tail]) -> None:
        lost = self.history.recover(self.rig.wal, tails, power=self.power_lost)
        self.tally["groups_lost_unsynced"] += lost
        self.power_lost = False

    def write(self) -> Failures:
        alive = sorted(set(PARTITIONS) - self.rig.wal.deleting())
        chosen = self.rng.sample(alive, min(len(alive), self.rng.randint(1, 3)))
        group = {number: self.draw.run(self.history.twin(number), longest=2) for number in chosen}
        sync = self.rng.random() < 0.4
        submitted = self.history.submit(group, sync=sync)
        failures = self.rig.wal.write(group, sync=sync)
        self.history.answer(submitted, failures)
        self.tally["groups_synced" if sync else "groups_unsynced"] += 1
        return failures

    def die(self, survival: Survival) -> None:
        self.rig.restart(survival, self.rng)
        if survival == "keep":
            self.tally["killed"] += 1
        else:
            self.power_lost = True
            self.tally[f"power_lost_{survival}"] += 1


def test_power_loss_at_every_step(make_rig: Callable[[object], Rig], campaign: Campaign) -> None:
    for number in range(campaign.rounds(share=1, full=3)):
        steps = count_steps(make_rig(f"{number} dry"), campaign.random(number))
        points = list(range(steps))
        if not campaign.full:
            points = sorted(campaign.random("points").sample(points, min(40, steps)))
        for point in points:
            rig = make_rig(f"{number} {point}")
            crash_repeatedly(rig, point, steps, campaign, number)
        assert len(points) >= 30
        campaign.tally["crash_points"] += len(points)
        campaign.tally["points_in_all"] += steps
    tally = campaign.tally
    for survival in ("power_lost_random", "power_lost_lose", "power_lost_prefix", "killed"):
        assert tally[survival] > 0
    assert tally["groups_lost_unsynced"] > tally["crash_points"], "nothing was ever at stake"
    if isinstance(rig, SqliteRig):
        assert tally["died_while_opening"] > 0


def count_steps(rig: Rig, rng: random.Random) -> int:
    """How many steps a life without a crash takes."""
    Story(rig, rng, Counter()).live()
    steps = rig.steps
    rig.close()
    return steps


def crash_repeatedly(rig: Rig, point: int, steps: int, campaign: Campaign, number: int) -> None:
    """The same life each time, up to the crash; then two more, cut short at random."""
    story = Story(rig, campaign.random(number), campaign.tally)
    later = campaign.random((number, point))
    for life in range(LIVES):
        if life:
            story.rng = story.draw.rng = later
            point = later.randrange(later.choice([20, steps]))  # often in the midst of recovery
        rig.crash_after(point)
        with suppress(PowerLoss):
            story.live(NEVER if life else GROUPS)
        # A store never raises for a failed write, so a loss in the last of them ends in silence.
        assert not rig.powered, "it outlived its crash point"
        campaign.tally["died_while_opening"] += not story.opened
        story.die(later.choice(SURVIVALS))
    story.live(groups=1)
    rig.close()


def test_clean_restarts_between_writes(
    make_rig: Callable[[object], Rig], campaign: Campaign
) -> None:
    """A close keeps everything, synced or not, and so does a power loss right after it."""
    for number in range(campaign.rounds(share=10, full=100)):
        story = Story(make_rig(number), campaign.random(number), campaign.tally)
        for survival in ("lose", "keep", "random"):
            story.live(groups=8)
            story.rig.wal.close()
            story.rig.restart(survival, story.rng)
            campaign.tally["closed"] += 1
        story.live(groups=1)
        story.rig.close()


# --- failing disks


def test_a_failing_disk_is_told_truthfully(
    make_rig: Callable[[object], Rig], campaign: Campaign
) -> None:
    """`WriteFailed` means that nothing of it is there, `OutcomeUnknown` that anything may be."""
    rounds = campaign.rounds(share=40, full=600)
    for number in range(rounds):
        rng = campaign.random(number)
        story = Story(make_rig(number), rng, campaign.tally)
        story.live(groups=rng.randint(1, 6))
        plan_fault(story.rig, rng)
        for _ in range(8):
            failures = story.write()
            kinds = frozenset({type(failure) for failure in failures.values()})
            assert kinds <= {WriteFailed, OutcomeUnknown}
            for kind in kinds:
                campaign.tally[kind.__name__] += 1
            if OutcomeUnknown in kinds:
                assert_latched(story, failures)
                break
        if rng.random() < 0.5:
            story.die(rng.choice(SURVIVALS))
        else:
            heal(story.rig)
            story.rig.wal.close()
            if isinstance(story.rig, MemoryRig):
                story.rig.reopen()
        story.live(groups=2)
        story.rig.close()
    assert campaign.tally["WriteFailed"] > rounds // 10
    assert campaign.tally["OutcomeUnknown"] > rounds // 10


def plan_fault(rig: Rig, rng: random.Random) -> None:
    full = rng.random() < 0.5
    code = errno.ENOSPC if full else errno.EIO
    if isinstance(rig, SqliteRig):
        if rng.random() < 0.4:
            rig.disk.fail("sync", nth=rng.randint(1, 2), times=rng.choice([1, 3]))
        elif full and rng.random() < 0.3:
            rig.disk.shorten(nth=rng.randint(1, 8))
        else:
            rig.disk.fail("write", nth=rng.randint(1, 8), error=code, times=rng.choice([1, 3]))
    elif isinstance(rig.wal, MemoryWal):
        fault = OSError(code, "planned")
        shard = rng.randrange(rig.shards)
        rig.wal.fail_shard(shard, write=fault if full else None, sync=None if full else fault)


def heal(rig: Rig) -> None:
    if isinstance(rig, SqliteRig):
        rig.disk.heal()


def assert_latched(story: Story, failures: Failures) -> None:
    """After a failed sync nothing can be trusted: no later write of that shard is acknowledged."""
    heal(story.rig)
    for number, failure in failures.items():
        if isinstance(failure, OutcomeUnknown):
            again = story.rig.wal.write({number: [DELETE]}, sync=True)
            assert isinstance(again[number], WriteFailed)
            story.tally["latched"] += 1


# --- the checks themselves, against planted bugs


class Planted(MemoryRig):
    """A store with a bug; `fate` is the crash that brings it to light, `kinds` its names."""

    fate: Survival = "lose"
    kinds: frozenset[str]

    def start(self) -> None:
        super().start()
        assert self._disk is not None
        self.wal = Passing(self._disk, self.write)

    def write(self, group: Group, *, sync: bool) -> Failures:
        assert self._disk is not None
        return self._disk.write(group, sync=sync)


class Passing:
    """A log that passes everything on, but for its writes."""

    def __init__(self, wal: MemoryWal, write: Callable[..., Failures]) -> None:
        self._wal = wal
        self.write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wal, name)


class LyingSync(Planted):
    """Acknowledges a sync that never took place."""

    hard = 0.0
    kinds = frozenset({"lost", "order"})

    def write(self, group: Group, *, sync: bool) -> Failures:
        return super().write(group, sync=False)


class SplitOperation(Planted):
    """Writes the entries of an operation and its metadata in two groups."""

    fate: Survival = "random"
    kinds = frozenset({"torn", "order"})

    def write(self, group: Group, *, sync: bool) -> Failures:
        for number, operations in group.items():
            for operation in operations:
                first = operation._replace(meta={}, hard_state=None)
                super().write({number: [first]}, sync=False)
                if not operation.delete:
                    second = Operation(meta=operation.meta, hard_state=operation.hard_state)
                    super().write({number: [second]}, sync=sync)
        return {}


class LostHardState(Planted):
    """Keeps hard state only when the group asks for a sync."""

    kinds = frozenset({"torn", "lost"})

    def write(self, group: Group, *, sync: bool) -> Failures:
        if not sync:
            group = {
                number: [operation._replace(hard_state=None) for operation in operations]
                for number, operations in group.items()
            }
        return super().write(group, sync=sync)


class LostMiddle(Planted):
    """Loses one group that was not synced and keeps those after it."""

    hard = 0.0
    kinds = frozenset({"torn", "order", "lost"})

    def restart(self, survival: Survival, rng: random.Random) -> None:
        assert self._disk is not None
        for shard in self._disk._shards:
            groups = [one for one in shard.unsynced if not isinstance(one, int)]
            if len(groups) > 1:
                shard.unsynced.remove(groups[0])
        super().restart("keep", rng)


@pytest.mark.parametrize("bug", [LyingSync, SplitOperation, LostHardState, LostMiddle])
def test_planted_bugs_are_caught(bug: type[Planted], campaign: Campaign, tmp_path: Path) -> None:
    rounds = campaign.rounds(share=40, full=400)
    for number in range(rounds):
        rng = campaign.random(number)
        rig = bug(str(number), 1, tmp_path)
        story = Story(rig, rng, Counter())
        rig.crash_after(rng.randint(5, 40))
        with pytest.raises(PowerLoss):
            story.live(NEVER)
        try:
            story.die(rig.fate)
            story.live(groups=1)
        except Broken as broken:
            campaign.tally[broken.kind] += 1
        except InvalidOperation:  # what was kept does not even follow from what was kept before
            campaign.tally["absurd"] += 1
        else:
            campaign.tally["nothing_at_stake"] += 1
    assert sum(campaign.tally[kind] for kind in bug.kinds) > rounds // 10, campaign.tally


def test_a_lying_disk_under_sqlite_is_caught(campaign: Campaign, tmp_path: Path) -> None:
    """By the log, whose watermark is newer than its data; and by this suite, without that mark."""
    rounds = campaign.rounds(share=30, full=300)
    for number in range(rounds):
        rng = campaign.random(number)
        rig = SqliteRig(f"{campaign.seed}/{number}", 1, tmp_path)
        story = Story(rig, rng, Counter())
        story.live(groups=3)
        before = rig.disk.counts["lying_sync"]
        rig.disk.lie()
        for _ in range(6):
            story.write()
        synced = rig.disk.counts["lying_sync"] > before
        rig.disk.crash()
        story.die("lose")
        rig.start()
        if synced:
            with pytest.raises(Corrupt, match="acknowledged data is gone"):
                rig.wal.open()
            campaign.tally["refused_by_the_log"] += 1
            forget_watermark(rig.directory)
            rig.start()
            found = ""
            try:
                story.look(rig.wal.open())
            except Broken as broken:
                found = str(broken)
            if found:
                assert found.startswith(("lost:", "order:")), found
                campaign.tally["caught_by_the_check"] += 1
            else:  # what was lost came to nothing, as a change and its undoing do
                campaign.tally["nothing_shows"] += 1
        else:
            story.look(rig.wal.open())
            campaign.tally["nothing_at_stake"] += 1
        rig.close()
    assert campaign.tally["caught_by_the_check"] > rounds // 3
    assert campaign.tally["nothing_shows"] <= max(1, rounds // 20), campaign.tally


def forget_watermark(directory: Path) -> None:
    for path in directory.glob("*.mark"):
        path.unlink()
        mark = Watermark(path)
        mark.create()
        mark.close()


# --- by hand


def test_hard_state_survives_whatever_the_group_asked_for(
    make_rig: Callable[[object], Rig], campaign: Campaign
) -> None:
    rig = make_rig("hard state")
    rig.start()
    rig.wal.open()
    before = Operation(entries=[Entry(1, b"before")])
    vote = Operation(hard_state=HardState(7, "me"))
    after = Operation(entries=[Entry(2, b"after")])
    assert rig.wal.write({1: [before]}, sync=False) == {}
    assert rig.wal.write({1: [vote]}, sync=False) == {}
    assert rig.wal.write({1: [after]}, sync=False) == {}
    rig.restart("lose", campaign.random())
    rig.start()
    rig.wal.open()
    assert rig.wal.hard_state(1) == HardState(7, "me")
    assert rig.wal.read(1) == [Entry(1, b"before")]
    rig.close()
