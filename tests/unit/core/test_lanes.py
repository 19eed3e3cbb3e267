"""Lanes as plain values: bounds in items and bytes, the reserve, group drain, when to come back."""

from __future__ import annotations

import pytest

from fairway.core.lanes import (
    RETRY_MAX_NS,
    RETRY_MIN_NS,
    RETRY_UNMEASURED_NS,
    Drained,
    LaneLimits,
    Lanes,
    Refusal,
)

MS = 1_000_000
SECOND = 1_000_000_000


def lanes(
    items: int = 4,
    size: int = 100,
    *,
    total: LaneLimits | None = None,
    reserve: tuple[int, int] = (0, 0),
) -> Lanes[str, int]:
    return Lanes(LaneLimits(items=items, size=size), total=total, reserve=reserve)


def fill(made: Lanes[str, int], key: str, count: int, size: int = 1, now_ns: int = 0) -> None:
    for item in range(count):
        assert made.offer(key, item, size, now_ns) is None
        made.check()


def drain_all(made: Lanes[str, int], key: str) -> Drained[str, int]:
    return made.drain(key, items=10**6, size=10**9)


# --- bounds


def test_a_lane_holds_exactly_its_items() -> None:
    made = lanes(items=4)
    fill(made, "a", 4)
    refusal = made.offer("a", 9, 1, 0)
    assert refusal == Refusal("a", 4, "4 items", RETRY_UNMEASURED_NS)
    assert made.offer("b", 9, 1, 0) is None  # a full lane is nobody else's business
    assert made.depths() == {"a": (4, 4), "b": (1, 1)}


def test_a_lane_holds_exactly_its_bytes() -> None:
    made = lanes(size=100)
    fill(made, "a", 1, 99)
    refusal = made.offer("a", 9, 2, 0)
    assert refusal == Refusal("a", 1, "100 bytes", RETRY_UNMEASURED_NS)
    assert made.offer("a", 9, 1, 0) is None
    assert made.offer("a", 9, 0, 0) is None  # full of bytes, but nothing has room
    made.check()


def test_what_is_in_flight_still_counts() -> None:
    made = lanes(items=2, size=100)
    fill(made, "a", 2, 50)
    drained = drain_all(made, "a")
    assert not made.has_items("a")
    assert made.depth_of("a") == made.depth == 2
    assert made.size == 100
    assert made.offer("a", 9, 1, 0) is not None
    made.settle("a", 1, 50, 1)
    assert made.offer("a", 9, 51, 1) is not None
    assert made.offer("a", 9, 50, 1) is None
    assert drained.items == [0, 1]
    made.check()


def test_all_lanes_together_hold_exactly_the_total() -> None:
    made = lanes(items=4, size=100, total=LaneLimits(items=6, size=120))
    fill(made, "a", 3, 10)
    fill(made, "b", 2, 40)
    assert made.offer("c", 9, 11, 0) == Refusal("c", 0, "120 bytes in all lanes", 50 * MS)
    assert made.offer("c", 9, 10, 0) is None
    assert made.offer("a", 9, 0, 0) == Refusal("a", 3, "6 items in all lanes", 50 * MS)
    made.settle("b", len(drain_all(made, "b").items), 80, 1)
    assert made.offer("a", 9, 1, 1) is None
    made.check()


def test_the_reserve_is_for_finishing_work_only() -> None:
    made = lanes(items=2, size=20, reserve=(1, 10))
    fill(made, "a", 2, 10)
    assert made.offer("a", 8, 0, 0) is not None
    assert made.offer("a", 8, 11, 0, finishing=True) == Refusal("a", 2, "20 bytes", 50 * MS)
    assert made.offer("a", 8, 10, 0, finishing=True) is None
    assert made.offer("a", 9, 0, 0, finishing=True) == Refusal("a", 3, "2 items", 50 * MS)
    made.check()
    # What sits in the reserve keeps ordinary work out until the lane is below its limit again.
    made.settle("a", len(made.drain("a", items=1, size=10).items), 10, 1)
    assert made.depth_of("a") == 2
    assert made.offer("a", 9, 0, 1) is not None
    assert made.offer("a", 9, 0, 1, finishing=True) is None


def test_the_reserve_reaches_beyond_the_total_too() -> None:
    made = lanes(items=9, size=900, total=LaneLimits(items=2, size=20), reserve=(1, 10))
    fill(made, "a", 1, 10)
    fill(made, "b", 1, 10)
    assert made.offer("c", 9, 0, 0) is not None
    assert made.offer("c", 9, 0, 0, finishing=True) is None
    assert made.offer("d", 9, 0, 0, finishing=True) is not None
    made.check()


