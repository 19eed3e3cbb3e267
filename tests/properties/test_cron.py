"""Schedules against a twin that watches a clock on the wall, tick by tick.

The twin knows nothing of offsets. At each tick it looks at the reading: a schedule for every hour
runs if the reading fits; any other runs if a fitting reading was passed since the latest one seen.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from fairway.jobs.cron import MONTHS, SECOND_NS, WEEKDAYS, Cron
from fairway.jobs.schedule import SKIPPED_COUNTED_MAX, Catchup, CatchupConfig, due
from tests.properties.twins import MANY

if TYPE_CHECKING:
    from collections.abc import Iterator

CHANGES = (
    ("UTC", "2026-03-29T01:00"),
    ("Europe/Berlin", "2026-03-29T01:00"),
    ("Europe/Berlin", "2026-10-25T01:00"),
    ("America/New_York", "2026-03-08T07:00"),
    ("America/New_York", "2026-11-01T06:00"),
    ("Australia/Lord_Howe", "2026-04-04T15:00"),  # half an hour back
    ("Australia/Lord_Howe", "2026-10-03T15:30"),  # half an hour forward
    ("Africa/Cairo", "2026-04-23T22:00"),  # a day without midnight
    ("America/St_Johns", "2010-03-14T03:31"),  # a minute past midnight, forward
    ("America/St_Johns", "2010-11-07T02:31"),  # a minute past midnight, back to the day before
    ("Antarctica/Troll", "2026-10-25T01:00"),  # two hours back
    ("Pacific/Apia", "2011-12-30T10:00"),  # a day that never was
)
"""Zones, and when in UTC their clocks change."""


class Part(NamedTuple):
    """A field: how it is written, and what it means."""

    text: str
    values: frozenset[int]

    @property
    def starred(self) -> bool:
        return self.text.startswith("*")


class Expression(NamedTuple):
    second: Part
    minute: Part
    hour: Part
    day: Part
    month: Part
    weekday: Part

    @property
    def text(self) -> str:
        with_seconds = " ".join(part.text for part in self)
        return with_seconds.removeprefix("0 ") if self.second.text == "0" else with_seconds

    def fits_day(self, day: date) -> bool:
        of_month = day.day in self.day.values
        of_week = day.isoweekday() % 7 in self.weekday.values
        if self.day.starred or self.weekday.starred:
            return day.month in self.month.values and of_month and of_week
        return day.month in self.month.values and (of_month or of_week)

    def fits(self, reading: datetime) -> bool:
        return (
            reading.second in self.second.values
            and reading.minute in self.minute.values
            and reading.hour in self.hour.values
            and self.fits_day(reading.date())
        )


def every(low: int, high: int) -> Part:
    return Part("*", frozenset(range(low, high + 1)))


@st.composite
def items(draw: st.DrawFn, low: int, high: int, names: list[str]) -> Part:
    def said(value: int) -> str:
        return names[value - low] if names and draw(st.booleans()) else str(value)

    start = draw(st.integers(low, high))
    end = draw(st.integers(start, high))
    step = draw(st.integers(1, high - low + 3))
    whole = range(low, high + 1)
    kind = draw(st.sampled_from(["one", "range", "range/", "*/", "from/"]))
    if kind == "one":
        return Part(said(start), frozenset({start}))
    if kind == "range":
        return Part(f"{said(start)}-{said(end)}", frozenset(range(start, end + 1)))
    if kind == "range/":
        return Part(f"{start}-{end}/{step}", frozenset(range(start, end + 1, step)))
    if kind == "*/":
        return Part(f"*/{step}", frozenset(whole[::step]))
    return Part(f"{start}/{step}", frozenset(range(start, high + 1, step)))


@st.composite
def parts(draw: st.DrawFn, low: int, high: int, names: str = "") -> Part:
    chosen = draw(st.lists(items(low, high, names.split()), min_size=1, max_size=3))
    values = frozenset[int]().union(*(one.values for one in chosen))
    return Part(",".join(one.text for one in chosen), values)


def mostly(part: Part, *others: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
    return st.one_of(st.just(part), st.just(part), *others)


DAYS = parts(1, 31)
MONTH_PARTS = parts(1, 12, MONTHS)
# `MON/2` runs on to day 7, which is Sunday again: that is checked by hand in the unit tests.
WEEKDAY_PARTS = parts(0, 6, WEEKDAYS).filter(lambda part: not runs_on_to_seven(part))
SMALL_HOURS = st.frozensets(st.integers(0, 4), min_size=1).map(
    lambda hours: Part(",".join(map(str, hours)), hours)
)
ZERO = Part("0", frozenset({0}))


def runs_on_to_seven(part: Part) -> bool:
    return any(
        "/" in one and "-" not in one and not one.startswith("*") for one in part.text.split(",")
    )


@st.composite
def expressions(draw: st.DrawFn, *, seconds: bool) -> Expression:
    return Expression(
        draw(parts(0, 59)) if seconds else ZERO,
        draw(st.one_of(st.just(every(0, 59)), parts(0, 59))),
        draw(st.one_of(st.just(every(0, 23)), parts(0, 23), SMALL_HOURS)),
        draw(mostly(every(1, 31), DAYS)),
        draw(mostly(every(1, 12), MONTH_PARTS)),
        draw(mostly(every(0, 6), WEEKDAY_PARTS)),
    )


@cache
def readings(zone: str, change: str, around: timedelta, tick: timedelta) -> list[datetime]:
    """What a clock on the wall showed, tick by tick, around a change."""
    middle = datetime.fromisoformat(change).replace(tzinfo=UTC)
    count = 2 * around // tick
    ticks = [middle - around + number * tick for number in range(count + 1)]
    return [one.astimezone(ZoneInfo(zone)).replace(tzinfo=None) for one in ticks]


def watched(
    expression: Expression, clock: list[datetime], start_ns: int, tick: timedelta
) -> Iterator[int]:
    """When the twin runs the schedule: the first reading only tells it where the clock stands."""
    every_hour = len(expression.hour.values) == 24
    latest = clock[0]
    for number, reading in enumerate(clock):
        if every_hour:
            runs = number > 0 and expression.fits(reading)
        else:
            runs = False
            while latest < reading:
                latest += tick
                runs = runs or expression.fits(latest)
        if runs:
            yield start_ns + number * (tick // timedelta(seconds=1)) * SECOND_NS


def compare(expression: Expression, zone: str, change: str, around: timedelta, tick: int) -> None:
    step = timedelta(seconds=tick)
    middle = datetime.fromisoformat(change).replace(tzinfo=UTC)
    start_ns = int((middle - around).timestamp()) * SECOND_NS
    end_ns = int((middle + around).timestamp()) * SECOND_NS
    expected = list(watched(expression, readings(zone, change, around, step), start_ns, step))
    cron = Cron.parse(expression.text, zone)
    assert cron.between(start_ns, end_ns, 100_000) == expected
    # From anywhere, not only from one time to the next.
    for number in range(0, (end_ns - start_ns) // SECOND_NS, 997):
        from_ns = start_ns + number * SECOND_NS + 5
        coming = next((one for one in expected if one > from_ns), None)
        found = cron.after(from_ns)
        assert found == coming or (coming is None and found is not None and found > end_ns)


@given(expression=expressions(seconds=False), place=st.sampled_from(CHANGES))
def test_minutes_agree_with_a_clock_on_the_wall(
    expression: Expression, place: tuple[str, str]
) -> None:
    compare(expression, *place, timedelta(hours=15), 60)


@given(expression=expressions(seconds=True), place=st.sampled_from(CHANGES))
def test_seconds_agree_with_a_clock_on_the_wall(
    expression: Expression, place: tuple[str, str]
) -> None:
    compare(expression, *place, timedelta(minutes=75), 1)


@MANY
@given(
    day=mostly(every(1, 31), DAYS),
    month=mostly(every(1, 12), MONTH_PARTS),
    weekday=mostly(every(0, 6), WEEKDAY_PARTS),
    start=st.dates(date(1999, 1, 1), date(2110, 1, 1)),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]),
    hour=st.sampled_from(["12", "*"]),
)
def test_days_agree_with_a_calendar(
    day: Part, month: Part, weekday: Part, start: date, zone: str, hour: str
) -> None:
    expression = Expression(ZERO, ZERO, every(0, 23), day, month, weekday)
    coming = (start + timedelta(days=number) for number in range(1, 9 * 366))
    expected = next((one for one in coming if expression.fits_day(one)), None)
    if expected is None:
        return  # a leap day on a given weekday, or none at all: both have tests of their own
    cron = Cron.parse(f"0 {hour} {day.text} {month.text} {weekday.text}", zone)
    last = datetime(start.year, start.month, start.day, 23, 30, tzinfo=ZoneInfo(zone))
    found_ns = cron.after(int(last.timestamp()) * SECOND_NS)
    assert found_ns is not None
    found = datetime.fromtimestamp(found_ns // SECOND_NS, ZoneInfo(zone)).replace(tzinfo=None)
    assert found == datetime(expected.year, expected.month, expected.day, 12 if hour == "12" else 0)


START_NS = int(datetime(2026, 3, 28, tzinfo=UTC).timestamp()) * SECOND_NS


@MANY
@given(
    text=st.sampled_from(
        ["* * * * *", "*/7 1-3 * * *", "30 2 * * *", "15 * * * * *", "* * 29 3 *", "0 0 1 1 *"]
    ),
    policy=st.sampled_from(Catchup),
    runs_max=st.integers(1, 30),
    grace_s=st.integers(0, 4000),
    handled_s=st.integers(0, 3 * 86_400),
    now_s=st.integers(0, 3 * 86_400),
)
def test_catching_up_agrees_with_a_list_of_all_times(
    text: str, policy: Catchup, runs_max: int, grace_s: int, handled_s: int, now_s: int
) -> None:
    cron = Cron.parse(text, "Europe/Berlin")
    handled_ns, now_ns = START_NS + handled_s * SECOND_NS, START_NS + now_s * SECOND_NS
    grace_ns = grace_s * SECOND_NS
    config = CatchupConfig(policy=policy, runs_max=runs_max, grace_ns=grace_ns)
    owed = cron.between(handled_ns, now_ns, 100_000)
    assert cron.latest(handled_ns, now_ns) == (owed[-1] if owed else None)
    if policy is Catchup.SKIP:
        fire = [one for one in owed if now_ns - one <= grace_ns][-1:]
    else:
        fire = owed[-1 if policy is Catchup.LATEST_ONLY else -runs_max :]

    answer = due(cron, handled_ns, now_ns, config)
    assert answer.fire == tuple(fire)
    assert answer.handled_ns == (owed[-1] if owed else handled_ns)
    assert answer.next_ns == cron.after(answer.handled_ns)
    assert answer.skipped == min(len(owed) - len(fire), SKIPPED_COUNTED_MAX)
    assert due(cron, answer.handled_ns, now_ns, config).fire == ()
