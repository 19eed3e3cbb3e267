"""What an exchange asks for over all queues, and what its answer means to each of them."""

from __future__ import annotations

from typing import Any

from fairway.core.priority import Band
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.feeding import PARENTS_MAX, Feeding
from fairway.jobs.job import Claim, Fate, NewJob, ReadyLine, Settlement
from fairway.jobs.store import Exchanged, Want

A, B = ReadyLine("a", "", Band.B1), ReadyLine("b", "", Band.B1)
CONFIG = FeederConfig(concurrency=4)


def claim(id: int, queue: str, parent: int | None = None) -> Claim:
    return Claim(
        *(id, 1, "work", 1, "run", b"{}", 0, 0, 20, queue, "", 0, None, parent, None, False, None)
    )


def answer(**given: Any) -> Exchanged:
    blank: dict[str, Any] = {"claims": [], "stale": [], "lines": {}, "woken": set()}
    return Exchanged(**{**blank, "held_back_ns": {}, "ended": [], **given})


def quiet() -> Feeding:
    """Two queues that were looked at and have nothing."""
    feeding = Feeding({"a": CONFIG, "b": CONFIG}, 0)
    plan = feeding.plan((), 0.0, 0)
    assert (plan.wants, plan.probe) == ([], ["a", "b"])
    feeding.arrived(plan, answer(lines={"a": [], "b": []}), 0)
    assert feeding.plan((), 0.0, 1).queues == ()
    return feeding


def test_children_are_claimed_by_the_exchange_that_spawns_them() -> None:
    feeding = quiet()
    spawn = Settlement(
        claim=claim(1, "a"), fate=Fate.SPAWN, children=(NewJob(kind="x", queue="b"),)
    )
    assert feeding.plan([spawn], 0.0, 1).wants == [Want(B, 4)]


def test_a_parent_is_claimed_by_the_exchange_in_which_its_child_ends() -> None:
    feeding = quiet()
    spawn = Settlement(
        claim=claim(1, "a"), fate=Fate.SPAWN, children=(NewJob(kind="x", queue="b"),)
    )
    plan = feeding.plan([spawn], 0.0, 1)
    feeding.arrived(plan, answer(claims=[claim(2, "b", parent=1)], woken={B}), 1)
    done = Settlement(claim=claim(2, "b", parent=1), fate=Fate.DONE)
    assert Want(A, 4) in feeding.plan([done], 0.0, 2).wants


def test_what_was_claimed_with_what_made_it_ready_is_not_asked_for_again() -> None:
    feeding = quiet()
    spawn = Settlement(
        claim=claim(1, "a"), fate=Fate.SPAWN, children=(NewJob(kind="x", queue="b"),)
    )
    plan = feeding.plan([spawn], 0.0, 1)
    feeding.arrived(plan, answer(claims=[claim(2, "b")], woken={B}), 1)
    assert not feeding.wants_more(2)


def test_what_others_made_ready_is_asked_for_next() -> None:
    feeding = quiet()
    feeding.arrived(feeding.plan((), 0.0, 1), answer(woken={A}), 1)
    assert feeding.plan((), 0.0, 2).wants == [Want(A, 4)]


def test_an_exchange_that_failed_is_asked_again() -> None:
    feeding = quiet()
    assert feeding.wake([A])
    plan = feeding.plan((), 0.0, 1)
    assert not feeding.wants_more(1)
    feeding.failed(plan)
    assert feeding.plan((), 0.0, 1).wants == plan.wants


def test_a_queue_of_others_is_nobody_of_ours() -> None:
    feeding = quiet()
    assert not feeding.wake([ReadyLine("c", "", Band.B1)])
    assert not feeding.look("c")
    assert feeding.look("a")


def test_pressure_empties_the_prefetch() -> None:
    feeding = Feeding({"a": FeederConfig(concurrency=4, prefetch=10)}, 0)
    feeding.wake([A])
    assert feeding.plan((), 0.5, 0).wants == [Want(A, 9)]


def test_parents_are_not_remembered_without_end() -> None:
    feeding = quiet()
    for id in range(PARENTS_MAX + 5):
        feeding.plan([Settlement(claim=claim(id, "a"), fate=Fate.SPAWN)], 0.0, 1)
    assert len(feeding._parents) == PARENTS_MAX
