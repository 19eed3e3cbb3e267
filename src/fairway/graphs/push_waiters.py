"""The callers who wait for what becomes of what they pushed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairway.errors import FiringFailed

if TYPE_CHECKING:
    import asyncio

    from fairway.errors import FairwayError
    from fairway.graphs.firing import Firing


class PushWaiter:
    """A caller who waits until a push is kept, or for the firing that it led to."""

    __slots__ = ("asks", "future", "recorded")

    def __init__(self, future: asyncio.Future[Any] | None, *, asks: bool) -> None:
        self.future = future
        self.asks = asks
        self.recorded = False
        """Whether a record that holds it is on its way to the journal."""

    @property
    def over(self) -> bool:
        """Whether nobody waits, and nothing is to be recorded, any more."""
        if self.future is not None and self.future.done():
            return True
        return self.recorded and not self.asks

    def fired(self, firing: Firing) -> None:
        future = self.future
        if future is None or future.done():
            return
        if firing.error is None or not self.asks:
            future.set_result(firing)
        else:
            future.set_exception(FiringFailed(firing, "its inputs are among the dead letters"))

    def passed(self) -> None:
        """Nothing came of it: it was left out, and its caller gets None."""
        self.recorded = True
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    def kept(self, recorded: None, error: BaseException | None) -> None:
        """It is in the journal: its `OnDone`."""
        if self.future is not None and not self.asks and not self.future.done():
            self.future.set_result(None)

    def dropped(self, why: FairwayError) -> None:
        """Newer ones took its place. Whoever asks is told, since no firing comes of it; but the
        push was accepted, and its caller waits on until the record of it is durable."""
        if self.asks:
            self.failed(why)

    def failed(self, error: FairwayError) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)


class PushWaiters:
    """The callers who wait for events that were collected into one batch or window."""

    __slots__ = ("_waiters",)

    def __init__(self, waiters: tuple[PushWaiter, ...]) -> None:
        self._waiters = waiters

    @property
    def recorded(self) -> bool:
        return all(waiter.recorded for waiter in self._waiters)

    @recorded.setter
    def recorded(self, value: bool) -> None:
        for waiter in self._waiters:
            waiter.recorded = value

    @property
    def over(self) -> bool:
        return all(waiter.over for waiter in self._waiters)

    def fired(self, firing: Any) -> None:
        for waiter in self._waiters:
            waiter.fired(firing)

    def passed(self) -> None:
        for waiter in self._waiters:
            waiter.passed()

    def dropped(self, why: FairwayError) -> None:
        for waiter in self._waiters:
            waiter.dropped(why)

    def failed(self, error: Any) -> None:
        for waiter in self._waiters:
            waiter.failed(error)
