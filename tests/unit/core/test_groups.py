"""Groups as plain values: who joins, who owns, who waits again."""

from __future__ import annotations

import pytest

from fairway.core.groups import Groups
from fairway.core.lanes import Drained, LaneLimits

LIMITS = LaneLimits(items=8, size=1000)


def made(waiting: str = "", size: int = 10, total: LaneLimits | None = None) -> Groups[str, str]:
    """Groups in which one item waits for each letter, in that order: `aab` is a1, a2, b3."""
    groups: Groups[str, str] = Groups(LIMITS, total=total)
    offer(groups, waiting, size=size)
    return groups


def offer(groups: Groups[str, str], letters: str, *, first: int = 1, size: int = 10) -> None:
    for number, key in enumerate(letters, first):
        assert groups.offer(key, f"{key}{number}", size, 0) is None
        groups.check()


def take(
    groups: Groups[str, str],
    keys: int = 9,
    items: int = 9,
    size: int = 1000,
    total_size: int | None = None,
) -> list[Drained[str, str]]:
    group = groups.take(keys=keys, items=items, size=size, total_size=total_size)
    groups.check()
    return group


def shown(group: list[Drained[str, str]]) -> list[str]:
    return [" ".join(part.items) for part in group]


def test_nothing_waits_at_first() -> None:
    groups = made()
    assert take(groups) == []
    assert (groups.depth, groups.size, groups.waiting_keys) == (0, 0, 0)
    assert groups.depths() == {}


def test_a_group_is_a_run_of_each_key_in_the_order_they_came() -> None:
    groups = made("abacab")
    assert groups.waiting_keys == 3
    assert shown(take(groups)) == ["a1 a3 a5", "b2 b6", "c4"]
    assert (groups.depth, groups.size, groups.waiting_keys) == (6, 60, 0)


def test_a_group_has_so_many_keys_and_so_many_items_of_each() -> None:
    groups = made("aaabbc")
    first = take(groups, keys=2, items=2)
    assert shown(first) == ["a1 a2", "b4 b5"]
    assert shown(take(groups, keys=2, items=2)) == ["c6"]
    for part in first:
        groups.settle(part, 1)
    assert shown(take(groups)) == ["a3"]


def test_a_group_has_so_many_bytes_of_each_key_and_in_all() -> None:
    groups = made("aabbcc", size=100)
    # Room for 250 bytes: two of a, then half an item, so b has its one and no key joins after it.
    assert shown(take(groups, size=200, total_size=250)) == ["a1 a2", "b3"]
    assert shown(take(groups, size=50, total_size=250)) == ["c5"]


def test_a_group_has_so_many_items_in_all() -> None:
    groups = made("aaabbcc")
    group = groups.take(keys=9, items=2, size=1000, total_items=5)
    assert shown(group) == ["a1 a2", "b4 b5", "c6"]
    groups.check()


def test_bands_share_the_turns_by_weight() -> None:
    groups: Groups[str, str] = Groups(LIMITS, bands={"low": 1, "high": 2})
    for number, key in enumerate("abcdefXYZ"):
        assert groups.offer(key, key, 10, number, band="high" if key.isupper() else "low") is None
    assert shown(take(groups, keys=6)) == ["a", "X", "Y", "b", "Z", "c"]


def test_what_is_left_over_waits_in_its_band() -> None:
    groups: Groups[str, str] = Groups(LIMITS, bands={"low": 1, "high": 9})
    for number, key in enumerate("aabXX"):
        band = "high" if key.isupper() else "low"
        assert groups.offer(key, f"{key}{number}", 10, 0, band=band) is None
    for part in take(groups, items=1):
        groups.settle(part, 0, "high" if part.key.isupper() else "low")
    groups.check()
    assert shown(take(groups, items=1, keys=2)) == ["X4", "a1"]


def test_an_item_larger_than_a_group_still_goes() -> None:
    groups = made("ab", size=900)
    assert shown(take(groups, size=10, total_size=10)) == ["a1"]
    assert shown(take(groups, size=10, total_size=10)) == ["b2"]


