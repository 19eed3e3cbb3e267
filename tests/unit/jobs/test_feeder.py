"""The feeder: when it asks, for how much, how soon it looks again, and whose turn it is.

The rules are those of the design this was built after: a claim is for all the room there is; only
with room for `min_demand`, unless the queue is idle; an empty look on an idle queue doubles the
interval, anything else snaps it back; what ends is followed from the buffer without asking.
"""

from __future__ import annotations

from collections import Counter

import pytest

from fairway.core.priority import Band
from fairway.errors import InvalidConfig
from fairway.jobs.feeder import VAIN_LOOKS_MAX, VAIN_PAUSE_NS, Feeder, FeederConfig, ReadyLineTurns
from fairway.jobs.job import Claim, ReadyLine

SECOND_NS = 1_000_000_000


def claim(id: int, token: int = 1) -> Claim:
    return Claim(
        id, token, "noop", 1, "run", b"{}", 0, 0, 20, "default", "", 0, None, None, None, False,
        False,
    )  # fmt: skip


def claims(*ids: int) -> list[Claim]:
    return [claim(id) for id in ids]


def line(tenant: str = "", band: Band = Band.B1) -> ReadyLine:
    return ReadyLine("default", tenant, band)


def feeder(**config: int) -> Feeder:
    made = Feeder("default", FeederConfig(**config), 0)
    made.lines.add(line())
    return made


def pick(one: Feeder, now_ns: int, *ids: int) -> list[int]:
    """An exchange that brought these; the jobs that start."""
    one.asking(one.demand(now_ns))
    one.picked(claims(*ids), now_ns)
    return start(one)


def start(one: Feeder) -> list[int]:
    started = []
    while (got := one.start()) is not None:
        started.append(got.id)
    one.check()
    return started


# --- demand


def test_it_looks_at_once_and_asks_for_everything_it_has_room_for() -> None:
    one = feeder(concurrency=4, prefetch=3)
    assert one.due(0)
    assert one.demand(0) == 7


def test_while_an_exchange_is_under_way_its_claims_are_room_no_more() -> None:
    one = feeder(concurrency=4, prefetch=3)
    one.asking(5)
    one.stir()
    assert one.demand(0) == 2


def test_at_most_concurrency_run_and_the_rest_waits_in_the_buffer() -> None:
    one = feeder(concurrency=2, prefetch=2)
    assert pick(one, 0, 1, 2, 3, 4) == [1, 2]
    assert [waiting.id for waiting in one.buffer] == [3, 4]
    assert one.room == 0


def test_a_finished_job_is_followed_from_the_buffer_without_asking() -> None:
    one = feeder(concurrency=2, prefetch=2, min_demand=2)
    pick(one, 0, 1, 2, 3, 4)
    one.finished(claim(1))
    assert one.demand(0) == 0  # room for one, and two are the least
    assert start(one) == [3]
    one.finished(claim(2))
    assert one.demand(0) == 2


def test_nothing_is_asked_without_a_reason() -> None:
    one = feeder(concurrency=4)
    pick(one, 0, 1)
    assert one.room == 3
    assert one.demand(1) == 0
    one.stir()
    assert one.demand(1) == 3


def test_the_least_demand_is_ignored_while_idle() -> None:
    one = feeder(concurrency=4, min_demand=4)
    pick(one, 0, 1)
    one.stir()
    assert one.demand(0) == 0  # room for three
    one.finished(claim(1))
    assert one.idle
    assert one.demand(0) == 4


def test_a_least_demand_beyond_all_there_is_is_clamped() -> None:
    one = feeder(concurrency=2, prefetch=1, min_demand=1_000)
    pick(one, 0, 1, 2, 3)
    one.finished(claim(1))
    start(one)
    assert one.demand(0) == 0
    one.finished(claim(2))
    one.finished(claim(3))
    assert one.demand(0) == 3  # idle, and also: all there is


def test_a_least_demand_clamped_is_met_by_an_empty_feeder_that_is_not_idle_for_others() -> None:
    one = feeder(concurrency=1, prefetch=2, min_demand=3)
    pick(one, 0, 1)
    one.stir()
    assert one.demand(0) == 0
    one.apply_pressure(1.0)  # under pressure there is no prefetch: all there is, is one
    assert one.demand(0) == 0
    one.finished(claim(1))
    assert one.demand(0) == 1


# --- polling


def polls(one: Feeder, times: int) -> list[int]:
    """The intervals after that many empty looks, each when it is due."""
    seen = []
    for _ in range(times):
        assert one.due(one.next_poll_ns)
        assert not one.due(one.next_poll_ns - 1)
        now_ns = one.next_poll_ns
        one.asking(0)
        one.picked((), now_ns)
        seen.append(one.next_poll_ns - now_ns)
    return seen


