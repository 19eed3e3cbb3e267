"""Health: the tables are the law, and a reactor that only looks at its sources never breaks it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.graphs.health import (
    CHECKPOINT,
    FIRING,
    HEALTHY,
    REACTOR_MOVES,
    SOURCE_MOVES,
    IllegalMove,
    ReactorHealth,
    ReactorState,
    SourceHealth,
    SourceState,
)

S, R = SourceState, ReactorState


def source(
    name: str = "quotes",
    state: SourceState = S.STARTING,
    *,
    required: bool = True,
    stale_after_ns: int | None = None,
) -> SourceHealth:
    made = SourceHealth(name, required=required, stale_after_ns=stale_after_ns)
    made.state = state
    return made


def reactor(*sources: SourceHealth, warm_timeout_ns: int | None = None) -> ReactorHealth:
    return ReactorHealth(sources, warm_timeout_ns=warm_timeout_ns)


# The tables


@pytest.mark.parametrize("before", S)
@pytest.mark.parametrize("after", S)
def test_a_source_moves_as_the_table_says(before: SourceState, after: SourceState) -> None:
    health = source(state=before)
    told: list[SourceState] = []
    health.changed = lambda: told.append(health.state)
    if after in SOURCE_MOVES[before]:
        health.move(after, "why")
        assert (health.state, health.why, told) == (after, "why", [after])
    elif after is before:
        health.move(after, "again")
        assert (health.state, health.why, told) == (before, "again", [])
    else:
        with pytest.raises(IllegalMove, match=f"quotes: {before.value} -> {after.value}"):
            health.move(after)
        assert (health.state, told) == (before, [])


def test_every_state_has_moves_and_is_reached() -> None:
    for moves, states, first in (
        (SOURCE_MOVES, set(S), S.STARTING),
        (REACTOR_MOVES, set(R), R.STARTING),
    ):
        assert set(moves) == states
        assert {first} | {each for after in moves.values() for each in after} == states
        assert all(before not in after for before, after in moves.items())


def test_every_legal_move_of_a_reactor_is_made_by_some_history_and_no_other() -> None:
    made: set[tuple[ReactorState, ReactorState]] = set()
    draw = random.Random(4)  # enough of them meet every move; which ones does not matter
    for _ in range(300):
        one = source(stale_after_ns=draw.choice([None, 5]))
        health = reactor(one, warm_timeout_ns=draw.choice([None, 3]))
        now_ns = 0
        for _ in range(30):
            now_ns += draw.randrange(4)
            before = health.state
            wander(health, one, draw, now_ns)
            if health.state is not before:
                made.add((before, health.state))
    # `restored` may go through live to degraded at once: that is two moves, both told.
    made.discard((R.STARTING, R.DEGRADED))
    assert made == {(before, after) for before, moves in REACTOR_MOVES.items() for after in moves}


def wander(health: ReactorHealth, one: SourceHealth, draw: random.Random, now_ns: int) -> None:
    if health.state is R.STARTING and draw.random() < 0.5:
        health.restored(now_ns)
    elif draw.random() < 0.1:
        health.stopped(now_ns)
    elif draw.random() < 0.1:
        health.checkpoint_fails = not health.checkpoint_fails
    elif draw.random() < 0.3:
        one.event_ns = now_ns
    else:
        one.move(draw.choice(sorted(SOURCE_MOVES[one.state], key=lambda state: state.value)))
    health.look(now_ns)


@pytest.mark.parametrize(
    ("before", "call"),
    [
        (R.LIVE, "restored"),
        (R.STOPPED, "restored"),
    ],
)
def test_what_a_reactor_never_does(before: ReactorState, call: str) -> None:
    health = reactor(source())
    health.state = before
    with pytest.raises(IllegalMove, match=before.value):
        getattr(health, call)(0)
    assert health.state is before


@given(
    sources=st.lists(
        st.tuples(st.booleans(), st.none() | st.integers(1, 9)), min_size=1, max_size=4
    ),
    warm_timeout_ns=st.none() | st.integers(1, 20),
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99), st.integers(0, 5))),
)
def test_no_history_of_sources_makes_an_illegal_move(
    sources: list[tuple[bool, int | None]],
    warm_timeout_ns: int | None,
    steps: list[tuple[int, int, int]],
) -> None:
    """And the state is what the sources say, whatever happened before."""
    made = [
        source(str(number), required=required, stale_after_ns=stale_after_ns)
        for number, (required, stale_after_ns) in enumerate(sources)
    ]
    health = reactor(*made, warm_timeout_ns=warm_timeout_ns)
    now_ns = 0
    health.restored(now_ns)
    for verb, which, more in steps:
        now_ns += more
        one = made[which % len(made)]
        if verb == 0:
            health.checkpoint_fails = not health.checkpoint_fails
        elif verb < 4:
            one.event_ns = now_ns
        else:
            moves = sorted(SOURCE_MOVES[one.state], key=lambda state: state.value)
            one.move(moves[which % len(moves)])
        before = health.state
        assert health.look(now_ns) == (health.state is not before)
        lacking = [one.name for one in made if one.required and not one.healthy(now_ns)]
        assert health.waiting(now_ns).waiting == tuple(lacking)
        if health.state is R.WARMING:
            assert lacking
            assert warm_timeout_ns is None or now_ns < warm_timeout_ns
        elif before in FIRING:
            bad = bool(lacking) or health.checkpoint_fails
            assert health.state is (R.DEGRADED if bad else R.LIVE)
        missing = {one.name for one in made if not one.healthy(now_ns)}
        told = health.degraded(now_ns)
        assert set(told) - {CHECKPOINT} == missing
        deadline_ns = health.deadline_ns(now_ns)
        assert deadline_ns is None or deadline_ns > now_ns
        check_nothing_changes_before(health, now_ns, deadline_ns)
    assert len(health.moves) <= 32


def check_nothing_changes_before(
    health: ReactorHealth, now_ns: int, deadline_ns: int | None
) -> None:
    """Who wakes at the deadline misses nothing."""
    for later_ns in range(now_ns, deadline_ns or now_ns + 30):
        assert not health.look(later_ns)


# By name


def test_it_warms_until_all_required_sources_are_healthy() -> None:
    one, two, extra = source("one"), source("two"), source("extra", required=False)
    health = reactor(one, two, extra)
    assert health.state not in FIRING
    health.restored(10)
    assert health.state is R.WARMING
    one.move(S.SOCKET_ONLY)
    assert not health.look(11)
    assert health.waiting(11) == type(health.waiting(11))(("one",), ("two",))
    two.move(S.CONNECTING)
    two.move(S.LIVE)
    assert health.look(12)
    assert health.state is R.LIVE
    assert health.moves == [(10, R.WARMING), (12, R.LIVE)]


def test_defect_12_one_dead_source_does_not_block_the_graph_for_ever() -> None:
    """Upstream waits without end: no timeout, no optional source, no rule for stale ones."""
    dead = source("dead", S.CONNECTING)
    health = reactor(dead, source("good", S.LIVE), warm_timeout_ns=60)
    health.restored(100)
    assert health.state is R.WARMING
    assert health.deadline_ns(100) == 160
    assert not health.look(159)
    assert health.look(160)
    assert health.state is R.DEGRADED
    assert health.degraded(160) == ("dead",)
    dead.move(S.LIVE)
    assert health.look(161)
    assert health.state is R.LIVE
    assert health.degraded(161) == ()

    optional = source("optional", S.CONNECTING, required=False)
    health = reactor(optional, source("good", S.LIVE))
    health.restored(0)
    assert health.state is R.LIVE
    assert health.degraded(0) == ("optional",), "a firing is told what it lacks"


def test_a_source_that_brings_nothing_goes_stale_and_comes_back() -> None:
    one = source("one", S.LIVE, stale_after_ns=10)
    health = reactor(one)
    health.restored(5)
    assert health.state is R.LIVE
    assert health.deadline_ns(5) == 15
    one.event_ns = 12
    assert not health.look(15)
    assert health.deadline_ns(15) == 22
    assert health.look(22)
    assert health.state is R.DEGRADED
    assert health.degraded(22) == ("one",)
    assert health.deadline_ns(22) is None
    one.event_ns = 30
    assert health.look(30)
    assert health.state is R.LIVE


def test_a_stale_source_that_is_optional_is_told_and_changes_nothing() -> None:
    health = reactor(source("one", S.LIVE), source("two", S.LIVE, required=False, stale_after_ns=3))
    health.restored(0)
    assert not health.look(3)
    assert health.state is R.LIVE
    assert health.degraded(3) == ("two",)


def test_records_that_fail_degrade_it() -> None:
    health = reactor(source("one", S.LIVE))
    health.restored(0)
    health.checkpoint_fails = True
    assert health.look(1)
    assert health.state is R.DEGRADED
    assert health.degraded(1) == (CHECKPOINT,)
    health.checkpoint_fails = False
    assert health.look(2)
    assert health.state is R.LIVE


def test_records_that_fail_from_the_start() -> None:
    health = reactor(source("one", S.LIVE))
    health.checkpoint_fails = True
    health.restored(0)
    assert health.state is R.DEGRADED


def test_records_that_fail_while_it_warms() -> None:
    one = source("one", S.CONNECTING)
    health = reactor(one)
    health.restored(0)
    health.checkpoint_fails = True
    one.move(S.LIVE)
    assert health.look(1)
    assert health.state is R.DEGRADED
    assert not health.look(1), "one look is enough"


def test_a_stopped_reactor_looks_at_nothing_any_more() -> None:
    one = source("one", S.LIVE)
    health = reactor(one)
    health.restored(0)
    health.stopped(1)
    health.stopped(2)
    one.move(S.DISCONNECTED)
    assert not health.look(3)
    assert health.state is R.STOPPED


def test_only_live_and_socket_only_are_healthy() -> None:
    assert {state for state in S if source(state=state).healthy(0)} == HEALTHY


def test_moves_are_kept_and_bounded() -> None:
    one: Any = source("one", S.LIVE)
    health = reactor(one)
    health.restored(0)
    for at_ns in range(1, 100):
        one.move(S.DISCONNECTED if at_ns % 2 else S.LIVE)
        health.look(at_ns)
    assert len(health.moves) == 32
    assert health.moves[-1] == (99, R.DEGRADED)
