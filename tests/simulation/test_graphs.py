"""Graphs under random histories, and proof that they see each kind of bug.

The planted bugs are what such an engine gets wrong first: acknowledged before it is durable, sent
twice, a failed firing that loses its inputs, a feed that begins in the wrong place.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from fairway.graphs.accumulator import Accumulator
from fairway.graphs.checkpoint import Checkpoint, Pushed
from fairway.graphs.inputs import Inputs
from fairway.graphs.journal import Journal
from fairway.graphs.outbox import Outbox
from fairway.graphs.reactor import Reactor
from tests.simulation.graphs_sim import EVERYTHING, Scene, simulate
from tests.support.planted import expect_seen, plant
from tests.support.promises import Broken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Campaign

EVENTS = [
    "async ledger",
    "batched",
    "command",
    "crash reactor",
    "crash source",
    "fill disk",
    "force",
    "kill",
    "lose",
    "lose power",
    "node failed",
    "pause",
    "pushes: Closing",
    "pushes: OutcomeUnknown",
]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="fairway")


@pytest.mark.timeout(3600)
def test_every_event_is_fired_once_and_in_order(campaign: Campaign) -> None:
    for number in range(campaign.rounds(share=20, full=200)):
        simulate(campaign.seed + number, campaign.tally)
    missing = [event for event in EVENTS if not campaign.tally[event]]
    assert not missing or not campaign.full, f"the simulation never reached {missing}"
    assert len(missing) <= 4, f"the simulation never reached {missing}"


def test_a_seed_is_a_history() -> None:
    first: Counter[str] = Counter()
    second: Counter[str] = Counter()
    for seed in range(4):
        simulate(seed, first)
        simulate(seed, second)
    assert first == second


# Planted bugs. Each is a context manager that breaks the real code in one place.


@contextmanager
def told_before_it_is_durable() -> Iterator[None]:
    """A push is acknowledged as soon as its record is made."""
    real = Journal.append

    def early(self: Journal, record: Any, on_done: Any = None, data: bytes | None = None) -> None:
        real(self, record, None, data)
        if on_done is not None:
            on_done(None, None)

    with plant(Journal, "append", early):
        yield


@contextmanager
def effects_have_no_positions() -> Iterator[None]:
    """What is sent again after a crash arrives again."""
    real = Outbox.__init__

    def forgetful(self: Outbox, *args: Any, **options: Any) -> None:
        real(self, *args, **{**options, "positions": False})

    with plant(Outbox, "__init__", forgetful):
        yield


@contextmanager
def effects_are_not_sent_again() -> Iterator[None]:
    """What had not gone out when the process died never does."""
    real = Checkpoint._sent

    def hasty(self: Checkpoint, number: int) -> None:
        real(self, self.number)

    with plant(Checkpoint, "_sent", hasty):
        yield


@contextmanager
def a_failed_firing_loses_its_inputs() -> Iterator[None]:
    """As upstream: what was taken is gone, whatever came of it."""
    with plant(Inputs, "restore", lambda self, taken: None):
        yield


@contextmanager
def waiting_pushes_are_not_kept() -> Iterator[None]:
    """The record of a push is written, and nobody reads it."""
    real = Checkpoint.apply

    def deaf(self: Checkpoint, record: Any, limits: Any) -> None:
        if isinstance(record, Pushed):
            self.records += 1
        else:
            real(self, record, limits)

    with plant(Checkpoint, "apply", deaf):
        yield


@contextmanager
def keys_are_forgotten_by_a_restart() -> Iterator[None]:
    """A push that is retried after a crash is fired again."""
    real = Accumulator.restore

    def forgetful(self: Accumulator, kept: Any, *, queued: bool) -> None:
        keys, kept.keys = kept.keys, []
        real(self, kept, queued=queued)
        kept.keys = keys

    with plant(Accumulator, "restore", forgetful):
        yield


@contextmanager
def a_feed_begins_anew() -> Iterator[None]:
    """Marks are not given to the feed, and so everything is read again."""
    real = Accumulator.restore

    def forgetful(self: Accumulator, kept: Any, *, queued: bool) -> None:
        real(self, kept, queued=queued)
        self.marks = {}

    with plant(Accumulator, "restore", forgetful):
        yield


@contextmanager
def marks_run_ahead() -> Iterator[None]:
    """As with auto-commit: what was received counts as consumed."""
    real = Reactor.arrived

    def eager(self: Reactor, source: str, boundary: Any, token: Any = None) -> None:
        ahead = {name: at + (name[:1] != "~") for name, at in boundary.marks.items()}
        real(self, source, boundary._replace(marks=ahead), token)

    with plant(Reactor, "arrived", eager):
        yield


@contextmanager
def a_state_is_not_kept() -> Iterator[None]:
    """Writes to a state are news, and in no record."""
    real = Checkpoint._write

    def forgetful(self: Checkpoint, source: str, stored: Any, limits: Any) -> None:
        if not self.kept(source).window:
            real(self, source, stored, limits)

    with plant(Checkpoint, "_write", forgetful):
        yield


@contextmanager
def whoever_waits_is_left_waiting() -> Iterator[None]:
    """A graph that ends tells nobody."""
    real = Reactor.stop

    def silent(self: Reactor, why: Any) -> None:
        self._promises._made.clear()
        real(self, why)

    with plant(Reactor, "stop", silent):
        yield


PLANTED = [
    told_before_it_is_durable,
    effects_have_no_positions,
    effects_are_not_sent_again,
    a_failed_firing_loses_its_inputs,
    waiting_pushes_are_not_kept,
    keys_are_forgotten_by_a_restart,
    a_feed_begins_anew,
    marks_run_ahead,
    a_state_is_not_kept,
    whoever_waits_is_left_waiting,
]


SCENES = {
    # A push whose answer a death took away is pushed again.
    keys_are_forgotten_by_a_restart: Scene(
        writes=("push",) * 6, troubles={"kill": 3, "fill_disk": 1}
    ),
}
"""Where a bug is rare among histories of everything: the part of them that it is seen in."""


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_seen(bug: Callable[[], Any]) -> None:
    played = partial(simulate, scene=SCENES.get(bug, EVERYTHING))
    print(f"{bug.__name__}: {expect_seen(played, bug, Broken, histories=100)}")


@pytest.mark.parametrize("bug", SCENES, ids=lambda bug: bug.__name__)
def test_without_its_bug_a_scene_breaks_no_promise(
    bug: Callable[[], Any], campaign: Campaign
) -> None:
    for number in range(campaign.rounds(share=4, full=100)):
        simulate(campaign.seed + number, campaign.tally, scene=SCENES[bug])