def test_an_empty_look_on_an_idle_queue_doubles_the_interval_up_to_the_cap() -> None:
    one = feeder(poll_interval_ns=SECOND_NS, max_poll_interval_ns=5 * SECOND_NS)
    assert polls(one, 4) == [2 * SECOND_NS, 4 * SECOND_NS, 5 * SECOND_NS, 5 * SECOND_NS]


def test_something_found_snaps_it_back() -> None:
    one = feeder()
    polls(one, 3)
    pick(one, one.next_poll_ns, 1)
    assert one.poll_ns == SECOND_NS


def test_an_empty_look_on_a_busy_queue_snaps_it_back() -> None:
    one = feeder(concurrency=2)
    pick(one, 0, 1)
    one.poll_ns = 4 * SECOND_NS
    assert polls(one, 2) == [SECOND_NS, SECOND_NS]


def test_the_empty_look_after_the_last_job_doubles_it() -> None:
    one = feeder()
    pick(one, 0, 1)
    one.finished(claim(1))
    pick(one, 10)
    assert one.next_poll_ns == 10 + 2 * SECOND_NS


def test_a_claim_that_fell_short_and_the_look_that_follows_double_it_once() -> None:
    one = feeder()
    pick(one, 0, 1)
    one.finished(claim(1))
    one.asking(one.demand(10))
    one.lines.doubt()
    one.picked((), 10, looked=False)
    assert one.poll_ns == SECOND_NS
    one.asking(0)
    one.lines.replace(())
    one.picked((), 11)
    assert one.poll_ns == 2 * SECOND_NS


def test_seeing_that_something_is_there_snaps_it_back() -> None:
    one = feeder()
    polls(one, 3)
    one.asking(0)
    one.picked((), 100 * SECOND_NS, more=True)
    assert one.next_poll_ns == 101 * SECOND_NS


