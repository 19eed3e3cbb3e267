"""Leases, tokens and fences, as plain values."""

from __future__ import annotations

import pytest

from fairway.core.lease import Epoch, Fence, Held, Lease, LeaseConfig, LeaseLost, LeaseTable, Token

CONFIG = LeaseConfig(ttl_ns=100, heartbeat_ns=30, margin_ns=10)


def table() -> LeaseTable[str]:
    return LeaseTable(CONFIG)


def granted(leases: LeaseTable[str], key: str, now_ns: int, holder: str = "ann") -> Lease[str]:
    lease = leases.grant(key, holder, now_ns)
    assert isinstance(lease, Lease)
    leases.check()
    return lease


def test_a_grant_lasts_for_the_ttl() -> None:
    leases = table()
    lease = granted(leases, "k", 5)
    assert lease == Lease(
        key="k",
        holder="ann",
        token=Token(1),
        granted_at_ns=5,
        renewed_at_ns=5,
        expires_at_ns=105,
    )
    assert leases.get("k") == lease
    assert list(leases) == [lease]
    assert leases.next_expiry_ns() == 105
    assert leases.expire(104) == []
    assert leases.expire(105) == [lease]
    assert leases.expire(106) == []
    assert leases.get("k") is None
    assert leases.next_expiry_ns() is None


def test_a_held_key_is_refused_even_to_its_holder() -> None:
    leases = table()
    granted(leases, "k", 0)
    assert leases.grant("k", "bob", 50) == Held("k", "ann", 100)
    assert leases.grant("k", "ann", 50) == Held("k", "ann", 100)
    assert leases.next_token == 2


def test_renewing_extends_and_keeps_the_token() -> None:
    leases = table()
    granted(leases, "k", 0)
    renewed = leases.renew("k", 1, 90)
    assert isinstance(renewed, Lease)
    assert (renewed.token, renewed.granted_at_ns, renewed.renewed_at_ns) == (1, 0, 90)
    assert renewed.expires_at_ns == 190
    assert leases.expire(189) == []
    assert leases.expire(190) == [renewed]


def test_a_lease_that_ran_out_cannot_be_renewed_or_released_though_nobody_took_it() -> None:
    leases = table()
    lease = granted(leases, "k", 0)
    assert leases.renew("k", 1, 100) == LeaseLost("k", Token(1), None)
    assert leases.release("k", 1) == LeaseLost("k", Token(1), None)
    assert leases.expire(100) == [lease]


def test_a_stale_token_learns_its_successor() -> None:
    leases = table()
    granted(leases, "k", 0)
    granted(leases, "k", 100, "bob")
    assert leases.renew("k", 1, 101) == LeaseLost("k", Token(1), Token(2))
    assert leases.release("k", 1) == LeaseLost("k", Token(1), Token(2))
    assert leases.renew("unknown", 9, 101) == LeaseLost("unknown", Token(9), None)


def test_a_lease_replaced_after_it_ran_out_is_still_reported_once() -> None:
    leases = table()
    old = granted(leases, "k", 0)
    new = granted(leases, "k", 150, "bob")
    assert leases.next_expiry_ns() == 100
    assert leases.expire(150) == [old]
    assert leases.expire(150) == []
    assert leases.get("k") == new


def test_a_released_key_is_free_and_never_reported() -> None:
    leases = table()
    lease = granted(leases, "k", 0)
    assert leases.release("k", 1) == lease
    assert leases.release("k", 1) == LeaseLost("k", Token(1), None)
    assert granted(leases, "k", 1).token == 2
    assert [ended.token for ended in leases.expire(1_000)] == [2]


def test_expired_leases_come_in_order_of_expiry() -> None:
    leases = table()
    for at, key in enumerate("abcd"):
        granted(leases, key, at)
    leases.renew("a", 1, 10)
    leases.renew("c", 3, 20)
    assert [lease.key for lease in leases.expire(500)] == ["b", "d", "a", "c"]


