"""Collects events into lists: batches, and tumbling and sliding windows. Pure.

`push` takes an event and returns the windows that it completes; `due` those that time completes.
How far the source is consumed once a window is, is said by the marks that come with it: an event
that is still collected is not consumed, so after a crash it is read again, and needs no record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fairway.errors import InvalidConfig, InvalidRequest
from fairway.runtime.amounts import count, length_ns
from fairway.runtime.usercode import reraise_interrupt
from fairway.runtime.words import named

if TYPE_CHECKING:
    from fairway.graphs.boundary import Marks

SECOND_NS = 1_000_000_000
COLLECTED_MAX = 10_000

Moment: TypeAlias = Callable[[Any], float]
"""The time of an event in seconds, as it says itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Events in lists. A list is given on whichever comes first."""

    size: int | None = None
    """So many events. Raising it makes firings rarer."""
    every_s: float | None = None
    """So long after its first event. Raising it makes firings rarer and later."""
    after_firing: bool = False
    """When a firing of the graph is over, what came meanwhile."""
    most: int = COLLECTED_MAX
    """Events collected at most, whatever else is asked; the bytes of them are bound by the
    `capacity_bytes` of the source."""

    def __post_init__(self) -> None:
        if self.size is None and self.every_s is None and not self.after_firing:
            raise InvalidConfig("a batch ends by size, every_s or after_firing: give one of them")
        size = 1 if self.size is None else count("the size of a batch", self.size)
        count("most", self.most)
        if self.most < size:
            raise InvalidConfig("a batch takes 1 <= size <= most")
        if self.every_s is not None:
            length_ns("every_s", self.every_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Windows of a count of events or of time. With a step below its length it slides.

    By time, a window is the events of `seconds` up to its end, and ends are multiples of the step.
    Time is that of arrival, or what `at` says of each event: then a window is given when an event
    from `lateness_s` beyond its end is seen. It is given once: what comes for it later still is
    counted and left out. Windows without events are not given; they end all the same.
    """

    count: int | None = None
    step: int | None = None
    """Events between two windows; the count if not given."""
    seconds: float | None = None
    step_s: float | None = None
    """Seconds between two windows; the length if not given."""
    at: Moment | None = None
    lateness_s: float = 0.0
    most: int = COLLECTED_MAX
    """Events collected at most: a window of time that holds more is given in parts, as is one
    that comes to the `capacity_bytes` of the source."""

    def __post_init__(self) -> None:
        if (self.count is None) == (self.seconds is None):
            raise InvalidConfig("a window has a count or a length in seconds")
        for what, number in (("count", self.count), ("step", self.step), ("most", self.most)):
            if number is not None:
                count(f"the {what} of a window", number)
        for what, seconds in (("seconds", self.seconds), ("step_s", self.step_s)):
            if seconds is not None:
                length_ns(f"{what} of a window", seconds)
        length_ns("lateness_s", self.lateness_s, zero=True)
        if self.count is not None and (
            self.step_s is not None or self.at is not None or self.lateness_s
        ):
            raise InvalidConfig("step_s, at and lateness_s are for windows of time")
        if self.seconds is not None and self.step is not None:
            raise InvalidConfig("a window of time moves by step_s")
        if self.lateness_s and self.at is None:
            raise InvalidConfig("lateness_s goes with at: by time of arrival nothing is late")
        length: float = self.count if self.count is not None else self.seconds or 0
        step = self.step if self.count is not None else self.step_s
        if not 0 < (length if step is None else step) <= length:
            raise InvalidConfig("a window takes 0 < step <= length")
        if self.lateness_s < 0 or self.most < (self.count or 1):
            raise InvalidConfig("lateness_s is not negative, and most is at least the count")


WINDOW = "~window"
"""The mark of a window of time: where it ended. No window that is given later ends before it."""


class Collected(NamedTuple):
    """A window that is complete."""

    values: list[Any]
    marks: Marks
    keys: tuple[Any, ...]
    waiters: tuple[Any, ...]


