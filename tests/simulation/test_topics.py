"""The topics engine under random histories, and proof that they see each kind of bug.

Several planted bugs are ones this engine had when it was first written: a reading that misses what
is published before it is written, a snapshot that forgets a deletion by tag, a key whose write was
in doubt. Those that need one exact turn of the loop are planted in `tests/properties`.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec
import pytest

from fairway.topics import reading, writing
from fairway.topics.batch import RecordBatch
from fairway.topics.catching_up import CatchUp
from fairway.topics.idempotency import KeyMemory
from fairway.topics.reserving import Reserving
from fairway.topics.retention import Retention
from fairway.topics.topic import Topic
from fairway.topics.writes import Writes
from fairway.topics.writing import Writing
from tests.simulation.topics_sim import EVERYTHING, Scene, simulate
from tests.support.planted import expect_seen
from tests.support.promises import Broken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Campaign

EVENTS = [
    "acked disk",
    "acked ephemeral",
    "acked fsync",
    "acked memory",
    "appended anew after its loss",
    "caller went away",
    "clean stop",
    "clock set",
    "configured",
    "consumers checked",
    "deduped",
    "deleted by seq",
    "deleted by tag",
    "diff to watch",
    "fault: full disk",
    "fault: raised after",
    "fault: raised before",
    "gaps seen",
    "killed",
    "outcome unknown",
    "power lost",
    "pressure changed",
    "produced again",
    "recreated",
    "retried",
    "sink refused",
    "tiny memory",
    "unknown came true",
    "watch to diff",
]


@pytest.mark.parametrize("seed", [451225823, 3788178714, 2000365, 2000732, 2623025814])
def test_histories_that_went_wrong_once(seed: int) -> None:
    """Records were evicted up to a deleted one whose row, and rule, had gone before. An ephemeral
    topic that was emptied by a deletion and then restarted found none of its new records. A repeat
    that met the deletion of its topic was made in the next one of that name, as it should."""
    simulate(seed, Counter())


@pytest.mark.timeout(3600)
def test_every_consumer_accounts_for_every_record(campaign: Campaign) -> None:
    for number in range(campaign.rounds(share=25, full=2_000)):
        simulate(campaign.seed + number, campaign.tally)
    missing = [event for event in EVENTS if not campaign.tally[event]]
    assert not missing or not campaign.full, f"the simulation never reached {missing}"
    assert len(missing) <= 3, f"the simulation never reached {missing}"


def test_a_seed_is_a_history() -> None:
    first: Counter[str] = Counter()
    second: Counter[str] = Counter()
    for seed in range(4):
        simulate(seed, first)
        simulate(seed, second)
    assert first == second


# Planted bugs. Each is a context manager that breaks the real code in one place.


@contextmanager
def shown_before_it_is_durable() -> Iterator[None]:
    """Readers see an append of any class as soon as it is queued."""
    real = Writing.enqueue

    def early(self: Writing, topic: Topic, new: Any) -> Any:
        if topic.config.durability != "fsync":
            return real(self, topic, new)
        config = topic.config
        topic.config = msgspec.structs.replace(config, durability="memory")
        topic.reserved = max(topic.reserved, topic.assigned + new.records.count)
        try:
            return real(self, topic, new)
        finally:
            topic.config = config

    with patch.object(Writing, "enqueue", early):
        yield


@contextmanager
def seqs_are_not_reserved() -> Iterator[None]:
    """A weaker class numbers records that a crash forgets, and numbers others the same."""

    async def pretend(self: Reserving, topic: Topic, count: int) -> None:
        topic.reserved = max(topic.reserved, topic.assigned + count)

    with (
        patch.object(Reserving, "reserve", pretend),
        patch.object(Reserving, "keep_ahead", lambda *_: None),
    ):
        yield


@contextmanager
def keys_are_not_logged() -> Iterator[None]:
    """As upstream: a retry across a crash appends twice."""
    real = writing.rows_of

    def forgetful(noted: Any) -> Any:
        return {name: value for name, value in real(noted).items() if not name.startswith("i/")}

    with patch.object(writing, "rows_of", forgetful):
        yield


@contextmanager
def a_doubtful_key_is_not_asked_for() -> Iterator[None]:
    """The store has the key of a write whose outcome was unknown, and nobody asks it."""
    with patch.object(KeyMemory, "doubt", lambda self, used_ms: None):
        yield


@contextmanager
def unwritten_records_are_passed_over() -> Iterator[None]:
    """The store is read before what was published from memory has been written to it."""

    async def at_once(self: Writes) -> None:
        return None

    with patch.object(Writes, "wait_written", at_once), patch.object(reading, "Corrupt", _Never):
        yield


class _Never(Exception):
    def __new__(cls, *args: Any, **options: Any) -> Any:
        raise Broken("records are missing")


@contextmanager
def a_rule_is_not_read_again() -> Iterator[None]:
    """The snapshot written with the first deletion by tag does not say that there are rules."""
    real = Topic.snapshot

    def forgetful(self: Topic) -> Any:
        snapshot = real(self)
        return msgspec.structs.replace(snapshot, rules=bool(self.rules))

    with patch.object(Topic, "snapshot", forgetful):
        yield


@contextmanager
def a_full_topic_forgets_to_tell() -> Iterator[None]:
    """What a cap takes is gone in silence."""

    def silent(self: Topic, floor: int, reason: Any) -> None:
        self.delete_floor = max(self.delete_floor, floor)
        self.earliest = max(self.earliest, min(floor, self.head + 1))

    with patch.object(Topic, "raise_evict_floor", silent):
        yield


@contextmanager
def a_jump_is_not_a_loss() -> Iterator[None]:
    """Recovery takes seqs that are missing in the log for seqs that never were."""
    real = Topic.apply

    def apply(self: Topic, change: Any) -> None:
        if not isinstance(change, RecordBatch):
            real(self, change)
            return
        with patch.object(Topic, "_leave_out", lambda *args: None):
            real(self, change)

    with patch.object(Topic, "apply", apply):
        yield


@contextmanager
def the_doubt_is_not_settled() -> Iterator[None]:
    """What an unknown outcome left in the store is numbered over."""
    real = Retention._look_again

    async def look_away(self: Retention, topic: Topic) -> None:
        active = self._activate(topic)
        topic.unassign(self._log.last_key(topic.epoch))
        active.doubts.settle_end()

    assert real is not look_away
    with patch.object(Retention, "_look_again", look_away):
        yield


@contextmanager
def a_watcher_has_caught_up_too_soon() -> Iterator[None]:
    """Read before register: after one page it has caught up, whatever landed meanwhile."""

    async def read_pages(self: CatchUp) -> None:
        while True:
            await self._some.wait()
            if not self._line:
                self._some.clear()
                continue
            watcher = self._line.popleft()
            watcher.queued = False
            if not watcher.closed:
                await self._advance(watcher)
                if not watcher.stalled:
                    watcher.cursor = max(watcher.cursor, watcher.topic.drained)
                self.queue(watcher)

    with patch.object(CatchUp, "run", read_pages):
        yield


PLANTED = [
    shown_before_it_is_durable,
    seqs_are_not_reserved,
    keys_are_not_logged,
    a_doubtful_key_is_not_asked_for,
    unwritten_records_are_passed_over,
    a_rule_is_not_read_again,
    a_full_topic_forgets_to_tell,
    a_jump_is_not_a_loss,
    the_doubt_is_not_settled,
    a_watcher_has_caught_up_too_soon,
]


SCENES = {
    # The first rule is in the last snapshot before a death.
    a_rule_is_not_read_again: Scene(
        classes=("fsync",), lives=(3, 4), clean=0, bounded=0, weights=(50, 0, 0, 20, 0, 0, 5, 0)
    ),
    # Something is lost, something comes after it, and no snapshot before the next death.
    a_jump_is_not_a_loss: Scene(
        classes=("disk", "memory"),
        lives=(4, 4),
        clean=0,
        bounded=0,
        snapshots=(2000,),
        idle_ms=(5_000,),
        weights=(60, 0, 0, 0, 0, 0, 20, 0),
    ),
}
"""Where a bug is rare among histories of everything: the part of them that it is seen in."""


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_seen(bug: Callable[[], Any]) -> None:
    played = partial(simulate, scene=SCENES.get(bug, EVERYTHING))
    print(f"{bug.__name__}: {expect_seen(played, bug, Broken, histories=400)}")


@pytest.mark.parametrize("bug", SCENES, ids=lambda bug: bug.__name__)
def test_without_its_bug_a_scene_breaks_no_promise(
    bug: Callable[[], Any], campaign: Campaign
) -> None:
    for number in range(campaign.rounds(share=4, full=200)):
        simulate(campaign.seed + number, campaign.tally, scene=SCENES[bug])