def test_an_item_larger_than_the_lane_never_fits_and_an_empty_lane_says_so() -> None:
    made = lanes(size=100)
    refusal = made.offer("a", 9, 101, 0)
    assert refusal == Refusal("a", 0, "100 bytes", RETRY_UNMEASURED_NS)
    assert not made.depths()


@pytest.mark.parametrize(("items", "size"), [(0, 1), (1, 0), (-1, 5)])
def test_a_lane_that_holds_nothing_is_refused(items: int, size: int) -> None:
    with pytest.raises(ValueError, match="is at least 1, not"):
        LaneLimits(items=items, size=size)


def test_a_negative_reserve_is_refused() -> None:
    with pytest.raises(ValueError, match="not negative"):
        lanes(reserve=(0, -1))


# --- draining


def test_items_leave_in_order_in_the_amounts_asked_for() -> None:
    made = lanes(items=9)
    fill(made, "a", 7, 10)
    assert made.drain("a", items=3, size=1000) == Drained("a", [0, 1, 2], 30)
    assert made.drain("a", items=9, size=20) == Drained("a", [3, 4], 20)
    assert made.drain("a", items=9, size=29) == Drained("a", [5, 6], 20)
    assert made.drain("a", items=9, size=29) == Drained("a", [], 0)


def test_an_item_is_never_split_and_one_leaves_however_large() -> None:
    made = lanes(size=1000)
    for item, size in enumerate((300, 10, 300)):
        made.offer("a", item, size, 0)
    assert made.drain("a", items=9, size=100) == Drained("a", [0], 300)
    assert made.drain("a", items=9, size=100) == Drained("a", [1], 10)
    assert made.drain("a", items=9, size=100) == Drained("a", [2], 300)


def test_settling_says_whether_more_waits_and_forgets_an_empty_lane() -> None:
    made = lanes()
    fill(made, "a", 3, 5)
    first = made.drain("a", items=2, size=99)
    assert made.settle("a", len(first.items), first.size, 1)
    second = drain_all(made, "a")
    made.offer("a", 9, 5, 1)
    assert made.settle("a", len(second.items), second.size, 2)
    third = drain_all(made, "a")
    assert not made.settle("a", len(third.items), third.size, 3)
    assert len(made) == made.depth == made.size == 0
    assert not made.has_items("a")
    with pytest.raises(KeyError):
        made.settle("a", 1, 5, 4)


def test_settling_more_than_was_drained_is_an_error() -> None:
    made = lanes()
    fill(made, "a", 3)
    drained = made.drain("a", items=1, size=99)
    with pytest.raises(AssertionError, match="more was settled"):
        made.settle("a", 2, 2, 1)
    made.settle("a", len(drained.items), drained.size, 1)
    with pytest.raises(AssertionError, match="more was settled"):
        made.settle("a", 1, 1, 1)


def test_withdrawing_settles_what_waits_and_leaves_what_is_in_flight() -> None:
    made = lanes()
    fill(made, "a", 4, 5)
    drained = made.drain("a", items=1, size=99)
    assert made.withdraw("a") == [1, 2, 3]
    assert made.depths() == {"a": (1, 5)}
    assert not made.settle("a", 1, drained.size, 1)
    fill(made, "b", 2)
    assert made.withdraw("b") == [0, 1]
    assert len(made) == made.depth == made.size == 0
    made.check()


# --- when to come back


def refused(made: Lanes[str, int], key: str, now_ns: int) -> int:
    refusal = made.offer(key, -1, 1, now_ns)
    assert refusal is not None
    return refusal.retry_after_ns


def steadily(
    made: Lanes[str, int], key: str, *, group: int, every_ns: int, groups: int, now_ns: int = 0
) -> int:
    """Drain a full lane at a steady rate, filling it up again; returns when that ended."""
    for _ in range(groups):
        drained = made.drain(key, items=group, size=10**9)
        now_ns += every_ns
        made.settle(key, len(drained.items), drained.size, now_ns)
        while made.offer(key, 0, 1, now_ns) is None:
            pass
    return now_ns


def test_a_quarter_of_the_lane_at_the_measured_pace() -> None:
    made = lanes(items=400, size=1000)
    fill(made, "a", 400)
    now_ns = steadily(made, "a", group=10, every_ns=10 * MS, groups=20)  # 1 ms an item
    assert refused(made, "a", now_ns) == 100 * MS


def test_nothing_was_measured_yet() -> None:
    made = lanes(items=1)
    fill(made, "a", 1)
    assert refused(made, "a", 0) == RETRY_UNMEASURED_NS


def test_a_lane_not_seen_yet_borrows_the_pace_of_the_others() -> None:
    made = lanes(items=40, size=1000)
    fill(made, "a", 40)
    steadily(made, "a", group=4, every_ns=8 * MS, groups=5)  # 2 ms an item
    fill(made, "b", 40)
    assert refused(made, "b", 0) == 20 * MS