class Bound(NamedTuple):
    """The bytes that may be collected, and how an event and its keys count."""

    most: int
    size_of: Callable[[Any, tuple[Any, ...]], int]


UNBOUND = Bound(1, lambda value, keys: 0)


class _Arrived(NamedTuple):
    """An event, in order of arrival, until no window to come needs it."""

    at_ns: int
    marks: Marks
    keys: tuple[Any, ...]


_BEFORE_ALL = _Arrived(-(2**63), {}, ())  # needed by no window


class Collector:
    """What all of them have in common: what arrived and is not consumed, and who waits for it."""

    overlaps = False
    """Whether the event that completes a window is part of a later one, too."""

    def __init__(self, bound: Bound = UNBOUND) -> None:
        self.bound = bound
        self.bytes = 0
        """The size of the events that are held."""
        self.late = 0
        """Events that came after their window."""
        self._arrived: deque[_Arrived] = deque()
        self._waiters: list[Any] = []

    def push(
        self, value: Any, marks: Marks, keys: tuple[Any, ...], waiter: Any, now_ns: int
    ) -> list[Collected]:
        """Collect an event; the windows it completes."""
        raise AssertionError("each kind collects in its own way")

    def check(self, value: Any) -> None:
        """Raise `InvalidRequest` if an event cannot be collected."""

    def passed(self, marks: Marks) -> None:
        """The source went on without an event: consumed with what came before, and not sooner."""
        if self._arrived:
            last = self._arrived[-1]
            self._arrived[-1] = last._replace(marks={**last.marks, **marks})
        else:
            self._arrived.append(_BEFORE_ALL._replace(marks=marks))

    def due(self, now_ns: int) -> list[Collected]:
        """The windows that time completed by now."""
        return []

    def deadline_ns(self) -> int | None:
        """When time completes the next one."""
        return None

    def flush(self) -> list[Collected]:
        """What was collected and not given yet, now."""
        raise AssertionError("each kind flushes in its own way")

    def resume(self, marks: Marks) -> None:
        """Begin after what was consumed before a restart."""

    @property
    def depth(self) -> int:
        """How many events are held."""
        raise AssertionError("each kind knows what it holds")

    def fits(self, value: Any, keys: tuple[Any, ...]) -> bool:
        """Whether an event may be collected now: else it would pass the bytes, and giving a part
        would be wrong."""
        return True

    def _wait(self, at_ns: int, marks: Marks, keys: tuple[Any, ...], waiter: Any) -> None:
        self._arrived.append(_Arrived(at_ns, marks, keys))
        if waiter is not None:
            self._waiters.append(waiter)

    def _give(self, values: list[Any], before_ns: int) -> Collected:
        """A window, and with it what arrived before anything that a later one needs."""
        marks: Marks = {}
        keys: list[Any] = []
        while self._arrived and self._arrived[0].at_ns < before_ns:
            _, its_marks, its_keys = self._arrived.popleft()
            marks.update(its_marks)
            keys += its_keys
        waiters, self._waiters = tuple(self._waiters), []
        return Collected(values, marks, tuple(keys), waiters)


class Batching(Collector):
    def __init__(self, batch: Batch, bound: Bound = UNBOUND) -> None:
        super().__init__(bound)
        self.batch = batch
        self._size = min(batch.size or batch.most, batch.most)
        self._every_ns = round((batch.every_s or 0) * SECOND_NS)
        self._values: list[Any] = []
        self._first_ns = 0

    @property
    def depth(self) -> int:
        return len(self._values)

    def push(
        self, value: Any, marks: Marks, keys: tuple[Any, ...], waiter: Any, now_ns: int
    ) -> list[Collected]:
        size = self.bound.size_of(value, keys)
        given = self.flush() if self.bytes + size > self.bound.most else []
        self._wait(0, marks, keys, waiter)
        if not self._values:
            self._first_ns = now_ns
        self._values.append(value)
        self.bytes += size
        if len(self._values) >= self._size or self.bytes >= self.bound.most:
            given += self.flush()
        return given

    def due(self, now_ns: int) -> list[Collected]:
        deadline_ns = self.deadline_ns()
        return self.flush() if deadline_ns is not None and now_ns >= deadline_ns else []

    def deadline_ns(self) -> int | None:
        return self._first_ns + self._every_ns if self._every_ns and self._values else None

    def flush(self) -> list[Collected]:
        if not self._values:
            return []
        values, self._values = self._values, []
        self.bytes = 0
        return [self._give(values, 1)]


