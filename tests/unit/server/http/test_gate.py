"""Who begins in which turn of the loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairway.core.priority import Band
from fairway.errors import Throttled
from fairway.runtime.clock import clock_of
from fairway.runtime.turn import TURN, TurnBudget
from fairway.server.http.gate import KEPT_MAX, PROBES_MAX, WAITING_MAX, RequestGate
from fairway.server.http.limits import HttpLimits
from fairway.server.http.peers import Peer, Peers
from fairway.testing import run

PER_TURN = TURN.requests_per_turn


class Line:
    """A gate, and who has begun in which turn."""

    def __init__(self, turn: TurnBudget = TURN) -> None:
        self.bands: dict[str, Band] = {}
        self.gate = RequestGate(clock_of(), lambda key: self.bands.get(key, Band.B2), turn=turn)
        self.turn = 0
        self.begun: list[tuple[int, str]] = []

    def ask(self, key: str, band: Band = Band.B2, peer: Peer | None = None) -> None:
        self.bands[key] = band
        if self.gate.passes():
            self.begin(key)
        else:
            self.gate.wait(key, lambda: self.begin(key), peer)

    def refuse(self, peer: Peer) -> int:
        """Ask for it and be refused; the wait it is told, in nanoseconds."""
        with pytest.raises(Throttled) as refusal:
            self.ask("a", peer=peer)
        return refusal.value.retry_after_ns

    def begin(self, key: str) -> None:
        self.begun.append((self.turn, key))

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)
            self.turn += 1


def on_line(body: Any, turn: TurnBudget = TURN) -> None:
    async def main() -> None:
        await body(Line(turn))

    run(main, quiet=True)


def test_an_idle_gate_is_open() -> None:
    async def body(line: Line) -> None:
        for _ in range(3):
            line.ask("a")
            assert line.begun[-1] == (line.turn, "a")
            await line.turns(3)

    on_line(body)


def test_the_budget_says_how_many_begin_and_how_many_urgent_ones_beside_them() -> None:
    async def body(line: Line) -> None:
        for _ in range(10):
            line.ask("a")
        for _ in range(10):
            line.ask("u", Band.B4)
        assert [key for _, key in line.begun] == ["a"] * 3 + ["u"] * 3

    on_line(body, TurnBudget(requests_per_turn=3))


def test_a_few_begin_in_each_turn_and_all_of_them_in_the_end() -> None:
    async def body(line: Line) -> None:
        for _ in range(5 * PER_TURN):
            line.ask("a")
        assert len(line.begun) == PER_TURN
        await line.turns(20)
        assert len(line.begun) == 5 * PER_TURN
        # The counter of turns lags a turn behind at first: two turns may look like one.
        assert all(
            sum(turn == at for turn, _ in line.begun) <= PER_TURN for at in range(1, line.turn)
        )

    on_line(body)


def test_another_topic_does_not_wait_for_the_whole_line() -> None:
    async def body(line: Line) -> None:
        for _ in range(20 * PER_TURN):
            line.ask("flood")
        line.ask("other")
        await line.turns(3)
        assert "other" in [key for _, key in line.begun]

    on_line(body)


def test_an_urgent_one_begins_in_the_turn_it_comes() -> None:
    async def body(line: Line) -> None:
        for _ in range(20 * PER_TURN):
            line.ask("flood")
        for number in range(2 * PER_TURN):
            line.ask(f"urgent-{number}", Band.B4)
        begun = [key for turn, key in line.begun if key != "flood"]
        assert begun == [f"urgent-{number}" for number in range(PER_TURN)], "within a bound"
        await line.turns(8)
        assert len([key for _, key in line.begun if key != "flood"]) == 2 * PER_TURN
        assert len([key for _, key in line.begun if key == "flood"]) >= PER_TURN

    on_line(body)


def test_what_comes_later_does_not_overtake_its_own_topic() -> None:
    order: list[int] = []

    async def body(line: Line) -> None:
        line.bands["urgent"] = Band.B4
        for number in range(4 * PER_TURN):
            if line.gate.passes():
                order.append(number)
            else:
                line.gate.wait("urgent", lambda number=number: order.append(number))
        await line.turns(10)

    on_line(body)
    assert order == list(range(4 * PER_TURN))


def test_a_full_line_refuses_and_says_when_to_come_back() -> None:
    async def body(line: Line) -> None:
        for _ in range(WAITING_MAX + PER_TURN):
            line.ask("a")
        with pytest.raises(Throttled) as refusal:
            line.ask("a")
        assert refusal.value.retry_after_ns > 0
        assert line.gate.fill == 1.0
        assert refusal.value.limit == "waiting_requests"

    on_line(body)


def peer() -> Peer:
    return Peer(Peers(HttpLimits()), "here", lambda: None)


async def fill(line: Line) -> None:
    while line.gate.line_state.room:
        line.ask("a")


def test_whoever_waits_as_it_was_told_finds_the_place_that_was_kept() -> None:
    async def body(line: Line) -> None:
        await fill(line)
        patient = peer()
        wait_ns = line.refuse(patient)
        await line.turns(1)  # the line moves, and others want every place
        for _ in range(PER_TURN - 1):
            line.ask("a", peer=peer())
        line.refuse(peer())  # there is one, and it is kept
        assert line.refuse(patient) == wait_ns, "it did not wait; its place stays its own"
        await asyncio.sleep(wait_ns / 1e9)
        await fill_but(line, 1)
        line.ask("a", peer=patient)
        assert not patient.due_ns

    on_line(body)


async def fill_but(line: Line, places: int) -> None:
    while line.gate.line_state.room > places:
        back = peer()
        back.due_ns = 1
        line.gate._reservations.outstanding += 1
        line.ask("a", peer=back)


def test_those_who_come_back_do_so_one_after_the_other() -> None:
    async def body(line: Line) -> None:
        await fill(line)
        told = [line.refuse(peer()) for _ in range(100)]
        assert told == sorted(set(told))

    on_line(body)


def test_no_place_is_kept_for_whoever_left() -> None:
    async def body(line: Line) -> None:
        await fill(line)
        gone = [peer() for _ in range(2 * KEPT_MAX)]
        for one in gone:
            line.refuse(one)
        assert line.gate.line_state.kept == KEPT_MAX
        for one in gone:
            line.gate.forget(one)
            line.gate.forget(one)
        assert line.gate.line_state.kept == 0

    on_line(body)


def test_a_probe_is_let_in_where_others_are_refused() -> None:
    async def body(line: Line) -> None:
        await fill(line)
        for _ in range(PROBES_MAX):
            line.gate.wait("/metrics", lambda: None, probes=True)
        with pytest.raises(Throttled):
            line.gate.wait("/metrics", lambda: None, probes=True)
        assert line.gate.fill == 1.0

    on_line(body)


def test_one_that_cannot_begin_jams_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def body(line: Line) -> None:
        for _ in range(PER_TURN):
            line.ask("a")
        line.gate.wait("a", lambda: 1 // 0)
        line.ask("a")
        await line.turns(3)
        assert len(line.begun) == PER_TURN + 1

    on_line(body)
    assert "could not begin" in caplog.text


def test_whoever_is_alone_in_line_has_the_whole_turn_and_shares_it_with_a_second() -> None:
    async def body(line: Line) -> None:
        for _ in range(2 * PER_TURN):
            line.ask("a")
        await line.turns(1)
        assert [key for _, key in line.begun] == ["a"] * 2 * PER_TURN
        await line.turns(2)
        line.begun.clear()
        for _ in range(3 * PER_TURN):
            line.ask("a")
        for _ in range(PER_TURN):
            line.ask("b")
        line.begun.clear()  # those who found the gate open
        await line.turns(1)
        assert [key for _, key in line.begun] == ["a", "b"] * (PER_TURN // 2)

    on_line(body)


def test_a_topic_whose_priority_rises_while_it_waits_is_served_in_its_new_band() -> None:
    async def body(line: Line) -> None:
        for _ in range(PER_TURN):
            line.ask("first")
        for _ in range(9 * PER_TURN):
            line.ask("crowd", Band.B3)
        for _ in range(3 * PER_TURN):
            line.ask("risen", Band.B0)
        line.begun.clear()
        await line.turns(2)
        begun = [key for _, key in line.begun]
        assert begun.count("risen") <= len(begun) // 5 + 1, "it waits in the lowest band"
        line.bands["risen"] = Band.B3
        line.begun.clear()
        await line.turns(4)
        assert [key for _, key in line.begun].count("risen") >= PER_TURN, "it takes turns with it"

    on_line(body)


def test_others_are_let_in_between_two_requests_of_a_turn() -> None:
    async def main() -> None:
        told: list[str] = []
        gate = RequestGate(clock_of(), lambda key: Band.B2, lambda: told.append("meanwhile"))
        while gate.passes():
            pass
        for name in "ab":
            gate.wait(name, lambda name=name: told.append(name))  # type: ignore[misc]
        assert told == ["meanwhile"] * 2, "also between two that are only read"
        told.clear()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert told == ["a", "meanwhile", "b", "meanwhile"]

    run(main, quiet=True)


def test_others_are_let_in_after_a_request_that_is_urgent() -> None:
    async def main() -> None:
        told: list[str] = []
        gate = RequestGate(clock_of(), lambda key: Band.B4, lambda: told.append("meanwhile"))
        while gate.passes():
            pass
        gate.wait("a", lambda: told.append("a"))
        assert told == ["a", "meanwhile"]

    run(main, quiet=True)
