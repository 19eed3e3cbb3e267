"""Reading in turns: bounds on each turn, order within a holder, and nobody starves."""

from __future__ import annotations

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from fairway.runtime.turn import TURN
from fairway.server.http.read_turns import (
    ReadTurns,
    Standing,
)

arrivals = st.lists(
    st.tuples(st.sampled_from(Standing), st.integers(0, 4)), min_size=0, max_size=200
)
rooms = st.tuples(st.integers(0, 100), st.integers(0, 40), st.booleans())


@given(st.lists(st.tuples(arrivals, rooms, st.integers(0, 5)), max_size=12))
def test_a_turn_keeps_its_bounds_whatever_waits(
    history: list[tuple[list[tuple[Standing, int]], tuple[int, int, bool], int]],
) -> None:
    turns: ReadTurns[int] = ReadTurns()
    standing: dict[int, Standing] = {}
    holder: dict[int, int] = {}
    last_read: dict[tuple[Standing, int], int] = {}
    number = 0
    for arrived, (room, kept, working), leaving in history:
        for kind, whose in arrived:
            turns.wait(number, kind, whose)
            standing[number], holder[number] = kind, whose
            number += 1
        for item in list(standing)[:leaving]:
            turns.leave(item)
            del standing[item]
        before = len(turns)
        taken = turns.take(room=room, kept=kept, working=working)
        turns.check()
        assert len(turns) == before - len(taken)
        count = dict.fromkeys(Standing, 0)
        for item in taken:
            kind = standing.pop(item)  # it waited, and is read once
            count[kind] += 1
            place = (kind, holder[item])
            assert last_read.get(place, -1) < item, "the connections of one holder are in order"
            last_read[place] = item
        served = count[Standing.RETURNING] + count[Standing.KNOWN]
        assert count[Standing.PROBE] <= TURN.probe_reads_per_turn
        assert served <= TURN.reads_per_turn
        assert served <= room + TURN.refusals_per_turn, "refusing has a share of its own"
        assert count[Standing.KNOWN] <= max(0, room - kept) + TURN.refusals_per_turn
        assert count[Standing.NEW] <= (
            TURN.new_reads_per_turn if working else TURN.idle_reads_per_turn
        )
        assert count[Standing.STRANGER] <= (
            TURN.stranger_reads_per_turn if working else TURN.idle_reads_per_turn
        )
        if any(kind is Standing.RETURNING for kind in standing.values()):
            assert count[Standing.KNOWN] == 0 or count[Standing.RETURNING] >= min(
                room, TURN.reads_per_turn
            ), "whoever returns has the room first"


@given(
    st.sampled_from([Standing.KNOWN, Standing.NEW, Standing.STRANGER]),
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.integers(0, 5),
)
def test_nobody_starves_however_many_others_come(
    kind: Standing, ahead: list[int], whose: int
) -> None:
    """The stated bound, with a flood of every other holder and standing that never ends."""
    whose %= len(ahead)
    turns: ReadTurns[object] = ReadTurns()
    for holder, count in enumerate(ahead):
        for _ in range(count):
            turns.wait(object(), kind, holder)
    me = object()
    turns.wait(me, kind, whose)
    reads = {
        Standing.KNOWN: TURN.refusals_per_turn,
        Standing.NEW: TURN.new_reads_per_turn,
        Standing.STRANGER: TURN.stranger_reads_per_turn,
    }[kind]
    for _ in range(ceil((ahead[whose] + 1) * len(ahead) / reads)):
        taken = turns.take(room=0, kept=0, working=True)
        if any(item is me for item in taken):
            return
        for item in taken:  # refused, and back at once
            turns.wait(item, kind, hash(item) % len(ahead))
        for other in Standing:
            if other is not kind and other is not Standing.RETURNING:
                turns.wait(object(), other, "flood")
    raise AssertionError("it was not read in time")
