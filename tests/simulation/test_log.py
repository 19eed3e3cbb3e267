"""The log under a deterministic interleaver, and proof that the interleaver sees each kind of bug.

The planted bugs are the weaknesses found in the scheduler this log was modelled on (a ready queue
that forgets, a stop that races an append, a drain with a bounded number of passes, two owners, a
worker killed by the store, one status for a whole group, a limit that does not count bytes), and a
few of our own that would be as easy to make.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from fairway.core.groups import Groups
from fairway.core.lanes import Lanes
from fairway.core.ready import Ready
from fairway.errors import OutcomeUnknown
from fairway.runtime.completion import notify
from fairway.storage import writer as writer_module
from fairway.storage.completions import Completions
from fairway.storage.group_service import GroupService
from fairway.storage.writer import FairWriter
from tests.simulation.log_sim import Broken, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Campaign

EVENTS = [
    "drained a backlog many times batch x workers",
    "fault: full disk",
    "fault: one shard",
    "fault: raise after",
    "fault: raise before",
    "fault: sync",
    "group failed in part",
    "group over partitions",
    "healed",
    "read after write",
    "refused: backpressure",
    "refused: closing",
    "stop racing append",
    "stopped at once",
    "told: OutcomeUnknown",
    "told: WriteFailed",
    "told: int",
    "waiter cancelled",
    "writes under way at once",
]


@pytest.mark.timeout(3600)
def test_promises_hold_under_every_interleaving(campaign: Campaign) -> None:
    for number in range(campaign.rounds(share=250, full=10_000)):
        simulate(campaign.seed + number, campaign.tally)
    missing = [event for event in EVENTS if not campaign.tally[event]]
    assert not missing, f"the simulation never reached {missing}"


def test_a_seed_is_a_history() -> None:
    first: Counter[str] = Counter()
    second: Counter[str] = Counter()
    for seed in range(20):
        simulate(seed, first)
        simulate(seed, second)
    assert first == second


# Planted bugs. Each is a context manager that breaks the real code in one place.


@contextmanager
def ready_queue_forgets() -> Iterator[None]:
    """A full ready queue drops a key that still has items: they are stranded."""
    settle = Groups.settle

    def forgetful(self: Groups[Any, Any], drained: Any, now_ns: int) -> None:
        settle(self, drained, now_ns)
        if len(self._ready) > 2:
            self._ready.forget(drained.key)

    with patch.object(Groups, "settle", forgetful):
        yield


@contextmanager
def stop_races_append() -> Iterator[None]:
    """Admission does not look whether the workers have left."""
    offer = GroupService.offer

    def blind(self: GroupService[Any], *args: Any, **options: Any) -> None:
        closing, self._closing = self._closing, False
        try:
            offer(self, *args, **options)
        finally:
            self._closing = closing

    with patch.object(GroupService, "offer", blind):
        yield


@contextmanager
def drain_makes_two_passes() -> Iterator[None]:
    """The final drain gives up after a fixed number of groups."""
    settle = GroupService._settle

    async def drain(self: GroupService[Any]) -> None:
        self._closing = True
        self.passes = 0  # type: ignore[attr-defined]
        if self.groups.depth:
            await self._drained.wait()

    def counting(self: GroupService[Any], group: Any) -> None:
        settle(self, group)
        self.passes = getattr(self, "passes", 0) + 1  # type: ignore[attr-defined]
        if self._closing and self.passes >= 2:  # type: ignore[attr-defined]
            self._drained.set()

    with (
        patch.object(GroupService, "drain", drain),
        patch.object(GroupService, "_settle", counting),
    ):
        yield


@contextmanager
def two_owners() -> Iterator[None]:
    """A key that is marked while taken becomes ready at once."""
    mark = Ready.mark

    def eager(self: Ready[Any, Any], key: Any, band: Any, now_ns: int = 0, **options: Any) -> bool:
        if key in self._taken and key not in self._waiting:
            self._enqueue(key, band, now_ns, None)
            return True
        return mark(self, key, band, now_ns, **options)

    with patch.object(Ready, "mark", eager):
        yield


@contextmanager
def store_kills_worker() -> Iterator[None]:
    """A raising store ends the worker, which leaves its keys in flight."""

    wrote = FairWriter._wrote

    def dying(self: FairWriter, *args: Any) -> None:
        if isinstance(args[-1], Exception):
            for part in args[0].group:
                self._fail(part, OutcomeUnknown("the store raised"))
        else:
            wrote(self, *args)

    with patch.object(FairWriter, "_wrote", dying):
        yield


@contextmanager
def one_status_for_a_group() -> Iterator[None]:
    """A healthy partition is told that it failed because another shard did."""
    write = writer_module._write

    def lumped(wal: Any, operations: Any, sync: bool) -> Any:
        failures = write(wal, operations, sync)
        return dict.fromkeys(operations, next(iter(failures.values()))) if failures else {}

    lumped.__name__ = "_write"
    with patch.object(writer_module, "_write", lumped):
        yield


@contextmanager
def bytes_are_not_counted() -> Iterator[None]:
    """The limit counts operations only."""
    offer = Lanes.offer

    def weightless(
        self: Lanes[Any, Any], key: Any, item: Any, size: int, now_ns: int, *finishing: Any
    ) -> Any:
        return offer(self, key, item, 0, now_ns, *finishing)

    with patch.object(Lanes, "offer", weightless):
        yield


@contextmanager
def cancelling_withdraws() -> Iterator[None]:
    """An operation whose waiter went away is not written."""
    take = FairWriter.take

    def tidy(self: FairWriter, groups: Any) -> Any:
        group = take(self, groups)
        for part in group:
            callers = [item.on_done and item.on_done.__self__.waiter for item in part.items]
            kept = [
                item
                for item, waiter in zip(part.items, callers, strict=True)
                if waiter is None or not waiter.done()
            ]
            if kept:
                part.items[:] = kept + [kept[-1]] * (len(part.items) - len(kept))
        return group

    with patch.object(FairWriter, "take", tidy):
        yield


@contextmanager
def completions_out_of_order() -> Iterator[None]:
    """Callers are notified newest first."""
    complete = FairWriter._complete

    def backwards(self: FairWriter, part: Any) -> None:
        newest = part.items[-1]
        part.items.reverse()
        complete(self, part)
        self._tails.of(part.key).wrote(newest.last_key, newest.floor)

    with patch.object(FairWriter, "_complete", backwards):
        yield


@contextmanager
def failure_leaves_a_hole() -> Iterator[None]:
    """What was queued behind a failed operation is written as if nothing had happened."""
    with patch.object(Groups, "withdraw", lambda self, key: []):
        yield


@contextmanager
def acknowledged_before_written() -> Iterator[None]:
    """The acknowledgement does not wait for the store."""
    accept = FairWriter.accept

    def hasty(self: FairWriter, on_done: Any, partition: int, *args: Any) -> None:
        accept(self, lambda last_key, error: None, partition, *args)
        on_done(self.tail(partition).last_key, None)

    with patch.object(FairWriter, "accept", hasty):
        yield


@contextmanager
def notified_twice() -> Iterator[None]:
    """A caller hears of its write, and once more."""

    def twice(*args: Any) -> None:
        notify(*args)
        notify(*args)

    with patch.object(writer_module, "notify", twice):
        yield


@contextmanager
def notified_without_turns() -> Iterator[None]:
    """Whoever was not notified in the first turn never is."""
    turn = Completions._turn

    def once(self: Completions) -> None:
        turn(self)
        self._lanes.clear()
        self._turns.clear()

    with patch.object(Completions, "_turn", once):
        yield


PLANTED = [
    ready_queue_forgets,
    stop_races_append,
    drain_makes_two_passes,
    two_owners,
    store_kills_worker,
    one_status_for_a_group,
    bytes_are_not_counted,
    cancelling_withdraws,
    completions_out_of_order,
    failure_leaves_a_hole,
    acknowledged_before_written,
    notified_twice,
    notified_without_turns,
]


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_planted_bug_is_caught(bug: Callable[[], Any], campaign: Campaign) -> None:
    number, promise = 0, ""
    while not promise and number < 400:
        try:
            simulate(campaign.seed + number, mutate=bug)
        except Broken as caught:
            promise = str(caught)
        number += 1
    # Whom a bug left waiting for ever complains when it is collected: here, not in another test.
    with patch.object(sys, "unraisablehook", lambda _: None):
        gc.collect()
    assert promise, f"{bug.__name__} went unseen through {number} seeds"
    campaign.tally[f"caught after {number} seeds"] += 1
    print(f"{bug.__name__}: {promise}")