class CountWindow(Collector):
    """Events are numbered as they come; a number takes the place of their time.

    It is given whole or not at all: what would pass its bytes before its count does not fit.
    """

    def __init__(self, window: Window, bound: Bound = UNBOUND) -> None:
        super().__init__(bound)
        assert window.count is not None
        self._count = window.count
        self._step = window.step or window.count
        self.overlaps = self._step < self._count
        self._values: deque[Any] = deque()
        self._sizes: deque[int] = deque()
        self._number = 0
        self._fresh = 0  # events that no window held yet

    @property
    def depth(self) -> int:
        return len(self._values)

    def fits(self, value: Any, keys: tuple[Any, ...]) -> bool:
        return self.bytes + self.bound.size_of(value, keys) <= self.bound.most

    def push(
        self, value: Any, marks: Marks, keys: tuple[Any, ...], waiter: Any, now_ns: int
    ) -> list[Collected]:
        self._number += 1
        self._wait(self._number, marks, keys, waiter)
        self._values.append(value)
        self._sizes.append(self.bound.size_of(value, keys))
        self.bytes += self._sizes[-1]
        self._fresh += 1
        return [self._whole()] if len(self._values) >= self._count else []

    def flush(self) -> list[Collected]:
        return [self._whole()] if self._fresh else []

    def _whole(self) -> Collected:
        values = list(self._values)
        self._fresh = 0
        for _ in range(min(self._step, len(self._values))):  # the next one begins after these
            self._values.popleft()
            self.bytes -= self._sizes.popleft()
        return self._give(values, self._number - len(self._values) + 1)


class _Held(NamedTuple):
    value: Any
    at_ns: int
    size: int