def test_idle_time_is_not_drain_time() -> None:
    made = lanes(items=40, size=1000)
    fill(made, "a", 4, now_ns=0)
    # 2 ms an item, then an hour of nothing.
    made.settle("a", 4, made.drain("a", items=4, size=100).size, 8 * MS)
    now_ns = 3600 * SECOND
    fill(made, "a", 40, now_ns=now_ns)
    assert refused(made, "a", now_ns) == 20 * MS
    steadily(made, "a", group=4, every_ns=8 * MS, groups=1, now_ns=now_ns)
    assert refused(made, "a", now_ns) == 20 * MS


def test_a_few_small_groups_do_not_outweigh_a_large_one() -> None:
    """A quiet lane drains one item a sync, since it has no more; once full, it drains hundreds."""
    made = lanes(items=1024, size=10**6)
    fill(made, "a", 1)
    now_ns = 0
    for _ in range(20):
        drained = made.drain("a", items=256, size=10**6)
        fill(made, "a", 1, now_ns=now_ns)  # the next comes while this one is being written
        now_ns += 2 * MS
        made.settle("a", len(drained.items), drained.size, now_ns)
    fill(made, "a", 1023, now_ns=now_ns)
    drained = made.drain("a", items=256, size=10**6)
    made.settle("a", len(drained.items), drained.size, now_ns + 2 * MS)
    fill(made, "a", 256, now_ns=now_ns)
    assert 2 * MS <= refused(made, "a", now_ns) <= 4 * MS  # a quarter is one more group


def test_a_quiet_lane_does_not_look_slow_once_it_is_full() -> None:
    made = lanes(items=1024, size=10**6)
    for number in range(20):
        fill(made, "a", 1, now_ns=number * 2 * MS)
        drained = made.drain("a", items=256, size=10**6)
        made.settle("a", len(drained.items), drained.size, (number + 1) * 2 * MS)
    fill(made, "a", 1024, now_ns=SECOND)
    assert refused(made, "a", SECOND) == 2 * MS  # a quarter is one turn of 256


def test_the_pace_of_late_counts_most() -> None:
    made = lanes(items=400, size=1000)
    fill(made, "a", 400)
    now_ns = steadily(made, "a", group=10, every_ns=1 * MS, groups=20)
    # And now a hundred times slower.
    now_ns = steadily(made, "a", group=10, every_ns=100 * MS, groups=4, now_ns=now_ns)
    assert 500 * MS <= refused(made, "a", now_ns) <= 1000 * MS


def test_the_answer_stays_within_reason() -> None:
    made = lanes(items=4)
    fill(made, "a", 4)
    now_ns = steadily(made, "a", group=1, every_ns=1, groups=3)
    assert refused(made, "a", now_ns) == RETRY_MIN_NS
    now_ns = steadily(made, "a", group=1, every_ns=3600 * SECOND, groups=3, now_ns=now_ns)
    assert refused(made, "a", now_ns) == RETRY_MAX_NS


def test_a_clock_that_steps_back_makes_no_negative_pace() -> None:
    made = lanes(items=4)
    fill(made, "a", 4, now_ns=SECOND)
    made.settle("a", len(made.drain("a", items=2, size=99).items), 2, 0)
    fill(made, "a", 2)
    assert refused(made, "a", 0) == RETRY_MIN_NS
    steadily(made, "a", group=2, every_ns=20 * MS, groups=1)
    assert refused(made, "a", 0) == 20 * MS // 3  # two items in 20 ms, and half of two in none


def test_an_empty_lane_refused_for_the_total_waits_as_long_as_the_average_lane() -> None:
    made = lanes(items=400, size=1000, total=LaneLimits(items=800, size=2000))
    fill(made, "a", 400)
    now_ns = steadily(made, "a", group=10, every_ns=10 * MS, groups=10)
    fill(made, "b", 400, now_ns=now_ns)
    assert refused(made, "c", now_ns) == 100 * MS


# --- check


@pytest.mark.parametrize(
    "broken",
    [
        "made.depth += 1",
        "made.size -= 1",
        "made._lanes['a'].depth = made.depth = 1",
        "made._lanes['a'].size = made.size = 101",
        "made._lanes['a'].size = made.size = 5",
        "made._lanes['b'] = type(made._lanes['a'])()",
    ],
)
def test_check_sees_a_broken_state(broken: str) -> None:
    made = lanes()
    fill(made, "a", 3, 10)
    made.drain("a", items=1, size=99)
    made.check()
    exec(broken, {"made": made})
    with pytest.raises(AssertionError):
        made.check()
