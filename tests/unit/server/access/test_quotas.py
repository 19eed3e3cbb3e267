"""Buckets, usage and quotas, as plain values and exact nanoseconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairway.errors import Throttled
from fairway.server.access.auth import ANYONE, Identity
from fairway.server.access.quotas import (
    RETRY_CONNECTIONS_NS,
    RETRY_IN_FLIGHT_NS,
    RETRY_SPACE_NS,
    KeyUsage,
    KeyUsageStatistics,
    Quotas,
    TokenBucket,
)
from fairway.settings import SECOND_NS, UNLIMITED, Quota

MS = 1_000_000


def usage_under(**limits: int) -> KeyUsage:
    return KeyUsage("ann", replace(UNLIMITED, **limits), 0)


def identity(name: str = "ann", quota: Quota = UNLIMITED) -> Identity:
    return Identity(name=name, scopes=frozenset({"read"}), id=name, quota=quota)


def test_a_bucket_starts_full_and_says_exactly_when_to_return() -> None:
    bucket = TokenBucket(3, SECOND_NS, 0)  # a token each 333,333,333.3 ns
    for _ in range(3):
        assert bucket.wait_ns(1, 0) == 0
        bucket.take(1)
    wait_ns = bucket.wait_ns(1, 0)
    assert wait_ns == 333_333_334
    assert bucket.wait_ns(1, wait_ns - 1) == 1
    assert bucket.wait_ns(1, wait_ns) == 0


def test_a_bucket_saves_no_more_than_its_burst() -> None:
    bucket = TokenBucket(10, SECOND_NS // 2, 0)
    assert bucket.wait_ns(5, 10**15) == 0
    bucket.take(5)
    assert bucket.wait_ns(1, 10**15) == 100 * MS


def test_a_cost_above_the_savings_is_taken_from_a_full_bucket_and_paid_off() -> None:
    bucket = TokenBucket(10, SECOND_NS, 0)
    assert bucket.wait_ns(35, 0) == 0
    bucket.take(35)  # 25 in debt
    assert bucket.wait_ns(1, 0) == 2_600 * MS
    assert bucket.wait_ns(35, 0) == 3_500 * MS  # full again
    assert bucket.wait_ns(35, 3_500 * MS) == 0


def test_a_small_rate_and_burst_still_let_one_through() -> None:
    bucket = TokenBucket(1, MS, 0)
    assert bucket.wait_ns(1, 0) == 0
    bucket.take(1)
    assert bucket.wait_ns(1, 0) == SECOND_NS


def test_a_clock_that_steps_back_gives_nothing() -> None:
    bucket = TokenBucket(1, SECOND_NS, 10 * SECOND_NS)
    bucket.take(1)
    assert bucket.wait_ns(1, 5 * SECOND_NS) == SECOND_NS
    assert bucket.wait_ns(1, 10 * SECOND_NS) == SECOND_NS
    assert bucket.wait_ns(1, 11 * SECOND_NS) == 0


def test_retuning_keeps_debts_and_caps_savings() -> None:
    bucket = TokenBucket(100, SECOND_NS, 0)
    bucket.retune(10, SECOND_NS, 0)
    assert bucket.wait_ns(10, 0) == 0
    bucket.take(10)
    assert bucket.wait_ns(1, 0) == 100 * MS
    bucket.retune(1000, SECOND_NS, 0)
    assert bucket.wait_ns(1, 0) == MS
    bucket.retune(0, SECOND_NS, 0)
    assert bucket.wait_ns(10**9, 0) == 0
    bucket.take(10**9)
    bucket.retune(10, SECOND_NS, 0)  # what was taken without a limit is not held against it
    assert bucket.wait_ns(10, 0) == 0


def test_request_rate_refuses_and_uses_nothing_up() -> None:
    ann = usage_under(requests_per_s=2)
    for _ in range(2):
        ann.begin(0)
    for _ in range(5):
        with pytest.raises(Throttled) as refusal:
            ann.begin(100 * MS)
        assert (refusal.value.limit, refusal.value.maximum) == ("requests_per_second", 2)
        assert refusal.value.retry_after_ns == 400 * MS
    assert ann.statistics() == KeyUsageStatistics(in_flight=2, connections=0, refused=5)
    ann.begin(500 * MS)


def test_requests_in_flight_are_bounded_and_cost_no_rate() -> None:
    ann = usage_under(in_flight=1, requests_per_s=2)
    ann.begin(0)
    for _ in range(5):
        with pytest.raises(Throttled) as refusal:
            ann.begin(0)
        assert (refusal.value.limit, refusal.value.maximum) == ("in_flight", 1)
        assert refusal.value.retry_after_ns == RETRY_IN_FLIGHT_NS
    ann.end()
    ann.begin(0)  # the second token is still there
    ann.end()
    assert ann.idle


def test_records_and_bytes_are_charged_together_or_not_at_all() -> None:
    ann = usage_under(records_per_s=10, bytes_per_s=1000)
    ann.charge(0, records=10, size=500)
    with pytest.raises(Throttled) as refusal:
        ann.charge(0, records=1, size=500)
    assert (refusal.value.limit, refusal.value.maximum) == ("records_per_second", 10)
    assert refusal.value.retry_after_ns == 100 * MS
    with pytest.raises(Throttled) as refusal:
        ann.charge(0, records=1, size=900)
    assert (refusal.value.limit, refusal.value.maximum) == ("bytes_per_second", 1000)
    assert refusal.value.retry_after_ns == 400 * MS
    ann.charge(0, size=500)  # the refusals left the bytes alone
    ann.charge(100 * MS, records=1, size=100)
    ann.charge(100 * MS)


def test_connections_are_bounded() -> None:
    ann = usage_under(connections=2)
    ann.connect()
    ann.connect()
    with pytest.raises(Throttled) as refusal:
        ann.connect()
    assert (refusal.value.limit, refusal.value.maximum) == ("connections", 2)
    assert refusal.value.retry_after_ns == RETRY_CONNECTIONS_NS
    ann.disconnect()
    ann.connect()
    assert not ann.idle


def test_topics_and_bytes_stored_are_bounded() -> None:
    ann = usage_under(topics=3, stored_bytes=100)
    ann.check_kept("topics", 2)
    ann.check_kept("stored_bytes", 90, wanted=10)
    with pytest.raises(Throttled) as refusal:
        ann.check_kept("topics", 2, wanted=2)
    assert (refusal.value.limit, refusal.value.maximum) == ("topics", 3)
    with pytest.raises(Throttled) as refusal:
        ann.check_kept("stored_bytes", 90, wanted=11)
    assert (refusal.value.limit, refusal.value.maximum) == ("stored_bytes", 100)
    assert refusal.value.retry_after_ns == RETRY_SPACE_NS


def test_no_limit_is_no_limit() -> None:
    ann = usage_under()
    for _ in range(2000):
        ann.begin(0)
        ann.connect()
    ann.charge(0, records=10**9, size=10**12)
    ann.check_kept("topics", 10**9)
    ann.check_kept("stored_bytes", 10**15, wanted=10**15)
    assert ANYONE.quota is UNLIMITED


def test_ending_what_never_began_is_our_mistake() -> None:
    with pytest.raises(AssertionError):
        usage_under().end()
    with pytest.raises(AssertionError):
        usage_under().disconnect()


def test_an_allowance_belongs_to_a_name_and_follows_its_quota() -> None:
    quotas = Quotas()
    ann = quotas.of(identity(quota=Quota(connections=5)), 0)
    ann.connect()
    ann.connect()
    renewed = replace(identity(quota=Quota(connections=1)), id="a new secret")
    assert quotas.of(renewed, 0) is ann
    with pytest.raises(Throttled):
        ann.connect()
    ann.disconnect()
    with pytest.raises(Throttled):
        ann.connect()
    assert quotas.of(identity("bob"), 0) is not ann


def test_allowances_of_keys_that_are_gone_go_when_idle() -> None:
    quotas = Quotas()
    ann, bob, cid = (quotas.of(identity(name), 0) for name in ("ann", "bob", "cid"))
    ann.connect()
    quotas.retain({"cid"})
    assert set(quotas.statistics()) == {"ann", "cid"}
    ann.disconnect()
    quotas.retain({"cid"})
    assert set(quotas.statistics()) == {"cid"}
    assert quotas.of(identity("cid"), 0) is cid
    assert quotas.of(identity("bob"), 0) is not bob


def test_a_refusal_names_the_key_and_the_limit() -> None:
    ann = usage_under(requests_per_s=1)
    ann.begin(0)
    with pytest.raises(Throttled, match="key 'ann' is at its quota of 1 requests per second"):
        ann.begin(0)