class TimeWindow(Collector):
    def __init__(self, window: Window, bound: Bound = UNBOUND) -> None:
        super().__init__(bound)
        assert window.seconds is not None
        self._length_ns = round(window.seconds * SECOND_NS)
        self._step_ns = round((window.step_s or window.seconds) * SECOND_NS)
        self._late_ns = round(window.lateness_s * SECOND_NS)
        self._most = window.most
        self._at = window.at
        self._held: deque[_Held] = deque()
        self._closed_ns: int | None = None  # where the last window ended that is over
        self._marked_ns: int | None = None  # what was last said of that in a mark
        self._end_ns: int | None = None  # of the window that is being collected
        self._seen_ns: int | None = None  # the latest moment of any event

    @property
    def depth(self) -> int:
        return len(self._held)

    def push(
        self, value: Any, marks: Marks, keys: tuple[Any, ...], waiter: Any, now_ns: int
    ) -> list[Collected]:
        at_ns = now_ns if self._at is None else self._moment(value)
        self._seen_ns = at_ns if self._seen_ns is None else max(self._seen_ns, at_ns)
        # Before the event is noted: it is no part of what it closes, and is not consumed with it.
        given = self._close(self._seen_ns - self._late_ns)
        if at_ns < self._begin_ns:
            self.late += 1
            if keys or waiter is not None or not self._arrived:
                self._wait(_BEFORE_ALL.at_ns, marks, keys, waiter)
            else:  # the same, and however many there are they take up no room
                self.passed(marks)
            return given
        size = self.bound.size_of(value, keys)
        if len(self._held) >= self._most or self.bytes + size > self.bound.most:
            # Not refused, as by a source that is full: by event time it is a later event that ends
            # a window, and that would never be taken in.
            given += self.flush()
        self._wait(at_ns, marks, keys, waiter)
        end_ns = (at_ns // self._step_ns + 1) * self._step_ns
        if self._closed_ns is not None:
            end_ns = max(end_ns, self._closed_ns + self._step_ns)
        self._end_ns = end_ns if self._end_ns is None else min(self._end_ns, end_ns)
        place = len(self._held)
        while place and self._held[place - 1].at_ns > at_ns:
            place -= 1
        self._held.insert(place, _Held(value, at_ns, size))
        self.bytes += size
        return given

    def check(self, value: Any) -> None:
        if self._at is not None:
            self._moment(value)

    def _moment(self, value: Any) -> int:
        assert self._at is not None
        try:
            return round(self._at(value) * SECOND_NS)
        except BaseException as error:
            reraise_interrupt(error)
            raise InvalidRequest(f"at failed: {named(error)}") from error

    @property
    def _begin_ns(self) -> int:
        """Where the next window begins: what is before that is late."""
        if self._closed_ns is None:
            return _BEFORE_ALL.at_ns
        return self._closed_ns + self._step_ns - self._length_ns

    def due(self, now_ns: int) -> list[Collected]:
        return self._close(now_ns) if self._at is None else []

    def deadline_ns(self) -> int | None:
        return self._end_ns if self._at is None else None

    def flush(self) -> list[Collected]:
        # These windows have not ended: what still comes for them is not late, and is given as
        # another part. So where they end is no mark.
        given: list[Collected] = []
        while self._end_ns is not None:
            given += self._close_one()
        if given and self._at is not None and self._closed_ns is not None:
            given[:1] = [self._marked(given[0], self._closed_ns)]
        return given

    def resume(self, marks: Marks) -> None:
        if self._at is not None:  # times of arrival are new ones after a restart
            self._closed_ns = self._marked_ns = marks.get(WINDOW)

    def _close(self, now_ns: int) -> list[Collected]:
        given = []
        while self._end_ns is not None and now_ns >= self._end_ns:
            end_ns = self._end_ns
            given += [self._marked(whole, end_ns) for whole in self._close_one()]
        # Those that nothing came for have ended, too. That needs no mark yet: what is newest of
        # all that was seen is held, and is read again after a crash.
        closed_ns = now_ns // self._step_ns * self._step_ns
        if self._closed_ns is None or closed_ns > self._closed_ns:
            self._closed_ns = closed_ns
        return given

    def _marked(self, whole: Collected, end_ns: int) -> Collected:
        if self._marked_ns is not None and end_ns <= self._marked_ns:
            return whole
        self._marked_ns = end_ns
        return whole._replace(marks={**whole.marks, WINDOW: end_ns})

    def _close_one(self) -> list[Collected]:
        """The window that ends next, if anything is in it; what no later one needs goes."""
        assert self._end_ns is not None
        end_ns = self._end_ns
        values = [held.value for held in self._held if held.at_ns < end_ns]
        begin_ns = end_ns + self._step_ns - self._length_ns  # of the next window
        while self._held and self._held[0].at_ns < begin_ns:
            self.bytes -= self._held.popleft().size
        self._end_ns = None
        if self._held:  # the next one that holds any, however long that is
            first_ns = (self._held[0].at_ns // self._step_ns + 1) * self._step_ns
            self._end_ns = max(end_ns + self._step_ns, first_ns)
        return [self._give(values, begin_ns)] if values else []


def collector_of(declared: Batch | Window, bound: Bound = UNBOUND) -> Collector:
    """What collects as declared."""
    if isinstance(declared, Batch):
        return Batching(declared, bound)
    kind = CountWindow if declared.count is not None else TimeWindow
    return kind(declared, bound)
