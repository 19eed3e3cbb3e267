"""Whether a graph may fire, as far as people and its own failures have a say. Pure."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairway.graphs.firing import OnError


class FailureAction(Enum):
    """What is done about a firing that failed."""

    RETRY = "retry"
    """Its inputs are given back and tried again after a while."""
    HALT = "halt"
    """Its inputs are given back, and nothing fires until somebody resumes."""
    DEAD_LETTER = "dead_letter"
    """Its inputs are kept aside, and the graph goes on."""


class Steering:
    """Paused by people, halted or put off by failures."""

    def __init__(self, policy: OnError, *, paused: bool) -> None:
        self.paused = paused
        self.halted: str | None = None
        """Why it stopped firing by itself, if it did."""
        self.failures = 0
        """Tries of the present inputs that failed."""
        self.retry_at_ns: int | None = None
        """When the next try is due, if one is waited for."""
        self._policy = policy

    @property
    def allows(self) -> bool:
        return not self.paused and self.halted is None and self.retry_at_ns is None

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """Go on, with a halt and what was put off as well."""
        self.paused = False
        self.halted = None
        self.failures = 0
        self.retry_at_ns = None

    def succeeded(self) -> None:
        self.failures = 0

    def failed(self, why: str, now_ns: int) -> FailureAction:
        """Count a failure, and say what becomes of it."""
        self.failures += 1
        if self.failures <= self._policy.retries:
            self.retry_at_ns = now_ns + self._policy.backoff.ceiling_ns(self.failures)
            return FailureAction.RETRY
        if self._policy.then == "halt":
            self.halted = why
            return FailureAction.HALT
        self.failures = 0
        return FailureAction.DEAD_LETTER

    def tick(self, now_ns: int) -> None:
        """Time passed: a try that is due is not waited for any more."""
        if self.retry_at_ns is not None and now_ns >= self.retry_at_ns:
            self.retry_at_ns = None
