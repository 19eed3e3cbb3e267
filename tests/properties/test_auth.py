"""Auth against dumb twins: identities, hosts, buckets and tickets, over random histories."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.errors import Forbidden, InvalidConfig, Throttled, Unauthorized
from fairway.server.access.auth import (
    ANYONE,
    Identity,
    Keyring,
    OpenAccess,
    scrubbed,
)
from fairway.server.access.cors import Cors, is_loopback_authority
from fairway.server.access.quotas import KeyUsage, TokenBucket
from fairway.server.access.tickets import TicketConfig, Tickets
from fairway.settings import (
    SCOPES,
    SECOND_NS,
    UNLIMITED,
    KeyEntry,
    Scope,
    digest_of,
    parse_api_keys,
    parse_keys,
)

visible = st.characters(min_codepoint=33, max_codepoint=126)
secrets = st.text(visible, min_size=1, max_size=12)
names = st.text("ab.", max_size=4)
scopes = st.sets(st.sampled_from(SCOPES), min_size=1)


# --- keys


@given(st.lists(secrets, min_size=1, max_size=8, unique=True), secrets)
def test_a_secret_is_its_own_key_and_no_others(held: list[str], other: str) -> None:
    keyring = Keyring(
        KeyEntry(name=f"n{at}", digest=digest_of(secret), scopes=frozenset({"read"}))
        for at, secret in enumerate(held)
    )
    for at, secret in enumerate(held):
        assert keyring.identify(secret, 0).name == f"n{at}"
    if other not in held:
        with pytest.raises(Unauthorized):
            keyring.identify(other, 0)


@given(st.lists(names.filter(bool), max_size=4), names, st.sets(names))
def test_a_list_looks_at_each_name_that_may_be_touched_once_in_order_and_at_no_other(
    prefixes: list[str], wanted: str, there: set[str]
) -> None:
    identity = Identity(name="n", scopes=frozenset(SCOPES), prefixes=tuple(prefixes), id="n")
    looked_at = [
        name
        for prefix in identity.within(wanted)
        for name in sorted(there)
        if name.startswith(prefix)
    ]
    touchable = [name for name in there if name.startswith(wanted) and identity.may_touch(name)]
    assert looked_at == sorted(touchable)


@given(scopes, st.lists(names.filter(bool), max_size=3), st.sampled_from(SCOPES), st.lists(names))
def test_what_may_be_done_is_what_was_granted(
    granted: set[Scope], prefixes: list[str], scope: Scope, asked: list[str]
) -> None:
    entry = KeyEntry(
        name="ann", digest=digest_of("a"), scopes=frozenset(granted), prefixes=tuple(prefixes)
    )
    ann = Keyring([entry]).identify("a", 0)
    may = (scope in granted or "admin" in granted) and all(
        not prefixes or any(name.startswith(prefix) for prefix in prefixes) for name in asked
    )
    assert allowed(ann, scope, asked) == may
    # A prefix is granted only if no name below it is refused.
    for prefix in asked:
        try:
            ann.require_prefix(scope, prefix)
        except Forbidden:
            continue
        for ending in ("", "a", "b", ".", "ba"):
            ann.require(scope, prefix + ending)


def allowed(identity: Identity, scope: Scope, asked: list[str]) -> bool:
    try:
        identity.require(scope, *asked)
    except Forbidden:
        return False
    return True


@given(st.text(max_size=80) | st.text("[]=\"'key\nscopes read#.0123:-T{},", max_size=80))
def test_any_text_is_keys_or_a_refusal(text: str) -> None:
    for parse in (parse_api_keys, lambda text: parse_keys(text, "keys.toml")):
        try:
            assert parse(text)
        except InvalidConfig:
            continue


@given(
    secrets.filter(lambda secret: not set(secret) & set(":,")),
    st.lists(st.sampled_from(SCOPES), unique=True),
    st.lists(st.text("ab.:", min_size=1, max_size=5), unique=True),
)
def test_an_env_key_says_what_was_written(
    secret: str, scopes: list[Scope], prefixes: list[str]
) -> None:
    [entry] = parse_api_keys(f"{secret}:{'+'.join(scopes)}:{'+'.join(prefixes)}")
    assert entry.digest == digest_of(secret)
    assert entry.scopes == frozenset(scopes or SCOPES)
    assert entry.prefixes == tuple(prefixes)


# --- hosts

ports = st.just("") | st.integers(0, 65_535).map(":{}".format)


@given(st.integers(0, 2**32 - 1) | st.integers(127 << 24, (128 << 24) - 1), ports)
def test_an_ipv4_host_is_loopback_if_it_begins_with_127(number: int, port: str) -> None:
    address = IPv4Address(number)
    assert is_loopback_authority(f"{address}{port}") == (number >> 24 == 127)
    mapped = IPv6Address((0xFFFF << 32) + number)
    assert is_loopback_authority(f"[{mapped}]{port}") == (number >> 24 == 127)


@given(st.integers(0, 8) | st.integers(0, 2**128 - 1), ports)
def test_an_ipv6_host_is_loopback_if_it_is_one(number: int, port: str) -> None:
    address = IPv6Address(number)
    loopback = number == 1 or (number >> 32 == 0xFFFF and number >> 24 & 0xFF == 127)
    for spelling in (address.compressed, address.exploded, address.exploded.upper()):
        assert is_loopback_authority(f"[{spelling}]{port}") == loopback


@given(st.text(max_size=30) | st.text("localhost.:[]127@/", max_size=30))
def test_no_other_text_is_a_loopback_host(text: str) -> None:
    plain = re.sub(r":[0-9]{0,5}\Z", "", text.lower()).removesuffix(".")
    local = plain == "localhost" or re.fullmatch(r"[a-z0-9._-]*\.localhost", plain)
    if is_loopback_authority(text):
        assert text.isascii()
        assert local or re.fullmatch(r"127(\.[0-9]+){3}|\[[0-9a-f:.]+\]", plain)


@given(st.text(), st.none() | st.text())
def test_open_access_admits_or_forbids_and_nothing_else(host: str, origin: str | None) -> None:
    for access in (OpenAccess(Cors()), OpenAccess(Cors(["https://a.example"]), insecure=True)):
        try:
            admitted = access.admit(authorization=None, host=host, origin=origin, wall_ns=0)
        except Forbidden:
            continue
        assert admitted is ANYONE


@given(st.text(), st.text())
def test_cors_says_nothing_to_strangers(origin: str, requested: str) -> None:
    cors = Cors(["https://a.example"])
    if not cors.allows(origin):
        assert cors.preflight_headers(origin, requested) == ()
        assert cors.response_headers(origin) == (("Vary", "Origin"),)
    told = cors.preflight_headers("https://a.example", requested)
    assert all(re.fullmatch(r"[ -~]*", value) for _, value in told)


@given(
    st.text("abc/", max_size=8), st.lists(st.sampled_from(["a=1", "ticket=XYZ", "%54icket=XYZ"]))
)
def test_no_ticket_is_ever_logged(path: str, query: list[str]) -> None:
    target = f"{path}?{'&'.join(query)}"
    logged = scrubbed(target)
    assert "XYZ" not in logged
    assert logged.replace("***", "XYZ") == target


# --- buckets

steps = st.lists(
    st.tuples(st.integers(0, 30), st.integers(-5, 40) | st.integers(0, 3)), max_size=60
)


@given(st.integers(1, 50), st.integers(1, 3 * SECOND_NS), steps)
def test_a_bucket_is_its_exact_twin_and_holds_its_rate(
    per_s: int, burst_ns: int, steps: list[tuple[int, int]]
) -> None:
    bucket = TokenBucket(per_s, burst_ns, 0)
    full = max(Fraction(1), Fraction(per_s * burst_ns, SECOND_NS))
    level, latest, now_ns = full, 0, 0
    taken: list[tuple[int, int]] = []
    for cost, step in steps:
        now_ns += step * SECOND_NS // 16 + 1
        if cost == 0:  # not worth looking at the clock for
            assert bucket.wait_ns(0, now_ns) == 0
            continue
        level = min(full, level + Fraction(max(0, now_ns - latest) * per_s, SECOND_NS))
        latest = max(latest, now_ns)
        wait_ns = bucket.wait_ns(cost, now_ns)
        wanted = min(Fraction(cost), full)
        if level >= wanted:
            assert wait_ns == 0
            bucket.take(cost)
            level -= cost
            taken.append((latest, cost))
        else:  # exactly then, and not a nanosecond earlier
            need = wanted - level
            assert (wait_ns - 1) * per_s < need * SECOND_NS <= wait_ns * per_s
            assert bucket.wait_ns(cost, latest + wait_ns) == 0
            latest += wait_ns
            level = min(full, level + Fraction(wait_ns * per_s, SECOND_NS))
            now_ns = latest
    for at, (start_ns, _) in enumerate(taken):
        for until in range(at, len(taken)):
            window = taken[at : until + 1]
            spent = sum(cost for _, cost in window)
            refill = Fraction((window[-1][0] - start_ns) * per_s, SECOND_NS)
            assert spent <= refill + max(full, *(Fraction(cost) for _, cost in window))


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 90), st.integers(0, SECOND_NS)), max_size=40
    )
)
def test_a_refused_charge_changed_nothing(charges: list[tuple[int, int, int]]) -> None:
    """The twin is told only of what was accepted, and answers the same."""
    quota = replace(UNLIMITED, records_per_s=5, bytes_per_s=50)
    real, twin = KeyUsage("ann", quota, 0), KeyUsage("ann", quota, 0)
    now_ns = 0
    for records, size, pause_ns in charges:
        now_ns += pause_ns
        try:
            real.charge(now_ns, records=records, size=size)
        except Throttled:
            continue
        twin.charge(now_ns, records=records, size=size)


@given(st.lists(st.sampled_from(["begin", "end", "connect", "disconnect"]), max_size=80))
def test_what_is_open_stays_within_its_limits(moves: list[str]) -> None:
    ann = KeyUsage("ann", replace(UNLIMITED, in_flight=3, connections=2), 0)
    open_ = {"begin": 0, "connect": 0}
    for move in moves:
        start, limit = ("begin", 3) if move in ("begin", "end") else ("connect", 2)
        if move in ("end", "disconnect"):
            if open_[start]:
                getattr(ann, move)()
                open_[start] -= 1
            continue
        arguments = (0,) if move == "begin" else ()
        if open_[start] == limit:
            with pytest.raises(Throttled):
                getattr(ann, move)(*arguments)
        else:
            getattr(ann, move)(*arguments)
            open_[start] += 1
    statistics = ann.statistics()
    assert (statistics.in_flight, statistics.connections) == (open_["begin"], open_["connect"])


# --- tickets

TICKETS = TicketConfig(ttl_ns=20, per_identity_max=3, total_max=5)
PEOPLE = [
    Identity(name=name, scopes=frozenset({"read"}), id=name) for name in ("ann", "bob", "cid")
]


@dataclass
class Dumb:
    """A ticket as one would note it on paper."""

    secret: str
    person: Identity
    path: str | None
    expires_at_ns: int
    used: bool = False


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["issue", "redeem", "purge"]),
            st.integers(0, 2),  # who, or how long ago it was issued
            st.none() | st.sampled_from(["/a", "/b"]),
            st.integers(0, 4) | st.integers(-10, 25),  # steps of the clock; it may go back
        ),
        max_size=60,
    )
)
def test_tickets_are_their_dumb_twin(moves: list[tuple[str, int, str | None, int]]) -> None:
    counter = iter(range(10**6))
    tickets = Tickets(lambda size: next(counter).to_bytes(size, "big"), TICKETS)
    noted: list[Dumb] = []
    now_ns = latest = 0
    for move, number, path, step in moves:
        now_ns = max(0, now_ns + step)
        latest = max(latest, now_ns)
        live = [note for note in noted if not note.used and note.expires_at_ns > latest]
        if move == "purge" or (move == "redeem" and len(noted) <= number):
            tickets.purge(now_ns)
        elif move == "issue":
            person = PEOPLE[number]
            own = [note for note in live if note.person is person]
            crowd = own if len(own) >= 3 else live if len(live) >= 5 else None
            if crowd is not None:
                with pytest.raises(Throttled) as refusal:
                    tickets.issue(person, now_ns, path=path)
                assert refusal.value.retry_after_ns == crowd[0].expires_at_ns - latest
            else:
                ticket = tickets.issue(person, now_ns, path=path)
                assert ticket.expires_at_ns == latest + 20
                noted.append(Dumb(ticket.secret, person, path, latest + 20))
        else:
            note = noted[-1 - number]
            good = note in live and note.path in (None, path or "/a")
            note.used = True
            if good:
                assert tickets.redeem(note.secret, now_ns, path=path or "/a") is note.person
            else:
                with pytest.raises(Unauthorized):
                    tickets.redeem(note.secret, now_ns, path=path or "/a")
        tickets.check()
        live = [note for note in noted if not note.used and note.expires_at_ns > latest]
        assert len(tickets) == len(live)
