"""The table from errors to answers: every error is in it, and what clients rely on is there."""

from __future__ import annotations

import msgspec
import pytest

from fairway import errors
from fairway.server.http import problems

STATUSES = {
    errors.Backpressure("t", depth=3, limit="items", retry_after_ns=1_500_000): (429, "throttled"),
    errors.Throttled("x", retry_after_ns=1): (429, "throttled"),
    errors.Unavailable("x"): (503, "unavailable"),
    errors.ReadOnly("x"): (503, "read_only"),
    errors.Closing("x"): (503, "shutting_down"),
    errors.Fenced("x"): (503, "fenced"),
    errors.InvalidOperation("x"): (400, "invalid_request"),
    errors.InvalidConfig("x"): (400, "invalid_request"),
    errors.InvalidRequest("x"): (400, "invalid_request"),
    errors.InvalidRequest("x", code="batch_too_large"): (400, "batch_too_large"),
    errors.InvalidRequest("x", code="record_too_large"): (400, "record_too_large"),
    errors.InvalidRequest("x", code="unsupported_media_type"): (415, "unsupported_media_type"),
    errors.InvalidRequest("x", code="payload_too_large"): (413, "payload_too_large"),
    errors.InvalidRequest("x", code="not_acceptable"): (406, "not_acceptable"),
    errors.NotFound("topic", "x"): (404, "topic_not_found"),
    errors.NotFound("router", "x"): (404, "router_not_found"),
    errors.Conflict("x", code="router_cycle", detail={"cycle": ["a"]}): (409, "router_cycle"),
    errors.TopicFull("x"): (422, "topic_full"),
    errors.Unauthorized("x"): (401, "unauthorized"),
    errors.Forbidden("x"): (403, "forbidden"),
    errors.WriteFailed("x"): (503, "write_failed"),
    errors.OutcomeUnknown("x"): (503, "outcome_unknown"),
    errors.Corrupt("x", place="file"): (500, "corrupt"),
    errors.UnknownFormat("x"): (500, "unknown_format"),
    errors.AlreadyOwned("place", pid=7): (503, "already_owned"),
    errors.GaveUp("x"): (500, "gave_up"),
    errors.SourceFailed("x"): (409, "source_failed"),
    errors.GraphFailed("x"): (409, "graph_failed"),
    errors.Stop("x"): (500, "stopped"),
}

SHARED = {
    "throttled": {errors.Throttled, errors.Backpressure},
    "unavailable": {
        *(errors.FeedLost, errors.LockTimeout, errors.Unreachable, errors.TransactionConflict),
    },
    "invalid_request": {
        *(errors.InvalidOperation, errors.BadPlace, errors.BadRecord, errors.InvalidRequest),
    },
    "run_ended": {errors.CallFailed, errors.ProcessDied, errors.Cancelled},
}
"""Codes that mean the same to a client for several kinds of errors, on purpose."""


@pytest.mark.parametrize(
    ("error", "expected"), STATUSES.items(), ids=[f"{type(one).__name__}" for one in STATUSES]
)
def test_every_error_has_its_answer(error: errors.FairwayError, expected: tuple[int, str]) -> None:
    reply = problems.problem(error)
    body = msgspec.json.decode(reply.body)
    assert (reply.status, body["error"]["code"]) == expected
    assert body.keys() == {"error"}
    assert body["error"]["message"] == str(error)
    retry = dict(reply.headers).get(b"retry-after")
    assert (retry is not None) == (reply.status in (429, 503)), "try later says when"
    if retry is not None:
        assert int(retry) >= 1, "whole seconds, never 0"


def kinds(of: type[errors.FairwayError]) -> set[type[errors.FairwayError]]:
    """Those of Fairway; tests have errors of their own."""
    ours = [kind for kind in of.__subclasses__() if kind.__module__.startswith("fairway.")]
    return {of}.union(*(kinds(kind) for kind in ours))


def test_every_kind_of_error_is_in_the_table() -> None:
    for kind in kinds(errors.FairwayError) - {errors.FairwayError}:
        assert any(issubclass(kind, known) for known, _, _ in problems.TABLE), kind


def leaves(of: type[errors.FairwayError]) -> set[type[errors.FairwayError]]:
    return {kind for kind in kinds(of) if kinds(kind) == {kind}}


def row_of(kind: type[errors.FairwayError]) -> tuple[type[errors.FairwayError], int, str | None]:
    return next(row for row in problems.TABLE if issubclass(kind, row[0]))


def test_no_two_leaves_share_a_code_by_accident() -> None:
    """A new error that has no row of its own falls to that of its branch, and shares its code."""
    own = {errors.InvalidRequest: "invalid_request"}  # `NotFound` and `Conflict` always bring one
    users: dict[str, set[type[errors.FairwayError]]] = {}
    for leaf in leaves(errors.FairwayError):
        code = row_of(leaf)[2] or own.get(leaf, leaf.__name__)
        users.setdefault(code, set()).add(leaf)
    assert {code: found for code, found in users.items() if len(found) > 1} == SHARED


def test_an_error_of_a_part_has_the_status_and_code_of_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Misfit(errors.Invalid):
        """Of a part that is added."""

    error = Misfit("it does not fit")
    assert problems.status_of(error) == (400, "invalid_request")
    monkeypatch.setattr(problems, "OF_PARTS", [(Misfit, 422, "misfit")])
    assert problems.status_of(error) == (422, "misfit")
    assert "misfit" in problems.codes()
    assert problems.status_of(errors.Invalid("x")) == (400, "invalid_request")


def test_only_damage_is_corrupt_and_every_stop_has_its_code() -> None:
    stops = leaves(errors.Stop)
    assert all(row_of(leaf)[0] is leaf for leaf in stops)
    assert len({row_of(leaf)[2] for leaf in stops}) == len(stops)
    assert [row[0] for row in problems.TABLE if row[2] == "corrupt"] == [errors.Corrupt]


def test_a_more_exact_kind_comes_before_its_parent() -> None:
    known = [kind for kind, _, _ in problems.TABLE]
    for at, kind in enumerate(known):
        assert not any(issubclass(later, kind) for later in known[at + 1 :]), kind


def test_detail_says_when_and_which_limit() -> None:
    throttled = errors.Throttled("x", retry_after_ns=1)
    assert problems.detail_of(throttled) == {"retry_after_ms": 1}
    capped = errors.Throttled("x", retry_after_ns=2_000_000_001, limit="topics", maximum=5)
    assert problems.detail_of(capped) == {"retry_after_ms": 2001, "limit": "topics", "max": 5}
    assert dict(problems.problem(capped).headers)[b"retry-after"] == b"3"
    assert b"detail" not in problems.problem(errors.Closing("x")).body, "an empty one is left out"


def test_who_is_not_known_is_told_how_to_say_who_it_is() -> None:
    assert b"www-authenticate" in dict(problems.problem(errors.Unauthorized("x")).headers)
