"""The one table from errors to what an HTTP client sees: status, code, detail and headers."""

from __future__ import annotations

import logging
from itertools import chain
from typing import Final, TypeAlias

from fairway import errors
from fairway.errors import FiringFailed
from fairway.server.access.auth import CHALLENGE
from fairway.server.http.exchange import JSON, Reply, json_reply
from fairway.wire.requests import ErrorReply, Problem

logger = logging.getLogger("fairway.server")

STATUS_OF_CODE: Final = {
    "unsupported_media_type": 415,
    "payload_too_large": 413,
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "gone": 410,
    "upgrade_required": 426,
}
"""Codes of `InvalidRequest` that are not a plain 400."""

Row: TypeAlias = tuple[type[errors.FairwayError], int, str | None]
"""A class of errors, its status and its code; None takes the error's own code."""
OF_PARTS: Final[list[Row]] = []
"""Errors of a part's own: a line for each, looked at before the others."""
TABLE: Final[tuple[Row, ...]] = (
    # The first that fits counts.
    (errors.InvalidRequest, 400, None),
    (errors.NotFound, 404, None),
    (errors.Conflict, 409, None),
    (errors.JobFailed, 409, "job_failed"),
    (FiringFailed, 409, "firing_failed"),
    (errors.RunEnded, 500, "run_ended"),
    (errors.TopicFull, 422, "topic_full"),
    (errors.Unauthorized, 401, "unauthorized"),
    (errors.Forbidden, 403, "forbidden"),
    (errors.Invalid, 400, "invalid_request"),
    (errors.Throttled, 429, "throttled"),
    (errors.Backpressure, 429, "throttled"),
    (errors.Closing, 503, "shutting_down"),
    (errors.ReadOnly, 503, "read_only"),
    (errors.Unavailable, 503, "unavailable"),
    (errors.TryLater, 503, "unavailable"),
    (errors.OutcomeUnknown, 503, "outcome_unknown"),
    (errors.WriteFailed, 503, "write_failed"),
    (errors.OutOfDate, 503, "fenced"),
    (errors.Corrupt, 500, "corrupt"),
    (errors.UnknownFormat, 500, "unknown_format"),
    (errors.AlreadyOwned, 503, "already_owned"),
    (errors.GaveUp, 500, "gave_up"),
    (errors.SourceFailed, 409, "source_failed"),
    (errors.GraphFailed, 409, "graph_failed"),
    (errors.Stop, 500, "stopped"),
)
RETRY_S: Final = 1

CLOSE: Final = (b"connection", b"close")
"""Whoever asks again is to come by another way: behind one address there may be another server."""


def codes() -> list[str]:
    """Every code that is not an error's own."""
    return sorted({*STATUS_OF_CODE, *(code for _, _, code in (*OF_PARTS, *TABLE) if code)})


def status_of(error: errors.FairwayError) -> tuple[int, str]:
    """The status and the code of an error."""
    for kind, status, code in chain(OF_PARTS, TABLE):
        if isinstance(error, kind):
            if isinstance(error, errors.NotFound):
                return status, f"{error.kind}_not_found"
            own = code if code is not None else str(getattr(error, "code", "invalid_request"))
            return STATUS_OF_CODE.get(own, status), own
    return 500, "internal"


def detail_of(error: errors.FairwayError) -> dict[str, object]:
    """What a client is told of an error beside its code and message."""
    detail: dict[str, object] = dict(getattr(error, "detail", None) or {})
    if status_of(error)[0] == 429:
        detail["retry_after_ms"] = max(1, -(-_retry_ns(error) // 10**6))
    if isinstance(error, errors.Throttled) and error.limit is not None:
        detail |= {"limit": error.limit, "max": error.maximum}
    return detail


def problem(error: errors.FairwayError, **more: object) -> Reply:
    """The reply that tells a client of an error; `more` goes into its detail."""
    status, code = status_of(error)
    headers: list[tuple[bytes, bytes]] = []
    if status in (429, 503):
        # Whole seconds, never 0: a client that takes the header at its word must not spin.
        headers.append((b"retry-after", b"%d" % max(RETRY_S, -(-_retry_ns(error) // 10**9))))
    if isinstance(error, errors.Fenced):
        headers.append(CLOSE)
    if code == "upgrade_required":
        headers += [(b"upgrade", b"websocket"), (b"connection", b"upgrade")]
    if isinstance(error, errors.Unauthorized):
        headers.append((b"www-authenticate", CHALLENGE.encode()))
    if status >= 500 and not isinstance(error, errors.TryLater | errors.Fenced):
        # Neither is news with each request: that the log was lost is told when it happens.
        logger.warning("answered %d %s: %s", status, code, error)
    return reply(status, code, str(error), {**detail_of(error), **more}, tuple(headers))


def _retry_ns(error: errors.FairwayError) -> int:
    return int(getattr(error, "retry_after_ns", 0))


def reply(
    status: int,
    code: str,
    message: str,
    detail: dict[str, object] | None = None,
    headers: tuple[tuple[bytes, bytes], ...] = (),
) -> Reply:
    made = json_reply(ErrorReply(error=Problem(code=code, message=message, detail=detail or {})))
    return Reply(status, made.body, (JSON, *headers))