def test_a_key_is_in_one_group_at_a_time() -> None:
    groups = made("a")
    (mine,) = take(groups)
    offer(groups, "aab", first=2)
    assert shown(take(groups)) == ["b4"]
    assert take(groups) == []
    groups.settle(mine, 1)
    assert shown(take(groups)) == ["a2 a3"]


def test_what_is_left_over_waits_again_behind_the_others() -> None:
    groups = made("aaabb")
    (mine,) = take(groups, keys=1, items=1)
    groups.settle(mine, 1)
    groups.check()
    assert shown(take(groups, items=1)) == ["b4", "a2"]


def test_a_key_with_nothing_left_is_idle() -> None:
    groups = made("a")
    (mine,) = take(groups)
    groups.settle(mine, 1)
    groups.check()
    assert (groups.depth, groups.size, groups.waiting_keys) == (0, 0, 0)
    assert take(groups) == []


def test_room_comes_back_when_a_part_is_settled_not_before() -> None:
    groups = made("aaaaaaaa")
    assert groups.offer("a", "late", 1, 0) is not None
    (mine,) = take(groups, items=3)
    assert groups.offer("a", "late", 1, 0) is not None
    groups.settle(mine, 1)
    offer(groups, "aaa", first=9)
    assert groups.offer("a", "late", 1, 1) is not None
    assert groups.depth_of("a") == 8


def test_a_refused_key_does_not_wait() -> None:
    groups = made("a", total=LaneLimits(items=1, size=1000))
    refusal = groups.offer("b", "b2", 1, 0)
    assert refusal is not None
    assert (refusal.lane, refusal.limit) == ("b", "1 items in all lanes")
    assert groups.waiting_keys == 1
    assert groups.depths() == {"a": (1, 10)}


def test_finishing_work_has_its_reserve() -> None:
    groups: Groups[str, str] = Groups(LaneLimits(items=1, size=10), reserve=(1, 5))
    assert groups.offer("a", "work", 10, 0) is None
    assert groups.offer("a", "more", 5, 0) is not None
    assert groups.offer("a", "end", 5, 0, finishing=True) is None
    assert groups.take(keys=1, items=9, size=99) == [Drained("a", ["work", "end"], 15)]


def test_its_holder_may_empty_a_lane() -> None:
    groups = made("aaab")
    (mine,) = take(groups, keys=1, items=1)
    offer(groups, "a", first=5)
    assert groups.withdraw("a") == ["a2", "a3", "a5"]
    groups.check()
    assert groups.depth_of("a") == 1  # what the holder has in hand
    offer(groups, "a", first=6)  # and whoever comes after that waits as usual
    groups.settle(mine, 1)
    assert shown(take(groups)) == ["b4", "a6"]


def test_a_lane_that_was_emptied_gives_nobody_a_turn() -> None:
    groups = made("aa")
    (mine,) = take(groups, items=1)
    offer(groups, "a", first=3)
    groups.withdraw("a")
    groups.settle(mine, 1)
    groups.check()
    assert take(groups) == []
    assert groups.depths() == {}


def test_nobody_else_may_empty_a_lane() -> None:
    groups = made("a")
    with pytest.raises(AssertionError, match="only the holder"):
        groups.withdraw("a")
    assert shown(take(groups)) == ["a1"]


def test_a_part_is_settled_once() -> None:
    groups = made("aa")
    (mine,) = take(groups, items=1)
    groups.settle(mine, 1)
    with pytest.raises(AssertionError, match="more was settled"):
        groups.settle(mine, 1)
    groups.check()
    assert shown(take(groups)) == ["a2"]


def test_what_waits_is_what_no_group_has() -> None:
    groups = made("aab")
    items, size = groups.waiting
    assert items == 3
    first, *_ = group = take(groups, items=1)
    assert groups.waiting[0] == 3 - len(group)
    groups.settle(first, 1)
    assert groups.waiting == (items - len(group), size - sum(part.size for part in group))
    assert groups.withdraw("b") == []
    groups.check()


def test_check_sees_a_stranded_key() -> None:
    groups = made("a")
    groups._ready.forget("a")
    with pytest.raises(AssertionError, match="a is stranded"):
        groups.check()
