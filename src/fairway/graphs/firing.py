"""A firing: one run of a graph, as listeners get it; and what is done about one that fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from fairway.core.backoff import BackoffConfig
from fairway.errors import InvalidConfig
from fairway.runtime.amounts import count, length_ns

if TYPE_CHECKING:
    from collections.abc import Mapping

LOG_MAX = 200
"""Firings that a graph remembers in memory."""
INJECTED = "injected"
"""The cause of a firing whose cache was replaced by command."""

Then: TypeAlias = Literal["dead_letter", "halt"]


class Firing(NamedTuple):
    """One firing, over."""

    number: int
    cause: str
    """`news`, `forced` or `injected`."""
    wall_ns: int
    duration_ns: int
    inputs: Mapping[str, Any]
    """What it was given, by source."""
    fresh: tuple[str, ...]
    """The sources that brought news."""
    outputs: Mapping[str, Any]
    """What the terminal nodes that ran returned, by name."""
    error: str | None = None
    degraded: tuple[str, ...] = ()
    """Sources whose values were old or missing."""
    attempt: int = 1

    @property
    def output(self) -> Any:
        """The one result, of a graph that has one."""
        if len(self.outputs) > 1:
            raise ValueError(f"there are several results: {', '.join(self.outputs)}")
        return next(iter(self.outputs.values()), None)


def packed(outputs: Mapping[str, Any]) -> bytes:
    """Outputs as they are recorded; what has no such form is kept as its `repr`."""
    return _pack(outputs)


_pack = msgspec.msgpack.Encoder(enc_hook=repr).encode


class DeadLetter(NamedTuple):
    """What could not be used, kept for a person to look at."""

    id: int
    wall_ns: int
    source: str
    """The source of a boundary that did not decode; empty if a firing failed."""
    reason: str
    data: Mapping[str, bytes]
    """The bytes by source: of the boundary, or of the inputs of the firing (msgpack)."""


RETRY_BACKOFF = BackoffConfig(base_ns=100_000_000, cap_ns=10_000_000_000, jitter=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnError:
    """What becomes of a firing that fails."""

    retries: int = 3
    """Further tries. Meanwhile nothing else fires; with `latest` a later try sees newer values."""
    then: Then = "dead_letter"
    """`dead_letter` keeps the inputs aside and goes on; `halt` keeps them and stops firing."""
    backoff: BackoffConfig = RETRY_BACKOFF

    def __post_init__(self) -> None:
        if self.retries < 0 or self.then not in ("dead_letter", "halt"):
            raise InvalidConfig("on_error takes retries >= 0 and then='dead_letter' or 'halt'")


def retry(times: int, *, then: Then = "dead_letter", base_s: float = 0.1) -> OnError:
    """Try again so often, then keep the inputs aside (or halt)."""
    count("how often a firing is tried again", times, least=0)
    base_ns = length_ns("base_s of retry", base_s)
    backoff = BackoffConfig(base_ns=base_ns, cap_ns=max(10_000_000_000, base_ns), jitter=0.0)
    return OnError(retries=times, then=then, backoff=backoff)


def on_error_of(given: OnError | Then) -> OnError:
    if isinstance(given, OnError):
        return given
    if given not in ("dead_letter", "halt"):
        raise InvalidConfig(f"on_error is retry(n), 'dead_letter' or 'halt', not {given!r}")
    return OnError(retries=0, then=given)
