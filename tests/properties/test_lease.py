"""The lease table against one that looks at every lease every time, over random histories.

Histories step the clock back, take keys over, use stale tokens and restart from a store's rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fairway.core.lease import Held, Lease, LeaseConfig, LeaseLost, LeaseTable, Tenure, Token

CONFIG = LeaseConfig(ttl_ns=20, heartbeat_ns=6, margin_ns=3)
KEYS = "abcd"

times = st.integers(0, 6) | st.integers(-15, 30)  # steps of the clock; it may go back
# How many grants ago the token was issued; LIVE is the one that holds the key, if any does.
LIVE = -1
tokens = st.just(LIVE) | st.integers(0, 4)
events = st.lists(
    st.one_of(
        st.tuples(st.just("grant"), st.sampled_from(KEYS), st.just(0), times),
        st.tuples(st.just("renew"), st.sampled_from(KEYS), tokens, times),
        st.tuples(st.just("admits"), st.sampled_from(KEYS), tokens, times),
        st.tuples(st.just("release"), st.sampled_from(KEYS), tokens, st.just(0)),
        st.tuples(st.just("expire"), st.just("a"), st.just(0), times),
        st.tuples(st.just("next"), st.just("a"), st.just(0), st.just(0)),
        st.tuples(st.just("restart"), st.just("a"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


class DumbTable:
    """Remembers every lease ever granted, with how it ended, and scans them all."""

    def __init__(self) -> None:
        self.all: list[Lease[str]] = []
        self.released: set[int] = set()
        self.reported: set[int] = set()
        self.now = 0

    def live(self, key: str) -> int | None:
        for at, lease in enumerate(self.all):
            over = lease.token in self.released or lease.expires_at_ns <= self.now
            if lease.key == key and not over:
                return at
        return None

    def grant(self, key: str, holder: str, now: int) -> Lease[str] | Held[str]:
        self.now = max(self.now, now)
        if (at := self.live(key)) is not None:
            return Held(key, self.all[at].holder, self.all[at].expires_at_ns)
        lease = Lease(
            key=key,
            holder=holder,
            token=Token(len(self.all) + 1),
            granted_at_ns=self.now,
            renewed_at_ns=self.now,
            expires_at_ns=self.now + CONFIG.ttl_ns,
        )
        self.all.append(lease)
        return lease

    def lost(self, key: str, token: int) -> LeaseLost[str]:
        at = self.live(key)
        return LeaseLost(key, Token(token), None if at is None else self.all[at].token)

    def renew(self, key: str, token: int, now: int) -> Lease[str] | LeaseLost[str]:
        self.now = max(self.now, now)
        at = self.live(key)
        if at is None or self.all[at].token != token:
            return self.lost(key, token)
        until = self.now + CONFIG.ttl_ns
        self.all[at] = replace(self.all[at], renewed_at_ns=self.now, expires_at_ns=until)
        return self.all[at]

    def admits(self, key: str, token: int, now: int) -> bool:
        self.now = max(self.now, now)
        at = self.live(key)
        return at is not None and self.all[at].token == token

    def release(self, key: str, token: int) -> Lease[str] | LeaseLost[str]:
        at = self.live(key)
        if at is None or self.all[at].token != token:
            return self.lost(key, token)
        self.released.add(token)
        return self.all[at]

    def expire(self, now: int) -> list[Lease[str]]:
        self.now = max(self.now, now)
        over = [
            lease
            for lease in self.all
            if lease.expires_at_ns <= self.now and lease.token not in self.released | self.reported
        ]
        self.reported |= {lease.token for lease in over}
        return sorted(over, key=lambda lease: (lease.expires_at_ns, lease.token))

    def next_expiry_ns(self) -> int | None:
        told = self.released | self.reported
        ends = [lease.expires_at_ns for lease in self.all if lease.token not in told]
        return min(ends, default=None)


@dataclass
class Store:
    """One row per key, as the module asks of a store, and the counter."""

    rows: dict[str, Lease[str]]
    next_token: int = 1

    def keep(self, lease: Lease[str], next_token: int) -> None:
        self.rows[lease.key] = lease
        self.next_token = next_token

    def drop(self, lease: Lease[str]) -> None:
        if (row := self.rows.get(lease.key)) is not None and row.token == lease.token:
            del self.rows[lease.key]


@settings(deadline=None, max_examples=300)
@given(history=events)
def test_same_answers_as_the_dumb_table(history: list[tuple[str, str, int, int]]) -> None:
    table: LeaseTable[str] = LeaseTable(CONFIG)
    dumb = DumbTable()
    store = Store({})
    issued: list[int] = []
    clock = 0
    for verb, key, ago, step in history:
        clock = max(0, clock + step)
        at = dumb.live(key)
        token = dumb.all[at].token if ago == LIVE and at is not None else table.next_token - 1 - ago
        if verb == "grant":
            given_ = table.grant(key, f"holder-{len(issued)}", clock)
            assert given_ == dumb.grant(key, f"holder-{len(issued)}", clock)
            if isinstance(given_, Lease):
                issued.append(given_.token)
                store.keep(given_, table.next_token)
        elif verb == "renew":
            renewed = table.renew(key, token, clock)
            assert renewed == dumb.renew(key, token, clock)
            if isinstance(renewed, Lease):
                store.keep(renewed, table.next_token)
        elif verb == "admits":
            assert table.admits(key, token, clock) == dumb.admits(key, token, clock)
        elif verb == "release":
            freed = table.release(key, token)
            assert freed == dumb.release(key, token)
            if isinstance(freed, Lease):
                store.drop(freed)
        elif verb == "expire":
            over = table.expire(clock)
            assert over == dumb.expire(clock)
            for lease in over:
                store.drop(lease)
        elif verb == "next":
            assert table.next_expiry_ns() == dumb.next_expiry_ns()
        else:
            # The one thing a restart may forget: a lease that ran out unreported and whose key
            # has a successor, since that took over its row.
            forgotten = {
                lease.token
                for lease in dumb.all
                if lease.token not in {row.token for row in store.rows.values()}
            }
            dumb.reported |= forgotten - dumb.released
            rows = list(store.rows.values())
            table = LeaseTable(
                CONFIG, next_token=store.next_token, latest_ns=table.latest_ns, leases=rows
            )
        table.check()
        assert table.latest_ns == dumb.now
        assert {lease.key for lease in table} == {key for key in KEYS if dumb.live(key) is not None}
        assert len(table) == sum(dumb.live(key) is not None for key in KEYS)
    assert issued == list(range(1, len(issued) + 1)), "tokens rise and never repeat"


@settings(deadline=None)
@given(
    history=st.lists(
        st.tuples(st.booleans(), st.sampled_from(KEYS), st.integers(0, 2)), min_size=3, max_size=9
    )
)
def test_leases_that_run_out_together_are_told_in_order(
    history: list[tuple[bool, str, int]],
) -> None:
    table: LeaseTable[str] = LeaseTable(CONFIG)
    dumb = DumbTable()
    clock = 0
    for renews, key, step in history:
        clock += step
        at = dumb.live(key)
        if renews and at is not None:
            token = dumb.all[at].token
            assert table.renew(key, token, clock) == dumb.renew(key, token, clock)
        else:
            assert table.grant(key, "ann", clock) == dumb.grant(key, "ann", clock)
    table.check()
    assert table.expire(clock + 1_000) == dumb.expire(clock + 1_000)
    assert not len(table)


@settings(deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=20),
    skew=st.integers(-1_000, 1_000),
)
def test_a_holder_stops_a_margin_before_anyone_else_can_be_granted(
    steps: list[tuple[int, int]], skew: int
) -> None:
    """Each step: the holder waits, sends a renewal, and the table hears of it after a delay.

    The holder's clock is off by `skew`; both run at the same rate.
    """
    table: LeaseTable[str] = LeaseTable(CONFIG)
    heard = 2_000
    lease = table.grant("k", "ann", heard)
    assert isinstance(lease, Lease)
    until = CONFIG.trusted_until_ns(heard + skew)
    for wait, delay in steps:
        sent, heard = heard + wait, heard + wait + delay
        renewed = table.renew("k", lease.token, heard)
        if isinstance(renewed, LeaseLost):
            assert until - skew <= heard - CONFIG.margin_ns, "lost while still trusted"
            return
        lease = renewed
        until = CONFIG.trusted_until_ns(sent + skew)
    stops = until - skew  # on the table's clock
    assert isinstance(table.grant("k", "bob", stops + CONFIG.margin_ns - 1), Held)


TTL, MARGIN = 1_000, 100


@settings(deadline=None)
@given(
    rate=st.floats(0.91, 1.09),
    skew=st.integers(-10_000, 10_000),
    steps=st.lists(
        st.tuples(
            st.integers(0, 600) | st.integers(900, 5_000),  # until it asks: it may have slept
            st.integers(0, 400) | st.integers(900, 2_000),  # until the database hears of it
            st.integers(0, 400) | st.integers(900, 2_000),  # until its answer is here, if it comes
            st.booleans(),
            st.booleans(),
        ),
        max_size=30,
    ),
)
def test_whoever_answers_still_has_the_lease_by_the_clock_of_the_database(
    rate: float, skew: int, steps: list[tuple[int, int, int, bool, bool]]
) -> None:
    """The owner's clock is off by `skew` and runs at its own `rate`; it may sleep anywhere, answers
    may be late, overtake each other or get lost. A rival takes over at the first moment it can, and
    the owner is told so with its next answer, or never."""

    def local(true_ns: int) -> int:
        return round(true_ns * rate) + skew

    tenure = Tenure(ttl_ns=TTL, margin_ns=MARGIN)
    now = 100_000
    lease_end = now + TTL
    tenure.renewed(local(now))
    answers: list[tuple[int, int | None]] = []
    moments: list[int] = []
    for wait, there, back, comes, asks_now in steps:
        sent = now + wait
        heard = sent + there
        if heard < lease_end:
            lease_end = heard + TTL
            answer: int | None = sent
        else:
            answer = None  # a rival had it before
        if comes:
            answers.append((heard + back, answer))
        now = heard if asks_now else sent
        moments += [sent, heard, heard + back]
    for moment in sorted({*moments, lease_end - 1, lease_end, lease_end + TTL}):
        for came, asked in sorted(answers, key=lambda each: each[0]):
            if came <= moment and asked is not None:
                tenure.renewed(local(asked))
        if tenure.holds(local(moment)):
            assert moment < lease_end, "it would answer, and another may have written"
    tenure.end()
    tenure.renewed(local(now + 10 * TTL))  # an answer that was under way
    assert not tenure.holds(local(now))
