"""Which connections are read in a turn, by their standing and by the room there is."""

from __future__ import annotations

import pytest

from fairway.runtime.turn import TURN
from fairway.server.http.read_turns import (
    ReadTurns,
    Standing,
)


def waiting(count: int, **more: int) -> ReadTurns[str]:
    """`count` that are known, and as many of other standings as is said, all of one address."""
    turns: ReadTurns[str] = ReadTurns()
    for name, number in {"known": count, **more}.items():
        for index in range(number):
            turns.wait(f"{name}-{index}", Standing[name.upper()], "here")
    return turns


def kinds(taken: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in taken:
        name = item.partition("-")[0]
        found[name] = found.get(name, 0) + 1
    return found


def test_with_room_the_known_are_read_first_and_strangers_have_their_share() -> None:
    turns = waiting(TURN.reads_per_turn, stranger=100, new=100)
    taken = turns.take(room=1000, kept=0, working=True)
    assert kinds(taken) == {
        "known": TURN.reads_per_turn,
        "new": TURN.new_reads_per_turn,
        "stranger": TURN.stranger_reads_per_turn,
    }
    assert taken[0] == "known-0"


def test_a_full_line_refuses_a_few_of_the_known_in_each_turn() -> None:
    turns = waiting(100)
    assert turns.take(room=0, kept=0, working=True) == [
        f"known-{number}" for number in range(TURN.refusals_per_turn)
    ]


def test_places_are_kept_for_those_who_return() -> None:
    turns = waiting(100, returning=10)
    taken = turns.take(room=12, kept=10, working=True)
    assert kinds(taken) == {"returning": 10, "known": TURN.refusals_per_turn}
    taken = turns.take(room=12, kept=4, working=True)
    assert kinds(taken) == {"known": 8 + TURN.refusals_per_turn}


def test_those_who_waited_as_told_are_not_refused_again_but_wait_for_room() -> None:
    turns = waiting(10, returning=10)
    assert kinds(turns.take(room=0, kept=10, working=True)) == {"known": TURN.refusals_per_turn}
    assert kinds(turns.take(room=4, kept=4, working=True)) == {
        "returning": 4,
        "known": TURN.refusals_per_turn,
    }


def test_probes_do_not_wait_for_anybody() -> None:
    turns = waiting(1000, probe=5, stranger=1000)
    taken = turns.take(room=0, kept=0, working=True)
    assert taken[: TURN.probe_reads_per_turn] == [
        f"probe-{number}" for number in range(TURN.probe_reads_per_turn)
    ]


def test_while_nobody_works_strangers_are_told_sooner() -> None:
    turns = waiting(0, stranger=1000)
    assert len(turns.take(room=1000, kept=0, working=False)) == TURN.idle_reads_per_turn


def test_one_holder_with_many_connections_takes_turns_with_another() -> None:
    turns: ReadTurns[str] = ReadTurns()
    for number in range(1000):
        turns.wait(f"greedy-{number}", Standing.KNOWN, "greedy")
    turns.wait("modest-0", Standing.KNOWN, "modest")
    assert "modest-0" in turns.take(room=2, kept=0, working=True)


def test_whoever_left_is_not_read_and_takes_nobodys_turn() -> None:
    turns = waiting(3)
    turns.leave("known-0")
    turns.leave("known-0")
    assert turns.take(room=1, kept=0, working=True)[0] == "known-1"
    turns.check()


def test_nobody_waits_twice() -> None:
    turns = waiting(1)
    with pytest.raises(AssertionError, match="twice"):
        turns.wait("known-0", Standing.NEW, "here")