def test_a_clock_that_steps_back_revives_nothing() -> None:
    leases = table()
    lease = granted(leases, "k", 0)
    assert leases.expire(100) == [lease]
    assert leases.latest_ns == 100
    assert not leases.admits("k", 1, 0)
    assert leases.renew("k", 1, 50) == LeaseLost("k", Token(1), None)
    again = granted(leases, "k", 50)
    assert (again.granted_at_ns, again.expires_at_ns) == (100, 200)


def test_a_clock_that_steps_back_shortens_no_lease() -> None:
    leases = table()
    granted(leases, "k", 500)
    renewed = leases.renew("k", 1, 3)
    assert isinstance(renewed, Lease)
    assert renewed.expires_at_ns == 600


def test_only_the_live_token_is_admitted() -> None:
    leases = table()
    granted(leases, "k", 0)
    assert leases.admits("k", 1, 99)
    assert not leases.admits("k", 2, 99)
    assert not leases.admits("other", 1, 99)
    assert not leases.admits("k", 1, 100)
    granted(leases, "k", 100, "bob")
    assert not leases.admits("k", 1, 101)
    assert leases.admits("k", 2, 101)


def test_a_restored_table_goes_on_where_the_store_left_off() -> None:
    before = table()
    rows = [granted(before, "a", 0), granted(before, "b", 60)]
    after: LeaseTable[str] = LeaseTable(
        CONFIG, next_token=before.next_token, latest_ns=120, leases=rows
    )
    after.check()
    assert after.get("a") is None
    assert after.grant("b", "bob", 120) == Held("b", "ann", 160)
    assert granted(after, "a", 120).token == 3
    assert after.expire(120) == [rows[0]]


def test_a_restored_table_knows_at_least_the_time_of_its_rows() -> None:
    row = granted(table(), "a", 700)
    assert LeaseTable(CONFIG, next_token=2, leases=[row]).latest_ns == 700


def test_a_lease_from_a_time_of_a_longer_ttl_is_not_cut_short() -> None:
    long = LeaseTable[str](LeaseConfig(ttl_ns=1_000, heartbeat_ns=30, margin_ns=10))
    row = granted(long, "a", 0)
    short = LeaseTable(CONFIG, next_token=2, leases=[row])
    renewed = short.renew("a", 1, 10)
    assert isinstance(renewed, Lease)
    assert renewed.expires_at_ns == 1_000
    short.check()


def test_rows_that_contradict_the_counter_or_each_other_are_refused() -> None:
    row = granted(table(), "a", 0)
    with pytest.raises(ValueError, match="token 1 is in use"):
        LeaseTable(CONFIG, next_token=1, leases=[row])
    with pytest.raises(ValueError, match="two leases"):
        LeaseTable(CONFIG, next_token=2, leases=[row, row])


def test_memory_follows_live_leases_not_past_ones() -> None:
    leases = table()
    granted(leases, "stays", 0)
    for _ in range(1_000):
        lease = granted(leases, "k", 0)  # which checks the bound
        leases.release("k", lease.token)
    assert [lease.key for lease in leases.expire(100)] == ["stays"]


def test_a_fence_admits_only_exactly_itself() -> None:
    fence = Fence(Epoch(3), Token(7))
    assert fence.admits(3, 7)
    reports = [(2, 7), (4, 7), (3, 6), (3, 8), (2, 99), (4, 1)]
    assert not any(fence.admits(epoch, token) for epoch, token in reports)
    assert Fence(Epoch(2), Token(99)) < fence < Fence(Epoch(4), Token(1))


def test_a_holder_trusts_from_when_it_asked_less_a_margin() -> None:
    assert CONFIG.trusted_until_ns(1_000) == 1_090


@pytest.mark.parametrize(
    ("ttl_ns", "heartbeat_ns", "margin_ns"),
    [(100, 0, 10), (100, 30, -1), (100, 50, 0), (100, 45, 10)],
)
def test_settings_that_lose_a_claim_by_one_beat_are_refused(
    ttl_ns: int, heartbeat_ns: int, margin_ns: int
) -> None:
    with pytest.raises(ValueError, match=r"heartbeat|margin_ns is at least 0"):
        LeaseConfig(ttl_ns=ttl_ns, heartbeat_ns=heartbeat_ns, margin_ns=margin_ns)
    assert LeaseConfig().ttl_ns == 15_000_000_000
