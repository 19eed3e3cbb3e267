"""Cron expressions, the rules for changing clocks by name, and what is owed after downtime."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from fairway.errors import InvalidConfig
from fairway.jobs.clockwork import Every
from fairway.jobs.cron import ALIASES, SECOND_NS, Cron
from fairway.jobs.schedule import (
    SKIPPED_COUNTED_MAX,
    Catchup,
    CatchupConfig,
    ScheduleDue,
    Times,
    due,
)

MINUTE_NS = 60 * SECOND_NS
DAY_NS = 86_400 * SECOND_NS


def at(text: str, zone: str = "UTC", *, fold: int = 0) -> int:
    """The wall time of a local reading."""
    tz = UTC if zone == "UTC" else ZoneInfo(zone)
    local = datetime.fromisoformat(text).replace(tzinfo=tz, fold=fold)
    return int(local.timestamp()) * SECOND_NS


def runs(text: str, start: str, zone: str = "UTC", *, count: int = 3, fold: int = 0) -> list[str]:
    """The next readings of the clock at which a schedule runs, with their offsets."""
    cron = Cron.parse(text, zone)
    far_ns = at("9000-01-01")
    found = cron.between(at(start, zone, fold=fold), far_ns, count)
    tz = UTC if zone == "UTC" else ZoneInfo(zone)
    return [
        datetime.fromtimestamp(one // SECOND_NS, tz).strftime("%m-%d %H:%M:%S %z") for one in found
    ]


# --- expressions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("* * * * *", ["01-01 00:01:00", "01-01 00:02:00", "01-01 00:03:00"]),
        ("*/20 * * * *", ["01-01 00:20:00", "01-01 00:40:00", "01-01 01:00:00"]),
        ("5/25 * * * *", ["01-01 00:05:00", "01-01 00:30:00", "01-01 00:55:00"]),
        ("0 9-17/4 * * *", ["01-01 09:00:00", "01-01 13:00:00", "01-01 17:00:00"]),
        ("30,10 4 * * *", ["01-01 04:10:00", "01-01 04:30:00", "01-02 04:10:00"]),
        ("0 0 31 * *", ["01-31 00:00:00", "03-31 00:00:00", "05-31 00:00:00"]),
        ("0 0 1 JAN,jul *", ["07-01 00:00:00", "01-01 00:00:00", "07-01 00:00:00"]),
        ("0 0 * * MON", ["01-05 00:00:00", "01-12 00:00:00", "01-19 00:00:00"]),
        ("0 0 * * fri-sun", ["01-02 00:00:00", "01-03 00:00:00", "01-04 00:00:00"]),
        ("0 0 * * 7", ["01-04 00:00:00", "01-11 00:00:00", "01-18 00:00:00"]),
        ("0 0 * * MON/2", ["01-02 00:00:00", "01-04 00:00:00", "01-05 00:00:00"]),
        ("0 0 * * */3", ["01-03 00:00:00", "01-04 00:00:00", "01-07 00:00:00"]),
        ("*/25 * * * * *", ["01-01 00:00:25", "01-01 00:00:50", "01-01 00:01:00"]),
        ("7 0 12 * * *", ["01-01 12:00:07", "01-02 12:00:07", "01-03 12:00:07"]),
        ("  0  12 *\t* * ", ["01-01 12:00:00", "01-02 12:00:00", "01-03 12:00:00"]),
    ],
)
def test_fields(text: str, expected: list[str]) -> None:
    # The first of January 2026 is a Thursday.
    assert runs(text, "2026-01-01") == [f"{one} +0000" for one in expected]


def test_two_restricted_days_mean_either_and_a_star_means_both() -> None:
    either = runs("0 0 13 * FRI", "2026-02-07", count=4)
    assert [one[:5] for one in either] == ["02-13", "02-20", "02-27", "03-06"]
    both = runs("0 0 */6 * FRI", "2026-02-07", count=4)  # of 1, 7, 13, 19, 25, 31
    assert [one[:5] for one in both] == ["02-13", "03-13", "05-01", "06-19"]


@pytest.mark.parametrize("alias", ALIASES)
def test_aliases_mean_their_expressions(alias: str) -> None:
    start = "2026-03-05T10:20:30"
    assert runs(alias, start) == runs(ALIASES[alias], start)
    assert runs(f" {alias.upper()} ", start) == runs(alias, start)


def test_after_is_strict_and_sees_fractions_of_a_second() -> None:
    cron = Cron.parse("0 12 * * *")
    noon_ns = at("2026-01-01T12:00")
    assert cron.after(noon_ns - 1) == noon_ns
    assert cron.after(noon_ns) == noon_ns + DAY_NS
    assert cron.after(noon_ns + 1) == noon_ns + DAY_NS


def test_rare_days_are_found_across_a_century_without_a_leap_day() -> None:
    leap = Cron.parse("0 0 29 2 *")
    assert leap.after(at("2096-03-01")) == at("2104-02-29")
    # With a star in front, both days must fit: the next leap day on a Sunday.
    assert Cron.parse("0 0 29 2 */7").after(at("2088-03-01")) == at("2128-02-29")


def test_the_calendar_has_an_end() -> None:
    cron = Cron.parse("0 0 1 1 *", "Europe/Berlin")
    assert cron.after(at("9999-06-01")) is None
    assert cron.after(at("9999-12-31") + 10**30) is None
    assert Cron.parse("* * * * * *").after(at("9999-12-31")) is None
    assert cron.after(-(10**30)) is not None  # before the first date there is: the first time


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "0 fields; there must be 5 or 6"),
        ("* * * *", "4 fields; there must be 5 or 6"),
        ("* * * * * * *", "7 fields; there must be 5 or 6"),
        ("60 * * * *", "minute '60': 60 is not between 0 and 59"),
        ("60 * * * * *", "second '60': 60 is not between 0 and 59"),
        ("* 24 * * *", "hour '24': 24 is not between 0 and 23"),
        ("* * 0 * *", "day-of-month '0': 0 is not between 1 and 31"),
        ("* * * 13 *", "month '13': 13 is not between 1 and 12"),
        ("* * * * 8", "day-of-week '8': 8 is not between 0 and 7"),
        ("* * * FOO *", "month 'FOO': 'FOO' is not a value"),
        ("* * * MON *", "month 'MON': 'MON' is not a value"),
        ("* * L * *", "day-of-month 'L': 'L' is not a value"),
        ("* * * * MON#2", "day-of-week 'MON#2': 'MON#2' is not a value"),
        ("* * ? * *", "day-of-month '?': '?' is not a value"),
        ("-5 * * * *", "minute '-5': a value is missing"),
        ("5- * * * *", "minute '5-': a value is missing"),
        ("1,,2 * * * *", "minute '1,,2': a value is missing"),
        ("*/ * * * *", "minute '*/': a step is missing"),
        ("*/0 * * * *", "minute '*/0': a step must be at least 1"),
        ("*/x * * * *", "minute '*/X': 'X' is not a step"),
        ("*/5/5 * * * *", "minute '*/5/5': '5/5' is not a step"),
        ("30-10 * * * *", "minute '30-10': 30-10 runs backwards"),
        ("* 22-2 * * *", "hour '22-2': 22-2 runs backwards"),
        ("1-2-3 * * * *", "minute '1-2-3': '2-3' is not a value"),
        ("*-5 * * * *", "minute '*-5': '*' is not a value"),
        ("1.5 * * * *", "minute '1.5': '1.5' is not a value"),
        ("\u0663 * * * *", "minute '\u0663': '\u0663' is not a value"),
        (f"{'9' * 5000} * * * *", "is not a value"),
        ("0 0 30 2 *", "day-of-month '30': month '2' has no such day"),
        ("0 0 31 4,JUN *", "day-of-month '31': month '4,JUN' has no such day"),
        ("@reboot", f"known words are {', '.join(ALIASES)}"),
    ],
)
def test_bad_expressions_say_which_field_and_why(text: str, wrong: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        Cron.parse(text)
    assert str(refused.value).startswith(f"cron {text!r}: ")
    assert str(refused.value).endswith(wrong)


@pytest.mark.parametrize("zone", ["Europe/Atlantis", "", "../etc/passwd", "Europe", "a\0b"])
def test_unknown_zones_are_refused(zone: str) -> None:
    with pytest.raises(InvalidConfig, match="there is no time zone"):
        Cron.parse("* * * * *", zone)


def test_a_day_that_its_month_lacks_is_fine_where_the_weekday_is_enough() -> None:
    assert runs("0 0 30 2 MON", "2026-01-30", count=2) == [
        "02-02 00:00:00 +0000",
        "02-09 00:00:00 +0000",
    ]


# --- clocks that change


BERLIN = "Europe/Berlin"
NEW_YORK = "America/New_York"
LORD_HOWE = "Australia/Lord_Howe"


@pytest.mark.parametrize("text", ["30 2 * * *", "0 30 2 * * *", "*/15 2 * * *", "* * 2 * * *"])
def test_a_skipped_time_runs_once_after_the_gap(text: str) -> None:
    first, second, *_ = runs(text, "2026-03-28T12:00", BERLIN)
    assert first == "03-29 03:00:00 +0200"
    assert second.startswith("03-30 02:")


def test_skipped_times_meet_the_run_that_is_due_there_anyway() -> None:
    assert runs("0,30 2,3 * * *", "2026-03-29T01:00", BERLIN) == [
        "03-29 03:00:00 +0200",
        "03-29 03:30:00 +0200",
        "03-30 02:00:00 +0200",
    ]


@pytest.mark.parametrize("text", ["30 2 * * *", "0 30 2 * * *"])
def test_a_repeated_time_runs_the_first_time_only(text: str) -> None:
    expected = ["10-25 02:30:00 +0200", "10-26 02:30:00 +0100"]
    assert runs(text, "2026-10-24T12:00", BERLIN, count=2) == expected


def test_all_times_of_a_repeated_hour_are_done_in_its_second_pass() -> None:
    for text in ("30 2 * * *", "*/15 2 * * *", "* * 2 * * *"):
        assert runs(text, "2026-10-25T02:10", BERLIN, fold=1)[0].startswith("10-26 02:")
    assert runs("*/30 2 * * *", "2026-10-25T02:10", BERLIN, fold=0, count=2) == [
        "10-25 02:30:00 +0200",
        "10-26 02:00:00 +0100",
    ]


def test_hours_in_steps_are_times_of_day() -> None:
    assert runs("15 */2 * * *", "2026-03-29T00:30", BERLIN) == [
        "03-29 03:00:00 +0200",
        "03-29 04:15:00 +0200",
        "03-29 06:15:00 +0200",
    ]
    assert runs("15 */2 * * *", "2026-10-25T00:30", BERLIN, count=2) == [
        "10-25 02:15:00 +0200",
        "10-25 04:15:00 +0100",
    ]


@pytest.mark.parametrize("text", ["*/30 * * * *", "*/30 0-23 * * *", "0 */30 * * * *"])
def test_a_schedule_for_every_hour_keeps_its_real_interval(text: str) -> None:
    cron = Cron.parse(text, NEW_YORK)
    for change in ("2026-03-08", "2026-11-01"):
        start_ns = at(f"{change}T00:00", NEW_YORK)
        found = cron.between(start_ns, start_ns + DAY_NS, 100)
        assert found == [start_ns + number * 30 * MINUTE_NS for number in range(1, 49)]


def test_an_offset_minute_of_every_hour_does_not_run_early_after_the_gap() -> None:
    assert runs("10 * * * *", "2026-03-29T01:00", BERLIN) == [
        "03-29 01:10:00 +0100",
        "03-29 03:10:00 +0200",
        "03-29 04:10:00 +0200",
    ]


def test_half_an_hour_in_lord_howe() -> None:
    # In October 02:00 becomes 02:30, in April 02:00 becomes 01:30.
    assert runs("15 2 * * *", "2026-10-03T12:00", LORD_HOWE, count=2) == [
        "10-04 02:30:00 +1100",
        "10-05 02:15:00 +1100",
    ]
    assert runs("*/20 * * * *", "2026-10-04T01:30", LORD_HOWE) == [
        "10-04 01:40:00 +1030",
        "10-04 02:40:00 +1100",
        "10-04 03:00:00 +1100",
    ]
    assert runs("45 1 * * *", "2026-04-04T12:00", LORD_HOWE, count=2) == [
        "04-05 01:45:00 +1100",
        "04-06 01:45:00 +1030",
    ]
    assert runs("45 * * * *", "2026-04-05T01:00", LORD_HOWE) == [
        "04-05 01:45:00 +1100",
        "04-05 01:45:00 +1030",
        "04-05 02:45:00 +1030",
    ]


def test_a_midnight_that_does_not_exist() -> None:
    assert runs("0 0 * * *", "2026-04-23T12:00", "Africa/Cairo", count=2) == [
        "04-24 01:00:00 +0300",
        "04-25 00:00:00 +0300",
    ]


def test_an_hour_that_repeats_across_midnight() -> None:
    # 00:01 on the 7th became 23:01 on the 6th: the last hour of the 6th comes twice.
    found = runs("59 * 6 11 *", "2010-11-06T22:30", "America/St_Johns")
    assert found == ["11-06 22:59:00 -0230", "11-06 23:59:00 -0230", "11-06 23:59:00 -0330"]
    once = Cron.parse("59 23 6 11 *", "America/St_Johns")
    first_ns = at("2010-11-06T23:59", "America/St_Johns")
    assert once.after(first_ns - 1) == first_ns
    assert once.after(first_ns) == at("2011-11-06T23:59", "America/St_Johns")


def test_a_day_that_does_not_exist() -> None:
    # Samoa went from the 29th of December 2011 to the 31st.
    assert runs("30 2 * * *", "2011-12-29T12:00", "Pacific/Apia") == [
        "12-31 00:00:00 +1400",
        "12-31 02:30:00 +1400",
        "01-01 02:30:00 +1400",
    ]


# --- catching up

HOURLY = Cron.parse("@hourly")
NOW = at("2026-06-01T12:00") + 5 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS
SKIP = CatchupConfig()
LATEST = CatchupConfig(policy=Catchup.LATEST_ONLY)
ALL = CatchupConfig(policy=Catchup.RUN_ALL, runs_max=3)


@pytest.mark.parametrize("config", [SKIP, LATEST, ALL])
def test_nothing_is_owed_before_the_next_time(config: CatchupConfig) -> None:
    noon_ns = at("2026-06-01T12:00")
    assert due(HOURLY, noon_ns, NOW, config) == ScheduleDue((), noon_ns, noon_ns + HOUR_NS, 0)


@pytest.mark.parametrize("config", [SKIP, LATEST, ALL])
def test_a_time_that_is_due_fires_whatever_the_policy(config: CatchupConfig) -> None:
    noon_ns = at("2026-06-01T12:00")
    one = due(HOURLY, noon_ns - HOUR_NS, NOW, config)
    assert one == ScheduleDue((noon_ns,), noon_ns, noon_ns + HOUR_NS, 0)
    assert due(HOURLY, one.handled_ns, NOW, config).fire == ()


def test_skip_drops_what_is_late_and_says_so() -> None:
    late_ns = NOW + 10 * MINUTE_NS
    noon_ns = at("2026-06-01T12:00")
    assert due(HOURLY, NOW - 5 * HOUR_NS, late_ns, SKIP) == ScheduleDue(
        (), noon_ns, noon_ns + HOUR_NS, 5
    )
    # The last moment of grace.
    on_time = due(HOURLY, NOW - 5 * HOUR_NS, noon_ns + SKIP.grace_ns, SKIP)
    assert on_time == ScheduleDue((noon_ns,), noon_ns, noon_ns + HOUR_NS, 4)
    assert due(HOURLY, NOW - 5 * HOUR_NS, noon_ns + SKIP.grace_ns + 1, SKIP).fire == ()


@pytest.mark.parametrize("times", [Cron.parse("*/3 * * * * *"), Every(3 * SECOND_NS)], ids=str)
def test_skip_fires_at_most_the_latest_time_however_short_the_interval(times: Times) -> None:
    """A minute's pause of every three seconds: all twenty times are within the grace."""
    noon_ns = at("2026-06-01T12:00")
    now_ns = noon_ns + SECOND_NS
    answer = due(times, noon_ns - MINUTE_NS, now_ns, SKIP)
    assert answer == ScheduleDue((noon_ns,), noon_ns, noon_ns + 3 * SECOND_NS, 19)
    assert due(times, answer.handled_ns, now_ns, SKIP).fire == ()


