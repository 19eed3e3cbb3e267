"""Decides whether a request is tried again, and when. Waiting and asking are the shell's.

A refusal (429, and 503 unless it says `outcome_unknown`) changed nothing and is always tried again.
A request that may have arrived without an answer is repeated only if a repeat changes nothing:
reads, PUT and DELETE are so, and an append is by its idempotency key. Whatever the reason, the end
of the deadline ends it; if any attempt may have been carried out, the error is `OutcomeUnknown`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias, TypeVar

from fairway.client.problems import HttpResponse, NoResponse, no_response_error, refusal_of
from fairway.core.amounts import wrong_share, wrong_whole
from fairway.core.backoff import BackoffConfig
from fairway.errors import (
    Closing,
    FairwayError,
    Fenced,
    InvalidConfig,
    OutcomeUnknown,
    Throttled,
    TryLater,
    Unreachable,
    WriteFailed,
)

if TYPE_CHECKING:
    from fairway.client.protocol import Call
    from fairway.core.backoff import RandomSource

T = TypeVar("T")
AGAIN = (TryLater, WriteFailed, Fenced, OutcomeUnknown)
"""What may pass by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryConfig:
    """How patient a client is."""

    deadline_ns: int = 30_000_000_000
    """How long one call is tried in all. Raising it rides out longer outages; 0 tries once."""
    base_ns: int = 50_000_000
    """The wait after the first failure; it doubles. Raising it spares a server that struggles."""
    cap_ns: int = 2_000_000_000
    """The longest wait of ours. Raising it notices a server's return later."""
    jitter: float = 0.5
    """The share of a wait that chance may take away. Raising it spreads a herd."""
    wait_for_server: bool = True
    """Whether a server that has never answered is waited for, rather than reported at once."""

    def __post_init__(self) -> None:
        for name, least in (("deadline_ns", 0), ("base_ns", 1), ("cap_ns", 1)):
            if wrong := wrong_whole(name, getattr(self, name), least=least):
                raise InvalidConfig(wrong)
        if wrong := wrong_share("jitter", self.jitter):
            raise InvalidConfig(wrong)
        if self.base_ns > self.cap_ns:
            raise InvalidConfig("base_ns is not more than cap_ns")

    def wait_ns(
        self,
        failures: int,
        source: RandomSource,
        *,
        asked_ns: int | None = None,
        cap_ns: int | None = None,
    ) -> int:
        """The wait after that many failures in a row.

        Never less than the server asked for, and then some: clients that were refused together
        are told the same, and must not come back together.
        """
        backoff = self._backoff(max(cap_ns if cap_ns is not None else self.cap_ns, self.base_ns))
        delay_ns = backoff.delay_ns(failures, source)
        if asked_ns is None:
            return delay_ns
        return asked_ns + backoff.ceiling_ns(failures) - delay_ns

    def _backoff(self, cap_ns: int) -> BackoffConfig:
        return BackoffConfig(base_ns=self.base_ns, cap_ns=cap_ns, jitter=self.jitter)


class Success(NamedTuple, Generic[T]):
    """It worked."""

    value: T


class Again(NamedTuple):
    """Ask once more, after a wait."""

    after_ns: int


class Fail(NamedTuple):
    """It is over."""

    error: FairwayError


RetryDecision: TypeAlias = Success[T] | Again | Fail


class Attempts(Generic[T]):
    """The attempts of one call."""

    def __init__(
        self,
        call: Call[T],
        config: RetryConfig,
        source: RandomSource,
        now_ns: int,
        *,
        where: str,
        met: bool,
    ) -> None:
        self._call = call
        self._config = config
        self._source = source
        self._where = where
        self._met = met
        self._ends_ns = now_ns + config.deadline_ns + call.wait_ns
        self._failures = 0
        self._in_doubt: str | None = None  # why an attempt may have been carried out

    def decide(self, outcome: HttpResponse | NoResponse, now_ns: int) -> RetryDecision[T]:
        """What to do about what came back, if anything did."""
        call = self._call
        if isinstance(outcome, NoResponse):
            return self._unanswered(outcome, now_ns)
        self._met = True
        if outcome.status in call.good:
            return Success(call.decode(outcome.body))
        error, asked_ns = refusal_of(outcome, mutates=call.mutates, where=self._where)
        if isinstance(error, OutcomeUnknown):
            return self._doubt(error, now_ns, asked_ns)
        if not isinstance(error, AGAIN):
            return Fail(error)
        return self._again(error, now_ns, asked_ns)

    def _unanswered(self, outcome: NoResponse, now_ns: int) -> RetryDecision[T]:
        error = no_response_error(outcome, where=self._where)
        if not outcome.sent:
            if not self._met and not self._config.wait_for_server:
                return Fail(error)
            return self._again(error, now_ns)
        self._met = True
        if self._call.mutates:
            return self._doubt(OutcomeUnknown(str(error)), now_ns)
        return self._again(error, now_ns)

    def _doubt(
        self, error: OutcomeUnknown, now_ns: int, asked_ns: int | None = None
    ) -> RetryDecision[T]:
        if not self._call.repeatable:
            return Fail(error)
        self._in_doubt = str(error)
        return self._again(error, now_ns, asked_ns)

    def _again(
        self, error: FairwayError, now_ns: int, asked_ns: int | None = None
    ) -> RetryDecision[T]:
        self._failures += 1
        wait_ns = self._config.wait_ns(self._failures, self._source, asked_ns=asked_ns)
        if now_ns + wait_ns < self._ends_ns:
            return Again(wait_ns)
        if self._in_doubt is not None and not isinstance(error, OutcomeUnknown):
            error = OutcomeUnknown(f"{self._in_doubt}; then: {error}")
        return Fail(error)


class WatchAttempts:
    """The attempts of one watch: as many as it takes, once it has worked."""

    def __init__(self, config: RetryConfig, source: RandomSource, now_ns: int) -> None:
        self.retry_ms: int | None = None
        """What the server's `retry:` says: it is the longest wait, in place of our own."""
        self._config = config
        self._source = source
        self._ends_ns: int | None = now_ns + config.deadline_ns
        self._failures = 0

    def worked(self) -> None:
        """Something came that a broken server would not have sent."""
        self._ends_ns = None
        self._failures = 0

    def opened(self) -> None:
        """The watch exists. From now on it is resumed, however long that takes."""
        self._ends_ns = None

    def failed(self, error: FairwayError, now_ns: int, *, met: bool) -> Again | Fail:
        """What to do about an attempt that failed, or a stream that ended."""
        if not isinstance(error, AGAIN):
            return Fail(error)
        absent = isinstance(error, Unreachable) and self._ends_ns is not None and not met
        if absent and not self._config.wait_for_server:
            return Fail(error)
        self._failures += 1
        asked_ns = error.retry_after_ns if isinstance(error, Throttled) else None
        cap_ns = self.retry_ms * 1_000_000 if self.retry_ms is not None else None
        wait_ns = self._config.wait_ns(
            self._failures, self._source, asked_ns=asked_ns, cap_ns=cap_ns
        )
        if self._ends_ns is not None and now_ns + wait_ns >= self._ends_ns:
            return Fail(error)
        return Again(wait_ns)


def ended(where: str) -> Closing:
    """What it means that a stream came to its end: the server closes, or dropped us."""
    return Closing(f"{where} ended the stream")
