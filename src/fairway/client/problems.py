"""From what a server answered, or did not, back to the exception that it means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from fairway import errors
from fairway.wire.requests import ErrorReply, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class HttpResponse(NamedTuple):
    """A whole response. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class NoResponse(NamedTuple):
    """There was no response. `sent`: the request may have arrived."""

    sent: bool
    reason: str


class ServerRefusal(NamedTuple):
    """An error, and when the server would like to be asked again, if it said so."""

    error: errors.FairwayError
    retry_after_ns: int | None = None


SECOND_NS: Final = 1_000_000_000
BY_CODE: Final[dict[str, Callable[[str], errors.FairwayError]]] = {
    "topic_full": errors.TopicFull,
    "unauthorized": errors.Unauthorized,
    "shutting_down": errors.Closing,
    "unavailable": errors.Unavailable,
    "not_ready": errors.Unavailable,
    "read_only": errors.ReadOnly,
    "outcome_unknown": errors.OutcomeUnknown,
    "write_failed": errors.WriteFailed,
    "fenced": errors.Fenced,
    "corrupt": errors.Stop,
    "unknown_format": errors.UnknownFormat,
    "already_owned": errors.Stop,
    "gave_up": errors.GaveUp,
    "stopped": errors.Stop,
}
"""Errors that are known by their code, and made of their message. A part's own have a line each."""
_decode = msgspec.json.Decoder(ErrorReply).decode


def refusal_of(response: HttpResponse, *, mutates: bool, where: str) -> ServerRefusal:
    """What a response that is no success means. `mutates`: the request would change something.

    A server's own words are believed. Without them (a proxy answered, or the server failed) a
    request that changes something is in doubt, and one that only reads can be repeated.
    """
    try:
        problem = _decode(response.body).error
    except (msgspec.DecodeError, RecursionError):
        return ServerRefusal(
            _unexplained(response, mutates=mutates, where=where), _retry_after_ns(response)
        )
    after_ns = _retry_after_ns(response, problem.detail)
    return ServerRefusal(
        _explained(response.status, problem, after_ns or 0, mutates=mutates), after_ns
    )


def event_error(body: str) -> errors.FairwayError:
    """What an `error` event in the middle of a stream means."""
    try:
        problem = _decode(body).error
    except (msgspec.DecodeError, RecursionError):
        return errors.Stop("the server sent an error that cannot be read")
    return _explained(400, problem, 0, mutates=False)


def no_response_error(outcome: NoResponse, *, where: str) -> errors.FairwayError:
    """What it means that nothing came back, for a request that may be repeated."""
    if outcome.sent:
        return errors.Unavailable(f"{where} did not answer: {outcome.reason}")
    return errors.Unreachable(f"nothing answers at {where}: {outcome.reason}")


def _explained(
    status: int, problem: Problem, after_ns: int, *, mutates: bool
) -> errors.FairwayError:
    code, message, detail = problem.code, problem.message, problem.detail
    known = BY_CODE.get(code)
    if known is not None:
        return known(message)
    if status == 429:
        return errors.Throttled(
            message,
            retry_after_ns=after_ns,
            limit=detail.get("limit"),
            maximum=detail.get("max"),
        )
    if code == "forbidden":
        return errors.Forbidden(message, detail=detail)
    if status == 409:
        return errors.Conflict(message, code=code, detail=detail)
    if status == 404 and (kind := code.removesuffix("_not_found")) != code:
        return errors.NotFound(kind, message.partition("'")[2].rpartition("'")[0] or message)
    if 400 <= status < 500:
        return errors.InvalidRequest(message, code=code)
    return errors.OutcomeUnknown(message) if mutates else errors.FairwayError(message)


def _unexplained(response: HttpResponse, *, mutates: bool, where: str) -> errors.FairwayError:
    status = response.status
    message = f"{where} answered {status} in words that are not Fairway's"
    if status == 429:
        return errors.Throttled(message, retry_after_ns=_retry_after_ns(response) or 0)
    if status == 503:
        return errors.Unavailable(message)
    if status >= 500:
        return errors.OutcomeUnknown(message) if mutates else errors.Unavailable(message)
    if status == 401:
        return errors.Unauthorized(message)
    if status == 403:
        return errors.Forbidden(message)
    return errors.InvalidRequest(message, code="not_fairway")


def _retry_after_ns(response: HttpResponse, detail: Mapping[str, Any] | None = None) -> int | None:
    """The exact wish if there is one; the header only speaks in whole seconds."""
    exact = (detail or {}).get("retry_after_ms")
    if isinstance(exact, int | float) and exact >= 0:
        return round(exact * 1_000_000)
    text = response.headers.get("retry-after", "")
    return int(text) * SECOND_NS if text.isascii() and text.isdigit() and len(text) < 9 else None
