"""Whether a graph may fire, as far as people and its failures have a say."""

from __future__ import annotations

import pytest

from fairway.core.backoff import BackoffConfig
from fairway.graphs.firing import OnError, Then
from fairway.graphs.steering import FailureAction, Steering

BACKOFF = BackoffConfig(base_ns=10, cap_ns=30, jitter=0.0)


def steering(*, retries: int = 0, then: Then = "dead_letter", paused: bool = False) -> Steering:
    return Steering(OnError(retries=retries, then=then, backoff=BACKOFF), paused=paused)


def test_it_begins_as_it_was_left() -> None:
    assert steering().allows
    left = steering(paused=True)
    assert not left.allows
    left.resume()
    assert left.allows
    left.pause()
    assert (left.allows, left.paused, left.halted) == (False, True, None)


def test_a_failure_is_tried_again_later_and_later_then_dead_lettered() -> None:
    one = steering(retries=4)
    due = []
    for _ in range(4):
        assert one.failed("why", 100) is FailureAction.RETRY
        assert one.retry_at_ns is not None
        assert not one.allows
        due.append(one.retry_at_ns)
        one.tick(one.retry_at_ns - 1)
        assert not one.allows, "not before its time"
        one.tick(due[-1])
        assert one.allows
    assert due == [110, 120, 130, 130]
    assert one.failures == 4
    assert one.failed("why", 200) is FailureAction.DEAD_LETTER
    assert (one.failures, one.allows) == (0, True), "what comes next has its own tries"


def test_a_success_forgets_earlier_failures() -> None:
    one = steering(retries=1)
    for _ in range(3):
        assert one.failed("why", 0) is FailureAction.RETRY
        one.tick(100)
        one.succeeded()
    assert one.failures == 0


@pytest.mark.parametrize("retries", [0, 2])
def test_a_halt_lasts_until_somebody_resumes(retries: int) -> None:
    one = steering(retries=retries, then="halt")
    for _ in range(retries):
        assert one.failed("why", 0) is FailureAction.RETRY
        one.tick(1000)
    assert one.failed("the reason", 0) is FailureAction.HALT
    one.tick(10**18)
    assert (one.allows, one.paused, one.halted) == (False, False, "the reason")
    one.resume()
    assert (one.allows, one.halted, one.failures) == (True, None, 0)


def test_resume_does_not_wait_for_a_try_that_was_put_off() -> None:
    one = steering(retries=1)
    one.failed("why", 0)
    one.pause()
    one.resume()
    assert (one.allows, one.retry_at_ns, one.failures) == (True, None, 0)