def test_latest_only_fires_once_for_all() -> None:
    noon_ns = at("2026-06-01T12:00")
    answer = due(HOURLY, NOW - 50 * HOUR_NS, NOW + 30 * MINUTE_NS, LATEST)
    assert answer == ScheduleDue((noon_ns,), noon_ns, noon_ns + HOUR_NS, 49)


def test_run_all_fires_the_latest_of_too_many_oldest_first() -> None:
    noon_ns = at("2026-06-01T12:00")
    three = (noon_ns - 2 * HOUR_NS, noon_ns - HOUR_NS, noon_ns)
    assert due(HOURLY, NOW - 3 * HOUR_NS, NOW, ALL) == ScheduleDue(
        three, noon_ns, noon_ns + HOUR_NS, 0
    )
    assert due(HOURLY, NOW - 9 * HOUR_NS, NOW, ALL) == ScheduleDue(
        three, noon_ns, noon_ns + HOUR_NS, 6
    )


def test_a_clock_that_steps_back_fires_nothing_twice() -> None:
    handled_ns = at("2026-06-01T12:00")
    for config in (SKIP, LATEST, ALL):
        answer = due(HOURLY, handled_ns, handled_ns - 30 * DAY_NS, config)
        assert answer == ScheduleDue((), handled_ns, handled_ns + HOUR_NS, 0)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the next time, or the next fitting reading, was looked for."""
    counts: Counter[str] = Counter()
    after, match = Cron.after, Cron._match

    def counted_after(self: Cron, wall_ns: int) -> int | None:
        counts["after"] += 1
        return after(self, wall_ns)

    def counted_match(self: Cron, reading: int) -> int | None:
        counts["match"] += 1
        return match(self, reading)

    monkeypatch.setattr(Cron, "after", counted_after)
    monkeypatch.setattr(Cron, "_match", counted_match)
    return counts


@pytest.mark.parametrize("config", [SKIP, LATEST, ALL])
def test_decades_of_downtime_cost_a_bounded_search(
    config: CatchupConfig, searches: Counter[str]
) -> None:
    answer = due(Cron.parse("* * * * * *"), NOW - 50 * 365 * DAY_NS, NOW, config)
    assert answer.skipped == SKIPPED_COUNTED_MAX
    assert answer.fire[-1] == NOW
    assert searches["after"] < 2 * SKIPPED_COUNTED_MAX


def test_the_latest_of_rare_times_is_found_in_strides(searches: Counter[str]) -> None:
    answer = due(Cron.parse("@yearly"), NOW - 50 * 365 * DAY_NS, NOW, LATEST)
    assert answer == ScheduleDue((at("2026-01-01"),), at("2026-01-01"), at("2027-01-01"), 49)
    assert searches["after"] < 200


def test_a_repeated_hour_is_passed_over_in_one_go(searches: Counter[str]) -> None:
    assert runs("* * 2 * * *", "2026-10-25T02:00:01", BERLIN, fold=1, count=1) == [
        "10-26 02:00:00 +0100"
    ]
    assert searches["match"] < 10


@pytest.mark.parametrize("wrong", [{"runs_max": 0}, {"grace_ns": -1}])
def test_a_catchup_that_could_never_fire_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="is at least"):
        CatchupConfig(**wrong)  # type: ignore[arg-type]