def test_claims_do_not_put_off_the_next_look() -> None:
    one = feeder(concurrency=1)
    pick(one, 0, 1)
    for number in range(2, 12):
        now_ns = number * SECOND_NS // 10
        one.finished(claim(number - 1))
        one.asking(one.demand(now_ns))
        one.picked(claims(number), now_ns, looked=False)
        assert start(one) == [number]
    assert one.next_poll_ns == SECOND_NS
    assert one.due(11 * SECOND_NS // 10)


def test_an_exchange_that_failed_is_asked_for_again() -> None:
    one = feeder(concurrency=3)
    one.asking(one.demand(0))
    assert one.room == 0
    one.failed()
    assert one.demand(0) == 3


# --- limits, and asking in vain


def test_a_queue_at_its_rate_is_asked_again_when_it_was_said_to() -> None:
    one = feeder(concurrency=3)
    pick(one, 0)
    one.hold_back(SECOND_NS // 4, 0)
    one.stir()
    assert one.demand(SECOND_NS // 4 - 1) == 0
    assert one.next_poll_ns == SECOND_NS // 4
    assert one.demand(SECOND_NS // 4) == 3


def test_a_queue_far_from_its_next_start_is_looked_at_as_usual() -> None:
    """Another process may have raised the rate, or taken it away."""
    one = feeder(concurrency=3)
    pick(one, 0)
    one.hold_back(3600 * SECOND_NS, 0)
    assert one.next_poll_ns == SECOND_NS
    assert one.demand(SECOND_NS) == 3


def test_a_queue_whose_limits_were_changed_here_is_asked_at_once() -> None:
    one = feeder(concurrency=3)
    pick(one, 0)
    one.hold_back(3600 * SECOND_NS, 0)
    assert one.demand(1) == 0
    one.let_go()
    assert one.demand(1) == 3


def test_a_queue_at_its_rate_gives_nothing_because_a_job_ended() -> None:
    one = feeder(concurrency=3)
    pick(one, 0, 1)
    one.hold_back(SECOND_NS, 0)
    one.finished(claim(1))
    assert one.demand(1) == 0


def test_a_queue_with_all_it_may_run_is_not_asked_all_the_time() -> None:
    one = feeder(concurrency=3)
    pick(one, 0, 1)
    one.hold_back(0, 0)  # nobody knows when one of them ends
    one.stir()
    assert one.demand(SECOND_NS - 1) == 0
    assert one.next_poll_ns == SECOND_NS
    one.finished(claim(1))
    assert one.demand(1) == 3


def test_who_asks_in_vain_rests_a_while() -> None:
    one = feeder(concurrency=1)
    for _ in range(VAIN_LOOKS_MAX):
        one.stir()
        assert one.demand(0) == 1
        one.asking(1)
        one.picked((), 0, more=True)
    one.stir()
    assert one.demand(0) == 0
    assert one.next_poll_ns == VAIN_PAUSE_NS
    assert one.demand(VAIN_PAUSE_NS) == 1
    pick(one, VAIN_PAUSE_NS, 1)
    one.finished(claim(1))
    assert one.demand(VAIN_PAUSE_NS) == 1


# --- slots


def test_the_end_of_an_old_run_does_not_free_the_slot_of_the_job_s_new_one() -> None:
    one = feeder(concurrency=2)
    one.picked([claim(7, token=1)], 0)
    start(one)
    one.picked([claim(7, token=2)], 0)
    start(one)
    assert one.room == 0  # both run, whatever became of the first one's lease
    one.finished(claim(7, token=1))
    one.finished(claim(7, token=1))
    assert one.room == 1


def test_what_did_not_start_is_given_back() -> None:
    one = feeder(concurrency=1, prefetch=5)
    pick(one, 0, 1, 2, 3)
    assert [back.id for back in one.release()] == [2, 3]
    assert not one.buffer
    assert one.release() == []


@pytest.mark.parametrize(
    "config",
    [
        {"concurrency": 0},
        {"prefetch": -1},
        {"min_demand": 0},
        {"poll_interval_ns": 0},
        {"poll_interval_ns": 2, "max_poll_interval_ns": 1},
    ],
)
def test_a_config_that_cannot_work_is_refused(config: dict[str, int]) -> None:
    with pytest.raises(InvalidConfig):
        FeederConfig(**config)


# --- turns


def test_one_line_gets_all() -> None:
    lines = ReadyLineTurns()
    lines.add(line("a"))
    assert lines.split(100) == [(line("a"), 100)]
    assert lines.split(0) == []


def test_tenants_of_a_band_take_turns() -> None:
    lines = ReadyLineTurns()
    lines.replace(line(tenant) for tenant in "abc")
    assert [(want.line.tenant, want.most) for want in lines.split(4)] == [
        ("a", 2),
        ("b", 1),
        ("c", 1),
    ]
    assert [want.line.tenant for want in lines.split(2)] == ["b", "c"]


def test_a_tenant_with_many_lines_in_a_band_has_one_turn() -> None:
    """Jobs that were set aside have lines of their own, which gives their tenant no more turns."""
    lines = ReadyLineTurns()
    skilled = [line("a")._replace(skill=str(number)) for number in range(9)]
    lines.replace([line("a"), *skilled, line("b")])
    got: Counter[ReadyLine] = Counter()
    for want in lines.split(40):
        got[want.line] += want.most
    assert got == {line("b"): 20, line("a"): 2, **dict.fromkeys(skilled, 2)}
    lines.drop(skilled[0])
    lines.replace([skilled[1], line("b")])
    assert [(want.line, want.most) for want in lines.split(2)] == [(skilled[1], 1), (line("b"), 1)]
    lines.replace([line("b")])
    assert lines.split(2) == [(line("b"), 2)]


def test_a_tenant_keeps_its_place_when_another_of_its_lines_has_the_work() -> None:
    lines = ReadyLineTurns()
    lines.replace(line(tenant) for tenant in "abc")
    moved = line("a")._replace(skill="new")
    lines.replace([moved, line("b"), line("c")])
    assert [want.line for want in lines.split(1)] == [moved]


def test_bands_share_by_weight() -> None:
    lines = ReadyLineTurns()
    lines.replace(line("a", band) for band in Band)
    got: Counter[Band] = Counter()
    for _ in range(20):
        for want in lines.split(8):
            got[want.line.band] += want.most
    assert got == {Band.B4: 80, Band.B3: 40, Band.B2: 20, Band.B1: 10, Band.B0: 10}


def test_in_doubt_nothing_is_asked_until_somebody_looked() -> None:
    lines = ReadyLineTurns()
    lines.replace(line(tenant) for tenant in "abc")
    lines.split(1)
    lines.doubt()
    assert lines.doubtful
    assert lines.split(3) == []
    lines.add(line("b"))  # of the others nothing is known
    assert lines.split(3) == []
    lines.replace([line("a"), line("c"), line("d")])
    assert [want.line.tenant for want in lines.split(3)] == ["c", "a", "d"]  # places are kept


def test_doubt_ends_when_every_line_is_known_to_have_work_again() -> None:
    lines = ReadyLineTurns()
    lines.add(line("a"))
    lines.doubt()
    lines.add(line("a"))
    assert lines.split(2) == [(line("a"), 2)]
