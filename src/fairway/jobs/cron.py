"""Cron expressions: the exact instants at which a schedule is due, in any time zone.

Written here because no library keeps one rule when clocks change: cronsim 2.8 drops its own where
there are seconds or the minute is a star, and croniter 6.2 runs a repeated hour twice.

**Fields.** `minute hour day-of-month month day-of-week`, or six with seconds in front. A field is a
list (`1,15`) of values, ranges (`9-17`) and steps (`*/15`, `9-17/2`, `5/10` from 5 on); months and
days of the week have names (`JAN`, `MON`), and Sunday is 0 or 7. As in every cron, a schedule that
restricts both days (neither field begins with a star) is due when *either* fits, otherwise both
must. Or one word: `@hourly`, `@daily` or `@midnight`, `@weekly`, `@monthly`, `@yearly`.

**When clocks change.** A schedule that names hours is a list of times of day, each run once: one
that is skipped in spring runs at the first instant after the gap (several skipped ones run there
together, once), and one that comes twice in autumn runs the first time only. A schedule for every
hour (`*/15 * * * *`) goes by what the clock shows: it runs in both passes of a repeated hour, and
does not run for an hour that never was, so its real intervals stay what they are.
"""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from types import MappingProxyType
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fairway.errors import InvalidConfig
from fairway.runtime.words import brief

SECOND_NS: Final = 1_000_000_000
DAY: Final = 86_400
WEEK: Final = 7 * DAY

ALIASES: Final = MappingProxyType(
    {
        "@hourly": "0 * * * *",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@weekly": "0 0 * * 0",
        "@monthly": "0 0 1 * *",
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
    }
)

_UTC_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
# Three days inside what a date can hold, so that no offset leads out of it.
_FIRST: Final = (date.min.toordinal() - _EPOCH_DAY + 3) * DAY
_LAST_DAY: Final = date.max.toordinal() - 3
_LAST: Final = (_LAST_DAY - _EPOCH_DAY + 1) * DAY


