"""Fairness of the feeder's turns as its docstring promises it, and its books under any history."""

from __future__ import annotations

from collections import Counter, deque
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from fairway.core.priority import WEIGHTS, Band
from fairway.jobs.feeder import Feeder, FeederConfig, ReadyLineTurns
from fairway.jobs.job import Claim, ReadyLine

SECOND_NS = 1_000_000_000

tenants = st.integers(0, 6).map(lambda number: f"t{number}")
lines = st.builds(ReadyLine, st.just("default"), tenants, st.sampled_from(Band))


def bound(known: set[ReadyLine], line: ReadyLine) -> int:
    """The promise: within so many turns everybody who is ready has had one."""
    weights = sum(WEIGHTS[band] for band in {one.band for one in known})
    peers = sum(one.band is line.band for one in known)
    return ceil(peers / WEIGHTS[line.band]) * weights


@given(
    st.sets(lines, min_size=1, max_size=20),
    st.lists(st.integers(1, 40), min_size=1, max_size=40),
    st.data(),
)
def test_nobody_waits_longer_than_the_bound(
    ready: set[ReadyLine], sizes: list[int], data: st.DataObject
) -> None:
    """Counted dumbly: turns since each line had one, whatever sizes the claims have."""
    turns = ReadyLineTurns()
    turns.replace(ready)
    waited = dict.fromkeys(ready, 0)
    for size in sizes:
        if data.draw(st.integers(0, 3)) == 0:
            turns.doubt()  # a look that brings the same lines costs nobody their place
            assert turns.split(size) == []
            turns.replace(ready)
        order = one_by_one(turns, size)
        for served in order:
            for line in ready:
                waited[line] += 1
            assert waited[served] <= bound(ready, served)
            waited[served] = 0
        for line, since in waited.items():
            assert since < bound(ready, line), f"{line} should have had its turn"


def one_by_one(turns: ReadyLineTurns, size: int) -> list[ReadyLine]:
    """Claims of one each: a larger claim is their sum, as the next test shows."""
    return [want.line for _ in range(size) for want in turns.split(1)]


@given(st.sets(lines, min_size=2, max_size=20), st.lists(st.integers(1, 30), max_size=20))
def test_a_large_claim_is_the_sum_of_small_ones(ready: set[ReadyLine], sizes: list[int]) -> None:
    large, small = ReadyLineTurns(), ReadyLineTurns()
    large.replace(ready)
    small.replace(ready)
    for size in sizes:
        wants = large.split(size)
        assert sum(want.most for want in wants) == size
        assert Counter(one_by_one(small, size)) == {want.line: want.most for want in wants}


@given(st.sets(lines, min_size=2, max_size=20), st.integers(1, 6))
def test_shares_follow_the_weights(ready: set[ReadyLine], rounds: int) -> None:
    """Over full rounds each band has its weight exactly, and inside it tenants differ by one."""
    turns = ReadyLineTurns()
    turns.replace(ready)
    bands = {line.band for line in ready}
    weights = sum(WEIGHTS[band] for band in bands)
    got: Counter[ReadyLine] = Counter()
    for want in turns.split(rounds * weights):
        got[want.line] += want.most
    for band in bands:
        shares = [got[line] for line in ready if line.band is band]
        assert sum(shares) == rounds * WEIGHTS[band]
        assert max(shares) - min(shares) <= 1


@given(
    st.lists(st.tuples(st.sampled_from(["add", "drop", "replace", "split", "doubt"]), lines)),
    st.integers(1, 9),
)
def test_only_lines_with_work_are_asked(history: list[tuple[str, ReadyLine]], size: int) -> None:
    turns = ReadyLineTurns()
    known: set[ReadyLine] = set()
    unsure: set[ReadyLine] = set()
    for what, line in history:
        if what == "add":
            turns.add(line)
            known.add(line)
            unsure.discard(line)
        elif what == "drop":
            turns.drop(line)
            known.discard(line)
            unsure.discard(line)
        elif what == "doubt":
            turns.doubt()
            unsure = set(known)
        elif what == "replace":
            known = {one for one in known if one.tenant == line.tenant} | {line}
            turns.replace(known)
            unsure = set()
        else:
            wants = turns.split(size)
            assert {want.line for want in wants} <= known
            assert sum(want.most for want in wants) == (size if known and not unsure else 0)
        assert len(turns) == len(known)


class Dumb:
    """The rules as they are written down, with nothing but counts."""

    def __init__(self, config: FeederConfig) -> None:
        self.config = config
        self.buffer: deque[int] = deque()
        self.running: set[int] = set()
        self.interval_ns = config.poll_interval_ns

    def demand(self) -> int:
        everything = self.config.concurrency + self.config.prefetch
        room = everything - len(self.running) - len(self.buffer)
        idle = not self.running and not self.buffer
        enough = room >= min(self.config.min_demand, everything) or idle
        return room if room > 0 and enough else 0

    def picked(self, ids: list[int]) -> None:
        self.buffer.extend(ids)
        if ids or self.running or self.buffer:
            self.interval_ns = self.config.poll_interval_ns
        else:
            self.interval_ns = min(2 * self.interval_ns, self.config.max_poll_interval_ns)
        self.drain()

    def drain(self) -> None:
        while self.buffer and len(self.running) < self.config.concurrency:
            self.running.add(self.buffer.popleft())


configs = st.builds(
    FeederConfig,
    concurrency=st.integers(1, 5),
    prefetch=st.integers(0, 5),
    min_demand=st.integers(1, 12),
    poll_interval_ns=st.integers(1, 10).map(lambda some: some * SECOND_NS),
    max_poll_interval_ns=st.integers(10, 40).map(lambda some: some * SECOND_NS),
)


@given(configs, st.data())
def test_it_does_what_the_rules_say(config: FeederConfig, data: st.DataObject) -> None:
    feeder, dumb = Feeder("default", config, 0), Dumb(config)
    now_ns = last_id = 0
    for _ in range(data.draw(st.integers(0, 40))):
        if dumb.running and data.draw(st.booleans()):
            id = data.draw(st.sampled_from(sorted(dumb.running)))
            feeder.finished(claim(id))
            dumb.running.remove(id)
            dumb.drain()
            drain(feeder)
        else:
            now_ns = feeder.next_poll_ns
        demand = feeder.demand(now_ns)
        assert demand == dumb.demand()
        if demand:
            ids = [last_id + n + 1 for n in range(data.draw(st.integers(0, demand)))]
            last_id += len(ids)
            feeder.asking(demand)
            assert feeder.demand(now_ns) == 0, "what is asked for already is not asked for again"
            feeder.picked([claim(id) for id in ids], now_ns)
            dumb.picked(ids)
            drain(feeder)
            feeder._vain = 0  # asking in vain has tests of its own
            feeder._held_until_ns = 0
            assert feeder.poll_ns == dumb.interval_ns
        else:
            feeder.asking(0)
            feeder.picked((), now_ns)
            dumb.picked([])
        assert {id for id, _ in feeder.running} == dumb.running
        assert [one.id for one in feeder.buffer] == list(dumb.buffer)
        feeder.check()


def drain(feeder: Feeder) -> None:
    while feeder.start() is not None:
        feeder.check()


def claim(id: int) -> Claim:
    return Claim(
        id, 1, "noop", 1, "run", b"{}", 0, 0, 20, "default", "", 0, None, None, None, False, False
    )
