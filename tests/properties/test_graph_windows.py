"""Batches and windows against twins that see all events at once; and the same after a crash.

After a crash a source is read again behind the marks of the windows that were used. What holds:

    by count, and by event time from one stream     both lives together give, window by window,
                                                    what one life gives; also out of order
    by event time from several streams, which       no event is in two tumbling windows, and one
    are read again in another order                 that is in none was counted as late
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.errors import InvalidConfig
from fairway.graphs.windows import (
    SECOND_NS,
    UNBOUND,
    WINDOW,
    Batch,
    Bound,
    Collected,
    Collector,
    Window,
    collector_of,
)
from tests.properties.graph_twin import slow_count_windows, slow_time_windows
from tests.properties.twins import MANY

counts = st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))
"""A length and a step."""


class Event(NamedTuple):
    """Its place in its stream, and its time in seconds."""

    stream: str
    offset: int
    at: int


@st.composite
def event_lists(draw: st.DrawFn, *, streams: str = "p", disorder: int = 0) -> list[Event]:
    """Times that rise by 0 to 9 seconds, each up to `disorder` seconds too early."""
    drawn = draw(st.lists(st.tuples(st.sampled_from(streams), st.integers(0, 9)), max_size=60))
    late = draw(st.lists(st.integers(0, disorder), min_size=60, max_size=60))
    now = draw(st.integers(-30, 30))
    offsets: Counter[str] = Counter()
    events = []
    for (stream, more), back in zip(drawn, late, strict=False):
        now += more
        offsets[stream] += 1
        events.append(Event(stream, offsets[stream], now - back))
    return events


def feed(collector: Collector, events: list[Event]) -> list[Collected]:
    given: list[Collected] = []
    for each in events:
        at_ns = (1_000 + each.at) * SECOND_NS  # of arrival: if the window does not ask the event
        key = (each.stream, each.offset)
        given += collector.due(at_ns)
        given += collector.push(each, {each.stream: each.offset}, (key,), key, at_ns)
    return given


def merged(windows: list[Collected]) -> dict[str, int]:
    marks: dict[str, int] = {}
    for window in windows:
        for stream, offset in window.marks.items():
            assert offset > marks.get(stream, -(10**18)), "marks went back"
            marks[stream] = offset
    return marks


def after(events: list[Event], marks: dict[str, int]) -> list[Event]:
    return [each for each in events if each.offset > marks.get(each.stream, 0)]


def values(windows: list[Collected]) -> list[list[Any]]:
    return [window.values for window in windows]


def by_event(length: int, step: int, lateness: int = 0) -> Window:
    return Window(seconds=length, step_s=step, at=lambda event: event.at, lateness_s=lateness)


# Twins


@given(events=event_lists(), shape=counts)
def test_windows_by_count(events: list[Event], shape: tuple[int, int]) -> None:
    collector = collector_of(Window(count=shape[0], step=shape[1]))
    given = feed(collector, events)
    assert values(given) == slow_count_windows(events, *shape)
    rest = collector.flush()
    used = {event for window in (*given, *rest) for event in window.values}
    assert used == set(events)
    assert collector.flush() == []


@given(events=event_lists(), shape=counts)
def test_windows_by_time_of_arrival(events: list[Event], shape: tuple[int, int]) -> None:
    length, step = shape
    collector = collector_of(Window(seconds=length, step_s=step))
    given = feed(collector, events)
    timed = [(1_000 + each.at, each) for each in events]
    until = timed[-1][0] if timed else 0
    assert values(given) == slow_time_windows(timed, length, step, until)
    while (deadline_ns := collector.deadline_ns()) is not None:
        assert collector.due(deadline_ns - 1) == []
        given += collector.due(deadline_ns)
    assert values(given) == slow_time_windows(timed, length, step, until + length + step)
    assert collector.depth == 0
    assert collector.late == 0


@MANY
@given(
    events=event_lists(disorder=12), shape=counts, lateness=st.integers(0, 15), flush=st.booleans()
)
def test_windows_by_event_time(
    events: list[Event], shape: tuple[int, int], lateness: int, flush: bool
) -> None:
    """Against a twin that looks at all windows anew with each event."""
    length, step = shape
    collector = collector_of(by_event(length, step, lateness))
    given = feed(collector, events)
    expected: list[list[Event]] = []
    accepted: list[Event] = []
    late = 0
    done = -(10**9)  # windows that end by then are over, whether anything came for them or not
    seen = -(10**9)
    for each in events:
        seen = max(seen, each.at)
        windows = ends_and_windows(accepted, length, step)
        expected += [window for end, window in windows if done < end <= seen - lateness]
        done = max(done, seen - lateness)
        last = max(end for end in range(each.at + 1, each.at + length + 1) if end % step == 0)
        if last <= done:
            late += 1
        else:
            accepted.append(each)
    assert values(given) == expected
    assert collector.late == late
    if flush:
        rest = [window for end, window in ends_and_windows(accepted, length, step) if end > done]
        assert values(collector.flush()) == rest
        assert collector.depth == 0


def ends_and_windows(events: list[Event], length: int, step: int) -> list[tuple[int, list[Event]]]:
    found = []
    if events:
        first = min(each.at for each in events) // step * step
        last = max(each.at for each in events)
        for end in range(first + step, last + length + step + 1, step):
            window = [each for each in events if end - length <= each.at < end]
            if window:
                found.append((end, sorted(window, key=lambda each: each.at)))
    return found


@given(events=event_lists(), size=st.integers(1, 9) | st.none(), every=st.integers(1, 20))
def test_batches(events: list[Event], size: int | None, every: int) -> None:
    collector = collector_of(Batch(size=size, every_s=every))
    given = feed(collector, events)
    expected: list[list[Event]] = []
    open_: list[Event] = []
    for each in events:
        if open_ and each.at >= open_[0].at + every:
            expected.append(open_)
            open_ = []
        open_.append(each)
        if len(open_) == size:
            expected.append(open_)
            open_ = []
    assert values(given) == expected
    assert values(collector.flush()) == ([open_] if open_ else [])
    assert collector.deadline_ns() is None


# Bytes

bounds = st.integers(1, 12)


def size_of(each: Event, keys: tuple[Any, ...] = ()) -> int:
    return each.offset % 4 + 1


def sizes(events: list[Event]) -> int:
    return sum(map(size_of, events))


def pushed(collector: Collector, each: Event, now_ns: int = 0) -> list[list[Any]]:
    return values(collector.push(each, {each.stream: each.offset}, (), None, now_ns))


@given(events=event_lists(), most=bounds)
def test_a_batch_is_given_before_it_passes_its_bytes(events: list[Event], most: int) -> None:
    collector = collector_of(Batch(every_s=3600), Bound(most, size_of))
    expected: list[list[Event]] = []
    open_: list[Event] = []
    for each in events:
        if open_ and sizes([*open_, each]) > most:
            expected.append(open_)
            open_ = []
        open_.append(each)
        if sizes(open_) >= most:
            expected.append(open_)
            open_ = []
    given: list[list[Event]] = []
    for each in events:
        given += pushed(collector, each)
        assert collector.bytes == sizes(list(collector._values)) < most
    assert given == expected
    assert values(collector.flush()) == ([open_] if open_ else [])
    assert collector.bytes == 0


@given(events=event_lists(disorder=3), shape=counts, most=bounds, by_arrival=st.booleans())
def test_a_window_of_time_that_comes_to_its_bytes_is_given_in_parts(
    events: list[Event], shape: tuple[int, int], most: int, by_arrival: bool
) -> None:
    length, step = shape
    declared = Window(seconds=length, step_s=step) if by_arrival else by_event(*shape)
    collector = collector_of(declared, Bound(most, size_of))
    given: list[list[Event]] = []
    now = 0
    for each in events:
        now = max(now, 1_000 + each.at)
        given += values(collector.due(now * SECOND_NS))
        given += pushed(collector, each, now * SECOND_NS)
        held = [one.value for one in collector._held]
        assert collector.bytes == sizes(held)
        assert collector.bytes <= most or len(held) == 1, "what passes the bound is alone"
    given += values(collector.flush())
    assert collector.bytes == 0
    for window in given:
        assert sizes(window) <= most or len(window) == 1
    if length == step:
        used = Counter(each for window in given for each in window)
        assert all(count == 1 for count in used.values()), "an event is in two windows"
        assert len(events) - len(used) == collector.late


@given(events=event_lists(), shape=counts, most=bounds)
def test_a_window_by_count_is_given_whole_whatever_its_bytes(
    events: list[Event], shape: tuple[int, int], most: int
) -> None:
    """Whoever fills it asks first whether an event fits."""
    collector = collector_of(Window(count=shape[0], step=shape[1]), Bound(most, size_of))
    given: list[list[Event]] = []
    for each in events:
        held = list(collector._values)
        assert collector.fits(each, ()) == (sizes([*held, each]) <= most)
        given += pushed(collector, each)
        assert collector.bytes == sizes(list(collector._values))
    assert given == slow_count_windows(events, *shape)


@MANY
@given(
    events=event_lists(),
    shape=counts,
    most=bounds,
    stop=st.integers(0, 60),
    used=st.integers(0, 60),
)
def test_a_crash_between_parts_by_bytes_loses_nothing(
    events: list[Event], shape: tuple[int, int], most: int, stop: int, used: int
) -> None:
    bound = Bound(most, size_of)
    for declared in (Batch(size=shape[0]), by_event(shape[0], shape[0])):
        whole = values(feed(collector_of(declared, bound), events))
        first, second = two_lives(declared, events, stop, used, bound)
        if isinstance(declared, Batch):
            assert values(first) + values(second) == whole
        assert_consumed_once(first + second, events)
        given = [each for window in values(first) + values(second) for each in window]
        assert [*dict.fromkeys(given)] == given, "an event is in two windows"
        assert given == events[: len(given)], "an event is left out"


# Crashes


def two_lives(
    declared: Window | Batch,
    events: list[Event],
    stop: int,
    used: int,
    bound: Bound = UNBOUND,
) -> tuple[list[Collected], list[Collected]]:
    """The windows of a life up to `stop` of which `used` were used; and those of the next."""
    first = feed(collector_of(declared, bound), events[:stop])
    first = first[: used % (len(first) + 1)]
    marks = merged(first)
    collector = collector_of(declared, bound)
    collector.resume(marks)
    return first, feed(collector, after(events, marks))


def assert_consumed_once(windows: list[Collected], events: list[Event]) -> None:
    keys = Counter(key for window in windows for key in window.keys)
    assert all(count == 1 for count in keys.values()), "a key is consumed once"
    marks = merged(windows)
    for each in events:
        covered = each.offset <= marks.get(each.stream, 0)
        assert covered == ((each.stream, each.offset) in keys)


@MANY
@given(
    events=event_lists(streams="pq"),
    shape=counts,
    stop=st.integers(0, 60),
    used=st.integers(0, 60),
)
def test_a_crash_changes_no_window_by_count(
    events: list[Event], shape: tuple[int, int], stop: int, used: int
) -> None:
    declared = Window(count=shape[0], step=shape[1])
    first, second = two_lives(declared, events, stop, used)
    assert values(first) + values(second) == slow_count_windows(events, *shape)
    assert_consumed_once(first + second, events)


@MANY
@given(
    events=event_lists(disorder=12),
    shape=counts,
    lateness=st.integers(0, 15),
    stop=st.integers(0, 60),
    used=st.integers(0, 60),
)
def test_a_crash_changes_no_window_by_event_time(
    events: list[Event], shape: tuple[int, int], lateness: int, stop: int, used: int
) -> None:
    """One stream, in any order: window by window as without the crash."""
    declared = by_event(*shape, lateness)
    whole = feed(collector_of(declared), events)
    first, second = two_lives(declared, events, stop, used)
    assert values(first) + values(second) == values(whole)
    assert_consumed_once(first + second, events)


@MANY
@given(
    events=event_lists(streams="pqr", disorder=8),
    length=st.integers(1, 7),
    lateness=st.sampled_from([0, 3, 10_000]),
    stop=st.integers(0, 60),
    used=st.integers(0, 60),
    seed=st.integers(0, 2**16),
)
def test_a_crash_loses_nothing_and_doubles_nothing_whatever_the_order_of_streams(
    events: list[Event], length: int, lateness: int, stop: int, used: int, seed: int
) -> None:
    declared = by_event(length, length, lateness)
    one = collector_of(declared)
    first = feed(one, events[:stop])
    first = first[: used % (len(first) + 1)]
    marks = merged(first)
    again = after(events, marks)
    random.Random(seed).shuffle(again)
    again.sort(key=lambda each: each.offset)  # rising within each stream, streams in any order
    two = collector_of(declared)
    two.resume(marks)
    second = feed(two, again) + two.flush()
    used_events = Counter(event for window in first + second for event in window.values)
    assert all(count == 1 for count in used_events.values()), "an event is in two windows"
    missing = [each for each in events if each not in used_events]
    assert len(missing) <= one.late + two.late
    if lateness == 10_000:
        assert not missing


@given(
    events=event_lists(streams="pq"),
    size=st.integers(1, 9),
    stop=st.integers(0, 60),
    used=st.integers(0, 60),
)
def test_a_crash_loses_no_batch(events: list[Event], size: int, stop: int, used: int) -> None:
    first, second = two_lives(Batch(size=size), events, stop, used)
    assert values(first) + values(second) == slow_count_windows(events, size, size)
    assert_consumed_once(first + second, events)


@given(events=event_lists(streams="pq"), shape=counts, gap=st.integers(2, 5))
def test_what_is_passed_is_consumed_with_what_came_before_it(
    events: list[Event], shape: tuple[int, int], gap: int
) -> None:
    collector = collector_of(Window(count=shape[0], step=shape[1]))
    owed: list[Event] = []
    marks: dict[str, int] = {}
    for number, each in enumerate(events):
        if number % gap == 0:
            collector.passed({each.stream: each.offset})
            continue
        owed.append(each)
        key = (each.stream, each.offset)
        for window in collector.push(each, {each.stream: each.offset}, (key,), None, 0):
            marks.update(window.marks)
            owed = [each for each in owed if (each.stream, each.offset) not in window.keys]
        for waiting in owed:
            assert waiting.offset > marks.get(waiting.stream, 0), "it would not be read again"
    assert len(collector._arrived) <= collector.depth + 1, "what is passed adds up"


# By name


def test_a_window_that_is_full_is_given_in_parts_and_a_crash_between_them_loses_nothing() -> None:
    declared = Window(seconds=10, at=lambda event: event.at, most=2)
    events = [Event("p", n, n) for n in range(1, 6)] + [Event("p", 6, 25)]
    whole = feed(collector_of(declared), events)
    assert [[each.at for each in window] for window in values(whole)] == [[1, 2], [3, 4], [5]]
    assert [window.marks for window in whole] == [
        {"p": 2, WINDOW: 0},  # what ended by then is over: its newest event is not read again
        {"p": 4},
        {"p": 5, WINDOW: 10 * SECOND_NS},
    ]
    for used in range(4):
        first, second = two_lives(declared, events, 6, used)
        assert values(first) + values(second) == values(whole)


def test_what_comes_after_a_flush_is_not_late() -> None:
    collector = collector_of(by_event(10, 10))
    assert feed(collector, [Event("p", 1, 3)]) == []
    assert values(collector.flush()) == [[Event("p", 1, 3)]]
    assert values(feed(collector, [Event("p", 2, 4), Event("p", 3, 12)])) == [[Event("p", 2, 4)]]
    assert collector.late == 0


def test_a_long_gap_within_the_lateness_costs_no_more_than_a_short_one() -> None:
    collector = collector_of(by_event(1, 1, lateness=10**9))
    feed(collector, [Event("p", 1, 0), Event("p", 2, 10**9)])
    windows = feed(collector, [Event("p", 3, 3 * 10**9)])
    assert [[each.at for each in window] for window in values(windows)] == [[0], [10**9]]


def test_late_events_do_not_add_up_behind_one_from_the_future() -> None:
    """Nothing ends its window, so none of them is consumed before it."""
    collector = collector_of(by_event(10, 10))
    assert pushed(collector, Event("p", 1, 10**9)) == []
    for offset in range(2, 1_000):
        assert pushed(collector, Event("p", offset, 5)) == []
    assert collector.late == 998
    assert len(collector._arrived) == 1
    (window,) = collector.push(Event("p", 1_000, 10**9 + 10), {"p": 1_000}, (), None, 0)
    assert window.marks["p"] == 999, "they are consumed with it"


def test_waiters_go_with_the_first_window_after_them() -> None:
    collector = collector_of(Window(count=2, step=1))
    given = feed(collector, [Event("p", n, n) for n in (1, 2, 3)])
    assert [window.waiters for window in given] == [(("p", 1), ("p", 2)), (("p", 3),)]


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: Batch(), "give one of them"),
        (lambda: Batch(size=0), "at least 1"),
        (lambda: Batch(size=11, most=10), "1 <= size <= most"),
        (lambda: Batch(every_s=0), "every_s is above 0"),
        (lambda: Window(), "a count or a length"),
        (lambda: Window(count=3, seconds=1), "a count or a length"),
        (lambda: Window(count=3, step=0), "at least 1"),
        (lambda: Window(count=3, step=4), "0 < step <= length"),
        (lambda: Window(count=0), "at least 1"),
        (lambda: Window(seconds=3, step_s=0), "above 0"),
        (lambda: Window(seconds=-1), "above 0"),
        (lambda: Window(seconds=3, step=1), "moves by step_s"),
        (lambda: Window(count=3, at=float), "are for windows of time"),
        (lambda: Window(seconds=3, lateness_s=1), "lateness_s goes with at"),
        (lambda: Window(seconds=3, at=float, lateness_s=-1), "not negative"),
        (lambda: Window(count=3, most=2), "most is at least the count"),
    ],
)
def test_declarations_that_make_no_sense(declare: Any, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        declare()
