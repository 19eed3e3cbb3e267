"""Whoever waits for what becomes of something that was pushed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairway.errors import FiringFailed

if TYPE_CHECKING:
    import asyncio

    from fairway.errors import FairwayError
    from fairway.graphs.firing import Firing


class Ticket:
    """Whoever waits for what became of a push: that it is kept, or the firing it led to."""

    __slots__ = ("asks", "future", "recorded")

    def __init__(self, future: asyncio.Future[Any] | None, *, asks: bool) -> None:
        self.future = future
        self.asks = asks
        self.recorded = False
        """Whether a record that holds it is on its way to the journal."""

    @property
    def over(self) -> bool:
        """Whether there is nobody to tell, and nothing to note, any more."""
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
        """Nothing came of it: it was left out, and that is all there is to tell."""
        self.recorded = True
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    def kept(self, recorded: None, error: BaseException | None) -> None:
        """It is in the journal: its `OnDone`."""
        if self.future is not None and not self.asks and not self.future.done():
            self.future.set_result(None)

    def failed(self, error: FairwayError) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)


class Several:
    """Whoever waits for one of the events that were collected."""

    __slots__ = ("_tickets",)

    def __init__(self, tickets: tuple[Ticket, ...]) -> None:
        self._tickets = tickets

    @property
    def recorded(self) -> bool:
        return all(ticket.recorded for ticket in self._tickets)

    @recorded.setter
    def recorded(self, value: bool) -> None:
        for ticket in self._tickets:
            ticket.recorded = value

    @property
    def over(self) -> bool:
        return all(ticket.over for ticket in self._tickets)

    def fired(self, firing: Any) -> None:
        for ticket in self._tickets:
            ticket.fired(firing)

    def passed(self) -> None:
        for ticket in self._tickets:
            ticket.passed()

    def failed(self, error: Any) -> None:
        for ticket in self._tickets:
            ticket.failed(error)
