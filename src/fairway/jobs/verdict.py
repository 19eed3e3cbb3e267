"""Decides what is committed for a run that ended: pure, from what the step said or raised.

the step returned      committed
a value                done, with it as the result
next, wait, spawn      the new state, and where to go on
retry                  another attempt after its delay, or failed if none is left
defer                  the same step later, no attempt used
stop                   failed
it raised              another attempt after the backoff, or failed if none is left
a result or state that cannot be encoded, a step that does not exist, an outcome that a
function cannot have: failed, with the reason; the worker goes on
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fairway.errors import InvalidRequest
from fairway.jobs.attempts import ERROR_MAX
from fairway.jobs.job import KEY_MAX, Claim, Fate, Settlement, skill_in
from fairway.jobs.outcome import Done, Next, Outcome, Retry, Spawn, Stopped, Wait
from fairway.runtime.words import kind_of
from fairway.wire.encoding import encode

if TYPE_CHECKING:
    from fairway.core.backoff import RandomSource
    from fairway.jobs.job import NewJob
    from fairway.jobs.kinds import Kind

DELAY_MAX_NS = 100 * 365 * 86_400 * 1_000_000_000
"""A hundred years: later times do not fit into every store."""
WALL_MAX_NS = (1 << 63) - 1
_NULL = b"null"


def of_return(kind: Kind, claim: Claim, state: Any, value: Any, random: RandomSource) -> Settlement:
    """What a step's return value means."""
    if not isinstance(value, Outcome):
        if kind.is_machine:
            returned = "nothing" if value is None else f"a {kind_of(value)}"
            return _failed(
                claim,
                f"step {claim.step!r} returned {returned}: a step of a machine returns"
                " an outcome, such as ctx.next(...) or ctx.done(...)",
            )
        value = Done(value)
    try:
        return _settlement(kind, claim, state, value, random)
    except (
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
        msgspec.MsgspecError,
        InvalidRequest,
    ) as error:
        return _failed(claim, f"cannot be saved: {error}")


def of_error(
    kind: Kind | None, claim: Claim, error: BaseException, error_text: str, random: RandomSource
) -> Settlement:
    """What an exception means: another attempt, or none."""
    return _again(kind, claim, None, error_text, random)


def of_cancel(claim: Claim, reason: str) -> Settlement:
    """The run ended because the job was cancelled."""
    return Settlement(claim=claim, fate=Fate.CANCELLED, error=storable(reason))


def release(claim: Claim) -> Settlement:
    """The job was not run, or shall not count as run."""
    return Settlement(claim=claim, fate=Fate.RELEASE)


def _settlement(
    kind: Kind, claim: Claim, state: Any, value: Outcome, random: RandomSource
) -> Settlement:
    if isinstance(value, Done):
        result = _NULL if value.result is None else encode(value.result)
        saved = encode(state) if kind.is_machine else None
        return Settlement(claim=claim, fate=Fate.DONE, state=saved, result=result)
    if isinstance(value, Stopped):
        failed = _failed(claim, str(value.reason))
        failed.state = encode(state) if kind.is_machine else None
        return failed
    if isinstance(value, Retry):
        saved = encode(state) if kind.is_machine else None
        if value.counts:
            reason = value.reason or "asked to be tried again"
            return _again(kind, claim, value.after_ns, reason, random, saved)
        return Settlement(
            claim=claim,
            fate=Fate.RETRY,
            step=claim.step,
            state=saved,
            delay_ns=_delay(value.after_ns or 0),
            counts=False,
        )
    if not kind.is_machine:
        name = type(value).__name__.lower()
        return _failed(claim, f"a function cannot {name}: declare it with @app.machine")
    step = value.step if isinstance(value, Next) else _then(value)
    if step not in kind.steps:
        known = ", ".join(kind.steps)
        return _failed(claim, f"there is no step {step!r} to go on with; there are {known}")
    saved = encode(state)
    skill = _skill(claim, step)
    if isinstance(value, Next):
        return Settlement(
            claim=claim,
            fate=Fate.NEXT,
            step=step,
            state=saved,
            children=tuple(order.job for order in value.children),
            skill=skill,
        )
    if isinstance(value, Wait):
        if not value.names:
            return _failed(claim, "wait needs the name of a signal")
        for name in value.names:
            _check(name, "the name of a signal")
        return Settlement(
            claim=claim,
            fate=Fate.WAIT,
            step=step,
            state=saved,
            names=value.names,
            delay_ns=_timeout(value.timeout_ns),
            skill=skill,
        )
    assert isinstance(value, Spawn)
    for order in value.children:
        _check_child(order.job)
    return Settlement(
        claim=claim,
        fate=Fate.SPAWN,
        step=step,
        state=saved,
        children=tuple(order.job for order in value.children),
        names=value.names,
        delay_ns=_timeout(value.timeout_ns),
        skill=skill,
    )


def _skill(claim: Claim, step: str) -> str | None:
    """A job that waited for those who know a step, and leaves that step, is anybody's again."""
    known = skill_in(claim.skill).step if claim.skill else None
    return None if known is None or known == step else ""


def _then(value: Outcome) -> str:
    assert isinstance(value, Wait | Spawn)
    return value.then


def _again(
    kind: Kind | None,
    claim: Claim,
    after_ns: int | None,
    reason: str,
    random: RandomSource,
    state: bytes | None = None,
) -> Settlement:
    tries = claim.attempt + claim.crashes + 1
    if tries >= claim.max_attempts:
        return _failed(claim, reason)
    if after_ns is None:
        assert kind is not None
        after_ns = kind.options.backoff.delay_ns(claim.attempt + 1, random)
    return Settlement(
        claim=claim,
        fate=Fate.RETRY,
        step=claim.step,
        state=state,
        error=_kept(reason),
        delay_ns=_delay(after_ns),
    )


def _failed(claim: Claim, reason: str) -> Settlement:
    return Settlement(claim=claim, fate=Fate.FAILED, error=_kept(reason))


def _kept(reason: str) -> str:
    """The end of it: escapes make it longer, so it is cut once more."""
    return storable(reason[-ERROR_MAX:])[-ERROR_MAX:]


def _delay(ns: int) -> int:
    """Never before now, and no later than a store can say."""
    return min(max(0, ns), DELAY_MAX_NS)


def _timeout(ns: int) -> int:
    """As `_delay`, but 0 is never and a time that has passed is at once."""
    return _delay(max(1, ns)) if ns else 0


def storable(text: str) -> str:
    """What a job said of itself, as any store takes it: one that refused it would refuse with it
    whatever else the worker has to settle, again and again."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


def _check(text: str | None, what: str) -> None:
    if text is not None and storable(text) != text:
        raise InvalidRequest(f"{what} has characters that cannot be stored: {text[:100]!r}")
    if text is not None and len(text) > KEY_MAX:
        raise InvalidRequest(f"{what} is longer than {KEY_MAX} characters: {text[:100]!r}")


def _check_child(job: NewJob) -> None:
    for what in ("queue", "tenant", "partition_key", "unique_key", "trace"):
        _check(getattr(job, what), f"the {what} of a child")
    if job.delay_ns > DELAY_MAX_NS or (job.at_wall_ns or 0) > WALL_MAX_NS:
        raise InvalidRequest("a child starts later than can be stored")
