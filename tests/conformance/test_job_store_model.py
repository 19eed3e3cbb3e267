"""Every job store against its twin in memory, over random histories.

The second half is the proof that this finds what it looks for: stores with one bug each.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from fairway.jobs.attempts import REMARKABLE, AttemptFate
from fairway.jobs.job import Fate, Status
from fairway.jobs.moves import MOVES, Why
from fairway.jobs.stores.memory import MemoryStore
from tests.conformance.job_backends import JOB_STORES, MemoryRig, opened
from tests.support.job_histories import EFFECTS, Clocked, Disagreement, History
from tests.support.postgres import Unavailable

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from fairway.jobs.job import Claim, Limits, Settlement
    from fairway.jobs.store import CancelResult, Exchanged, JobStore, Promoted
    from tests.conformance.job_backends import JobRig
    from tests.conftest import Campaign

STEPS = 160


async def play(rig: JobRig, rng: random.Random, tally: Counter[str], *, look_every: int) -> None:
    clock = Clocked()
    await History(rig, MemoryStore(clock), clock, rng, tally).run(STEPS, look_every=look_every)


@pytest.mark.parametrize("name", JOB_STORES)
def test_random_histories_agree_with_the_twin(
    name: str, tmp_path: Path, campaign: Campaign
) -> None:
    try:
        share = JOB_STORES[name](tmp_path).histories
    except Unavailable as reason:
        pytest.skip(f"{name}: {reason}")
    rounds = campaign.rounds(share=share, full=600)
    for number in range(rounds):
        with opened(name, tmp_path) as (rig, runner):
            try:
                rng = campaign.random(number)
                # Now after each step, now after several: what is written but not yet read counts.
                runner.run(play(rig, rng, campaign.tally, look_every=rng.choice([1, 3, 10])))
            except BaseException as failure:
                failure.add_note(f"in history {number} of --seed {campaign.seed}")
                raise
    fates = [f"fate {fate.value}" for fate in Fate]
    states = [f"to {status.word}" for status in Status]
    waits = [f"waits by {why.value}" for why in (Why.SIGNAL, Why.KEY, Why.TIMER, Why.TURN)]
    for event in [*fates, *states, "stale", "held back", "timed out", "attempt", *waits]:
        assert campaign.tally[event] > rounds // 30, event


def test_every_effect_is_a_move_of_the_table() -> None:
    for verb, stages in EFFECTS.items():
        for before, after in set().union(*stages):
            assert after in MOVES[before], verb


# --- planted bugs


class FencedByWorkerAlone(MemoryStore):
    """A worker that claims a job again lets its own old run commit."""

    async def exchange(
        self, worker: int, token: int, settlements: Any = (), wants: Any = (), probe: Any = ()
    ) -> Exchanged:
        forged = [
            structs.replace(one, claim=structs.replace(one.claim, token=row.token))
            if (row := self._rows.get(one.claim.id)) is not None
            else one
            for one in settlements
        ]
        return await super().exchange(worker, token, forged, wants, probe)


class DeadWorkersCommit(MemoryStore):
    """A lease that ran out is only noticed by the reaper."""

    def _alive(self, worker: int) -> bool:
        return worker in self._workers

    async def reap(self, limit: int) -> Any:
        self._alive = super()._alive  # type: ignore[method-assign]
        try:
            return await super().reap(limit)
        finally:
            del self._alive


class ReleaseCosts(MemoryStore):
    """Giving a job back unrun uses up an attempt."""

    def _settle(self, row: Any, settlement: Settlement) -> None:
        super()._settle(row, settlement)
        row.attempt += settlement.fate is Fate.RELEASE


class EveryRetryCosts(MemoryStore):
    """Waiting for a condition uses up attempts."""

    def _settle(self, row: Any, settlement: Settlement) -> None:
        super()._settle(row, structs.replace(settlement, counts=True))


class WaitForgetsWhatIsThere(MemoryStore):
    """A signal that came while the job ran does not wake it when it parks."""

    def _settle(self, row: Any, settlement: Settlement) -> None:
        if settlement.fate is Fate.WAIT:
            everything = tuple(signal for signal, _ in row.inbox)
            claim = structs.replace(settlement.claim, signals=everything)
            settlement = structs.replace(settlement, claim=claim)
        super()._settle(row, settlement)


class WaitKeepsSignals(MemoryStore):
    """A step that waits again is given what it has dealt with once more."""

    def _settle(self, row: Any, settlement: Settlement) -> None:
        if settlement.fate is Fate.WAIT:
            claim = structs.replace(settlement.claim, signals=())
            settlement = structs.replace(settlement, claim=claim)
        super()._settle(row, settlement)


class DeferKeepsSignals(MemoryStore):
    """A step that comes back later is given what it has dealt with once more."""

    def _settle(self, row: Any, settlement: Settlement) -> None:
        if settlement.fate is Fate.RETRY and not settlement.counts:
            claim = structs.replace(settlement.claim, signals=())
            settlement = structs.replace(settlement, claim=claim)
        super()._settle(row, settlement)


class FailingConsumes(MemoryStore):
    """A step that failed is not given its signals again."""

    def _settle(self, row: Any, settlement: Settlement) -> None:
        if settlement.fate is Fate.RETRY:
            given = {signal.id for signal in settlement.claim.signals}
            row.inbox = [entry for entry in row.inbox if entry[0].id not in given]
        super()._settle(row, settlement)


class TooLateThoughItCame(MemoryStore):
    """A signal between the timer and the claim does not count."""

    def _take(self, row: Any, worker: int, token: int) -> Claim:
        timed_out = row.timed_out
        return structs.replace(super()._take(row, worker, token), timed_out=timed_out)


class DedupKeysGoWithTheirSignals(MemoryStore):
    """A signal that is sent again after the first one was dealt with counts again."""

    def _consume(self, row: Any, signals: Collection[int]) -> None:
        super()._consume(row, signals)
        row.dedup = {key: at for key, at in row.dedup.items() if at is None}


class DedupKeysStandForEver(MemoryStore):
    """Nobody forgets the keys of signals."""

    async def prune(self, older_than_ns: int, **options: Any) -> int:
        return await super().prune(older_than_ns, **{**options, "dedup_older_than_ns": None})


class FailuresGoWithTheRest(MemoryStore):
    """Jobs that failed are forgotten as soon as those that are done."""

    async def prune(self, older_than_ns: int, **options: Any) -> int:
        return await super().prune(older_than_ns, **{**options, "failed_older_than_ns": None})


class ChildrenGoBeforeTheirParent(MemoryStore):
    """What a parent that failed had from its children is gone before it is retried."""

    def _parent_may_read(self, row: Any) -> bool:
        return self._parent_lives(row)


class NextEmptiesTheInbox(MemoryStore):
    """A step consumes signals that it was never shown."""

    def _settle(self, row: Any, settlement: Settlement) -> None:
        if settlement.fate is Fate.NEXT:
            row.inbox = []
        super()._settle(row, settlement)


class CancelKeepsTheKey(MemoryStore):
    """Whoever waits for the key of a cancelled job waits for ever."""

    cancels = False

    async def cancel(self, jobs: Any, *, reason: str = "cancelled") -> CancelResult:
        self.cancels = True
        try:
            return await super().cancel(jobs, reason=reason)
        finally:
            self.cancels = False

    def _unblock(self, key: str | None) -> None:
        if not self.cancels:
            super()._unblock(key)


class CancelIsForgotten(MemoryStore):
    """A job that was to be cancelled while it ran goes on to its next step."""

    def _settle(self, row: Any, settlement: Settlement) -> None:
        row.cancelling = False
        super()._settle(row, settlement)


class ReapForgetsCrashes(MemoryStore):
    """A job that kills its workers is given to one more, for ever."""

    async def reap(self, limit: int) -> Any:
        for row in self._rows.values():
            row.crashes = -1 if row.status is Status.RUNNING else row.crashes
        try:
            return await super().reap(limit)
        finally:
            for row in self._rows.values():
                row.crashes = max(0, row.crashes)


class KeysAreNotExclusive(MemoryStore):
    """Two jobs of a key run at once."""

    def _may_have_key(self, row: Any) -> bool:
        return True


class OrderIsNotStrict(MemoryStore):
    """A later job of a strict key overtakes one that is between attempts."""

    def _may_have_key(self, row: Any) -> bool:
        return row.new.partition_key is None or not self._busy(row.new.partition_key)


class LastInFirstOut(MemoryStore):
    """Ready lines are served from the wrong end."""

    def _ready(self) -> list[Any]:
        return super()._ready()[::-1]


class TimeoutIsNotTold(MemoryStore):
    """A job cannot tell the end of its patience from a signal."""

    async def promote(self, limit: int) -> Promoted:
        promoted = await super().promote(limit)
        for row in self._rows.values():
            row.timed_out = False
        return promoted


class FirstChildWakesTheParent(MemoryStore):
    """The barrier opens before all children have ended."""

    def _end(self, row: Any, status: Status, result: bytes | None, error: str | None) -> None:
        super()._end(row, status, result, error)
        parent = self._rows.get(row.new.parent)
        if parent is not None and parent.status is Status.WAITING and not parent.names:
            self._make_ready(parent)


class LimitsAreAdvice(MemoryStore):
    """More jobs of a queue run than it allows."""

    async def set_limits(self, queue: str, limits: Limits) -> None:
        more = limits.concurrency and limits.concurrency + 1
        await super().set_limits(queue, structs.replace(limits, concurrency=more))


class PruneOrphans(MemoryStore):
    """What a living parent has yet to read is forgotten."""

    def _parent_lives(self, row: Any) -> bool:
        return False


class RetriesAreNotCounted(MemoryStore):
    """Nobody can tell the second attempt of a run from the first."""

    async def retry(self, jobs: Any, *, anew: bool = False) -> list[int]:
        again = await super().retry(jobs, anew=anew)
        for id in again:
            self._rows[id].retries = 0
        return again


class RetriedWithoutItsWait(MemoryStore):
    """A job that was cancelled while it waited goes on at once."""

    def _still_waits(self, row: Any) -> bool:
        return False


class RetriedBesideItsReporters(MemoryStore):
    """Children of the attempt that is over report to the next one."""

    def _has_reporters(self, row: Any) -> bool:
        return False


class LastReasonStands(MemoryStore):
    """Whoever cancels a job once more changes why it was cancelled."""

    async def cancel(self, jobs: Any, *, reason: str = "cancelled") -> CancelResult:
        cancelled = await super().cancel(jobs, reason=reason)
        for id in cancelled.running:
            self._rows[id].error = reason
        return cancelled


class SetAsideForNobody(MemoryStore):
    """A job that a worker does not know goes back where that worker finds it again."""

    def _make_ready(self, row: Any) -> None:
        row.line = row.line._replace(skill="")
        super()._make_ready(row)


class SetsAsideOneByOne(MemoryStore):
    """Others like it stay at the head of the line."""

    def _set_aside(self, settlement: Settlement) -> None:
        pass


class OnlyFailuresAreCounted(MemoryStore):
    """The numbers of attempts do not tell of those that went well."""

    def _keep(self, row: Any, worker: int, started_ns: int, fate: AttemptFate, *rest: Any) -> None:
        super()._keep(row, worker, started_ns, fate, *rest)
        if fate not in REMARKABLE:
            row.runs -= 1


class DeathsAreNoAttempts(MemoryStore):
    """Nobody can tell whose hands a job was in when its worker died."""

    def _keep(self, row: Any, worker: int, started_ns: int, fate: AttemptFate, *rest: Any) -> None:
        if fate is AttemptFate.LOST:
            row.runs += 1
        else:
            super()._keep(row, worker, started_ns, fate, *rest)


PLANTED = [
    OnlyFailuresAreCounted,
    DeathsAreNoAttempts,
    RetriesAreNotCounted,
    RetriedBesideItsReporters,
    RetriedWithoutItsWait,
    LastReasonStands,
    SetAsideForNobody,
    SetsAsideOneByOne,
    FencedByWorkerAlone,
    DeadWorkersCommit,
    ReleaseCosts,
    EveryRetryCosts,
    WaitForgetsWhatIsThere,
    WaitKeepsSignals,
    DeferKeepsSignals,
    FailingConsumes,
    TooLateThoughItCame,
    DedupKeysGoWithTheirSignals,
    DedupKeysStandForEver,
    FailuresGoWithTheRest,
    ChildrenGoBeforeTheirParent,
    NextEmptiesTheInbox,
    CancelKeepsTheKey,
    CancelIsForgotten,
    ReapForgetsCrashes,
    KeysAreNotExclusive,
    OrderIsNotStrict,
    LastInFirstOut,
    TimeoutIsNotTold,
    FirstChildWakesTheParent,
    LimitsAreAdvice,
    PruneOrphans,
]


class PlantedRig(MemoryRig):
    def __init__(self, scratch: Path, kind: type[MemoryStore]) -> None:
        super().__init__(scratch)
        self._kind = kind

    def make(self) -> JobStore:
        return self._kind(self.clock)


@pytest.mark.parametrize("kind", PLANTED, ids=lambda kind: kind.__name__)
def test_histories_find_a_planted_bug(kind: type[MemoryStore], tmp_path: Path) -> None:
    async def hunt() -> None:
        for number in range(60):
            rig = PlantedRig(tmp_path, kind)
            await rig.open()
            await play(rig, random.Random(f"planted/{number}"), Counter(), look_every=5)

    with pytest.raises(Disagreement):
        asyncio.run(hunt())