class Field(NamedTuple):
    """One field of an expression: what it may say."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


MONTHS: Final = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"
WEEKDAYS: Final = "SUN MON TUE WED THU FRI SAT"
FIELDS: Final = (
    Field("second", 0, 59),
    Field("minute", 0, 59),
    Field("hour", 0, 23),
    Field("day-of-month", 1, 31),
    Field("month", 1, 12, tuple(MONTHS.split())),
    Field("day-of-week", 0, 7, tuple(WEEKDAYS.split())),
)


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed schedule. Every one is due again and again, until the calendar ends in 9999."""

    text: str
    zone: str
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    """Sunday is 0."""
    either_day: bool
    """Whether one of the two day fields is enough."""
    tz: tzinfo

    def __str__(self) -> str:
        return f"cron {self.text}, {self.zone}"

    @classmethod
    def parse(cls, text: str, zone: str = "UTC") -> Cron:
        """Read an expression; `InvalidConfig` names the field that is wrong, and why."""
        parts = _expanded(text).upper().split()
        if len(parts) == 5:
            parts.insert(0, "0")
        if len(parts) != 6:
            raise InvalidConfig(f"cron {text!r}: {len(parts)} fields; there must be 5 or 6")
        seconds, minutes, hours, days, months, weekdays = (
            _values(text, field, part) for field, part in zip(FIELDS, parts, strict=True)
        )
        either_day = not parts[3].startswith("*") and not parts[5].startswith("*")
        if not either_day and not any(_longest(month) >= days[0] for month in months):
            raise InvalidConfig(
                f"cron {text!r}: day-of-month {parts[3]!r}: month {parts[4]!r} has no such day"
            )
        return cls(
            text=text,
            zone=zone,
            seconds=seconds,
            minutes=minutes,
            hours=hours,
            days=days,
            months=months,
            weekdays=tuple(sorted({day % 7 for day in weekdays})),
            either_day=either_day,
            tz=time_zone(f"cron {text!r}", zone),
        )

    def after(self, wall_ns: int) -> int | None:
        """The next time strictly after `wall_ns`; None at the end of the calendar."""
        now = min(max(wall_ns // SECOND_NS, _FIRST), _LAST)
        every_hour = len(self.hours) == 24
        found = self._reading_from(now + 1) if every_hour else self._time_of_day_after(now)
        return None if found is None else found * SECOND_NS

    def between(self, start_ns: int, end_ns: int, limit: int) -> list[int]:
        """The times after `start_ns`, up to and including `end_ns`; the first `limit` of them."""
        found: list[int] = []
        due_ns = self.after(start_ns)
        while due_ns is not None and due_ns <= end_ns and len(found) < limit:
            found.append(due_ns)
            due_ns = self.after(due_ns)
        return found

    def latest(self, start_ns: int, end_ns: int) -> int | None:
        """The last time after `start_ns`, up to and including `end_ns`.

        Takes a number of steps that grows with the logarithm of the span, however many times are
        in it.
        """
        if not self._due(start_ns, end_ns):
            return None
        # Back from the end in growing strides to a moment with a time before the end; then halve
        # what lies between until only one time is left.
        low_ns = high_ns = end_ns
        stride_ns = SECOND_NS
        while not self._due(low_ns, end_ns):
            high_ns = low_ns
            low_ns = end_ns - stride_ns
            stride_ns *= 2
        while True:
            found_ns = self.after(low_ns)
            assert found_ns is not None
            if not self._due(found_ns, end_ns):
                return found_ns
            middle_ns = (low_ns + high_ns) // 2
            if self._due(middle_ns, end_ns):
                low_ns = middle_ns
            else:
                high_ns = middle_ns

    def _due(self, start_ns: int, end_ns: int) -> bool:
        due_ns = self.after(start_ns)
        return due_ns is not None and due_ns <= end_ns

    # Below, an *instant* is in seconds of UTC since 1970, and a *reading* is what the clock on the
    # wall shows, in seconds as if it were UTC.

    def _time_of_day_after(self, instant: int) -> int | None:
        """Each matching reading once: where it comes first, or where the gap over it ends."""
        offset = self._offset(instant)
        reading = instant + offset
        first_offset = self._offset_of(reading, fold=0)
        if first_offset > offset:
            # The second pass of a repeated hour: all its readings have had their turn, and are
            # passed over in one go rather than one by one.
            shift = self._shift(reading - first_offset, instant)
            reading = shift + first_offset - 1
        while (match := self._match(reading + 1)) is not None:
            if (found := self._first_instant(match)) > instant:
                return found
            reading = match
        return None

    def _reading_from(self, instant: int) -> int | None:
        """The first instant from this one on at which the clock shows a matching reading."""
        while (match := self._match(instant + (offset := self._offset(instant)))) is not None:
            target = probe = match - offset
            # A week at a time: in no zone do two changes of the clock cancel out within one.
            while instant < target:
                probe = min(instant + WEEK, target)
                if self._offset(probe) != offset:
                    break
                instant = probe
            else:
                return target
            instant = self._shift(instant, probe)
        return None

    def _first_instant(self, reading: int) -> int:
        """When the clock first shows `reading`, or the first instant after the gap over it."""
        before = self._offset_of(reading, fold=0)
        after = self._offset_of(reading, fold=1)
        if before < after:
            return self._shift(reading - after, reading - before)
        return reading - before

    def _shift(self, before: int, after: int) -> int:
        """The first instant after a change of the clock that lies between the two."""
        offset = self._offset(before)
        while after - before > 1:
            middle = (before + after) // 2
            if self._offset(middle) == offset:
                before = middle
            else:
                after = middle
        return after

    def _offset(self, instant: int) -> int:
        local = (_UTC_EPOCH + timedelta(seconds=instant)).astimezone(self.tz)
        return _whole(local.utcoffset())

    def _offset_of(self, reading: int, *, fold: int) -> int:
        local = (_LOCAL_EPOCH + timedelta(seconds=reading)).replace(tzinfo=self.tz, fold=fold)
        return _whole(local.utcoffset())

    def _match(self, reading: int) -> int | None:
        """The first reading from this one on that fits all fields."""
        start, second = divmod(reading, DAY)
        start += _EPOCH_DAY
        while (day := self._day_from(start)) is not None:
            time = self._time_from(second if day == start else 0)
            if time is not None:
                return (day - _EPOCH_DAY) * DAY + time
            start, second = day + 1, 0
        return None

    def _day_from(self, ordinal: int) -> int | None:
        while ordinal <= _LAST_DAY:
            day = date.fromordinal(ordinal)
            if day.month not in self.months:
                ordinal += monthrange(day.year, day.month)[1] - day.day + 1
            elif self._fits(day):
                return ordinal
            else:
                ordinal += 1
        return None

    def _fits(self, day: date) -> bool:
        of_month = day.day in self.days
        of_week = day.isoweekday() % 7 in self.weekdays
        return of_month or of_week if self.either_day else of_month and of_week

    def _time_from(self, second_of_day: int) -> int | None:
        """The first matching second of a day from this one on."""
        start = (second_of_day // 3600, second_of_day // 60 % 60, second_of_day % 60)
        for hour in self.hours:
            if hour < start[0]:
                continue
            for minute in self.minutes:
                if (hour, minute) < start[:2]:
                    continue
                for second in self.seconds:
                    if (hour, minute, second) >= start:
                        return hour * 3600 + minute * 60 + second
        return None


def _whole(offset: timedelta | None) -> int:
    assert offset is not None
    return offset // timedelta(seconds=1)


def _longest(month: int) -> int:
    return monthrange(2024, month)[1]  # a leap year


def _expanded(text: str) -> str:
    if not isinstance(text, str):
        raise InvalidConfig(f"a cron expression is text, such as '0 3 * * *', not {brief(text)}")
    word = text.strip().lower()
    if not word.startswith("@"):
        return text
    if word not in ALIASES:
        raise InvalidConfig(f"cron {text!r}: known words are {', '.join(ALIASES)}")
    return ALIASES[word]


def time_zone(what: str, zone: str) -> tzinfo:
    """The zone of that name; `what` is to be in it. Raises `InvalidConfig` if there is none."""
    if zone == "UTC":
        return UTC  # also where no time zone database is installed
    try:
        if not isinstance(zone, str):
            raise ValueError
        return ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidConfig(f"{what}: there is no time zone {zone!r} here") from None


def _values(text: str, field: Field, part: str) -> tuple[int, ...]:
    """All values a field allows, in order."""
    values: set[int] = set()
    for item in part.split(","):
        try:
            values.update(_item(field, item))
        except ValueError as wrong:
            raise InvalidConfig(f"cron {text!r}: {field.name} {part!r}: {wrong}") from None
    return tuple(sorted(values))


def _item(field: Field, item: str) -> range:
    span, slash, step_text = item.partition("/")
    step = _number(step_text, "a step") if slash else 1
    if step < 1:
        raise ValueError("a step must be at least 1")
    if span == "*":
        return range(field.low, field.high + 1, step)
    low_text, dash, high_text = span.partition("-")
    low = _value(field, low_text)
    if not dash:
        return range(low, field.high + 1 if slash else low + 1, step)
    high = _value(field, high_text)
    if field.name == "day-of-week" and high == 0 < low:
        high = 7  # FRI-SUN ends the week
    if high < low:
        raise ValueError(f"{span} runs backwards")
    return range(low, high + 1, step)


def _value(field: Field, word: str) -> int:
    if word in field.names:
        return field.names.index(word) + field.low
    value = _number(word, "a value")
    if not field.low <= value <= field.high:
        raise ValueError(f"{value} is not between {field.low} and {field.high}")
    return value


def _number(word: str, what: str) -> int:
    if not word:
        raise ValueError(f"{what} is missing")
    if not (word.isascii() and word.isdigit() and len(word) <= 4):
        raise ValueError(f"{word!r} is not {what}")
    return int(word)
