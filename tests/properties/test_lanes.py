"""Lanes: a twin that counts everything again, refusals that change nothing, and a known rate."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import event, given
from hypothesis import strategies as st

from fairway.core.lanes import RETRY_MAX_NS, RETRY_MIN_NS, Drained, LaneLimits, Lanes, Refusal
from tests.properties.twins import MANY, SlowLanes, histories

MS = 1_000_000
KEYS = "abc"


class Setup(NamedTuple):
    """Bounds tight enough to be hit."""

    limits: LaneLimits
    total: LaneLimits | None
    reserve: tuple[int, int]


limits = st.builds(LaneLimits, items=st.integers(1, 12), size=st.integers(1, 120))
totals = st.none() | st.builds(LaneLimits, items=st.integers(1, 30), size=st.integers(1, 240))
reserves = st.just((0, 0)) | st.tuples(st.integers(0, 3), st.integers(0, 20))
setups = st.builds(Setup, limits, totals, reserves)


class Step(NamedTuple):
    """One event; `much` is a size, a limit or a time, as the verb has it."""

    verb: str
    key: str
    count: int
    much: int


VERBS = ("offer",) * 6 + ("finish",) * 2 + ("drain",) * 3 + ("settle",) * 3 + ("withdraw",)


def step(verb: int, key: int, count: int, much: int) -> Step:
    return Step(VERBS[verb % len(VERBS)], KEYS[key % len(KEYS)], count, much)


def state(lanes: Lanes[str, int]) -> object:
    """All that a machine knows, copied out."""
    return (
        lanes.depth,
        lanes.size,
        (lanes._pace.busy_ns, lanes._pace.settled),
        {
            key: (
                list(zip(lane.queue, lane.sizes, strict=True)),
                lane.depth,
                lane.size,
                lane.settled_ns,
                lane.pace.busy_ns,
                lane.pace.settled,
            )
            for key, lane in lanes._lanes.items()
        },
    )


@MANY
@given(setup=setups, history=histories(step, 150))
def test_same_answers_as_the_slow_twin(setup: Setup, history: list[Step]) -> None:
    lanes: Lanes[str, int] = Lanes(setup.limits, total=setup.total, reserve=setup.reserve)
    twin = SlowLanes(setup.limits, total=setup.total, reserve=setup.reserve)
    flying: list[Drained[str, int]] = []
    now_ns = 0
    hit: set[str] = set()
    for number, step in enumerate(history):
        # Time goes by, and now and then back.
        now_ns = max(0, now_ns + (step.much * MS if step.count % 16 else -500 * MS))
        if step.verb in ("offer", "finish"):
            size, finishing = step.much % 24, step.verb == "finish"
            before = state(lanes)
            got = lanes.offer(step.key, number, size, now_ns, finishing=finishing)
            expected = twin.offer(step.key, number, size, now_ns, finishing=finishing)
            assert alike(got, expected)
            if got is not None:
                assert state(lanes) == before, "a refusal changed something"
                hit.add(got.limit.lstrip("0123456789 "))
        elif step.verb == "drain" and step.key in twin.lanes:
            items, size = 1 + step.count % 5, 1 + step.much % 40
            drained = lanes.drain(step.key, items=items, size=size)
            assert drained == twin.drain(step.key, items=items, size=size)
            flying += [drained] if drained.items else []
        elif step.verb == "settle" and flying:
            drained = flying.pop(step.count % len(flying))
            more = lanes.settle(drained.key, len(drained.items), drained.size, now_ns)
            assert more == twin.settle(drained, now_ns)
        elif step.verb == "withdraw" and step.key in twin.lanes:
            assert lanes.withdraw(step.key) == twin.withdraw(step.key)
        lanes.check()
        assert (lanes.depth, lanes.size) == (twin.depth, twin.size)
        assert lanes.depths() == twin.depths()
        assert len(lanes) == len(twin.lanes)
        for key in KEYS:
            lane = twin.lanes.get(key)
            assert lanes.depth_of(key) == (lane.depth if lane else 0)
            assert lanes.has_items(key) == bool(lane and lane.waiting)
    for limit in hit:
        event(f"hit: {limit}")


def alike(one: Refusal | None, other: Refusal | None) -> bool:
    """Equal, but for the rounding of a pace kept in floats."""
    if one is None or other is None:
        return one is other
    return one[:3] == other[:3] and abs(one.retry_after_ns - other.retry_after_ns) <= 1


@given(setup=setups, history=histories(step, 150))
def test_no_bound_is_ever_passed_nor_an_item_refused_that_fits(
    setup: Setup, history: list[Step]
) -> None:
    """Without a twin: the arithmetic of the promise, on what was accepted and not yet settled."""
    lanes: Lanes[str, int] = Lanes(setup.limits, total=setup.total, reserve=setup.reserve)
    held: list[tuple[str, int]] = []  # the key and size of each item
    for number, step in enumerate(history):
        if step.verb == "settle" and lanes.has_items(step.key):
            drained = lanes.drain(step.key, items=1 + step.count % 5, size=1 + step.much % 40)
            lanes.settle(step.key, len(drained.items), drained.size, number)
            for _ in drained.items:
                held.remove(next(item for item in held if item[0] == step.key))
        elif step.verb in ("offer", "finish"):
            size, finishing = step.much % 24, step.verb == "finish"
            extra = setup.reserve if finishing else (0, 0)
            after = [*held, (step.key, size)]
            own = [item for item in after if item[0] == step.key]
            fits = within(own, setup.limits, extra)
            if setup.total is not None:
                fits = fits and within(after, setup.total, extra)
            refusal = lanes.offer(step.key, number, size, number, finishing=finishing)
            assert (refusal is None) == fits
            if fits:
                held = after
        assert lanes.depth == len(held)
        assert lanes.size == sum(size for _, size in held)


def within(items: list[tuple[str, int]], limits: LaneLimits, extra: tuple[int, int]) -> bool:
    size = sum(size for _, size in items)
    return len(items) <= limits.items + extra[0] and size <= limits.size + extra[1]


@given(
    depth=st.integers(8, 400),
    group_max=st.integers(1, 64),
    group_ns=st.integers(1_000, 50 * MS),
    groups=histories(lambda count, *_: count, 40),
    by_item=st.booleans(),
)
def test_the_answer_is_within_a_factor_of_two_of_the_known_rate(
    depth: int, group_max: int, group_ns: int, groups: list[int], by_item: bool
) -> None:
    """A lane is kept full and drained at a known rate: by item, or in groups of one duration.

    In the latter the groups alternate between two sizes, as uneven as they may be.
    """
    lanes: Lanes[str, int] = Lanes(LaneLimits(items=depth))
    for item in range(depth):
        lanes.offer("a", item, 1, 0)
    now_ns = 0
    sizes = (1, min(group_max, depth - 1))
    pace_ns = group_ns if by_item else 2 * group_ns / sum(sizes)
    for number, some in enumerate([*groups, *range(8)]):  # the last eight, for it to be measured
        count = 1 + some % sizes[1] if by_item else sizes[number % 2]
        drained = lanes.drain("a", items=count, size=10**9)
        now_ns += group_ns * count if by_item else group_ns
        lanes.settle("a", len(drained.items), drained.size, now_ns)
        while (refusal := lanes.offer("a", 0, 1, now_ns)) is None:
            pass
    assert refusal.depth == depth
    exact_ns = min(max(depth // 4 * pace_ns, RETRY_MIN_NS), RETRY_MAX_NS)
    assert exact_ns / 2 <= refusal.retry_after_ns <= exact_ns * 2


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=40),
    items=st.integers(1, 6),
    size=st.integers(1, 40),
)
def test_draining_keeps_the_limits_splits_nothing_and_always_gets_on(
    sizes: list[int], items: int, size: int
) -> None:
    lanes: Lanes[str, int] = Lanes(LaneLimits())
    for number, item_size in enumerate(sizes):
        lanes.offer("a", number, item_size, 0)
    left: list[int] = []
    while lanes.has_items("a"):
        drained = lanes.drain("a", items=items, size=size)
        assert 1 <= len(drained.items) <= items
        assert drained.size == sum(sizes[number] for number in drained.items)
        assert drained.size <= size or len(drained.items) == 1
        following = drained.items[-1] + 1
        if following < len(sizes) and len(drained.items) < items:
            assert drained.size + sizes[following] > size, "the next one would have fitted"
        left += drained.items
    assert left == list(range(len(sizes)))
