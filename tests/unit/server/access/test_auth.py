"""Keys, scopes, open access, origins, CORS, tickets and live reloading."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import random
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fairway.errors import Backpressure, Forbidden, InvalidConfig, Throttled, Unauthorized
from fairway.runtime.blocking import BlockingPool
from fairway.server.access.auth import (
    ANYONE,
    Access,
    Identity,
    KeyedAccess,
    Keyring,
    OpenAccess,
    ReloadedKeys,
    check_bind,
    scrubbed,
)
from fairway.server.access.cors import CORS_HEADERS, Cors, is_loopback_authority, parse_origin
from fairway.server.access.tickets import AccessTicket, TicketConfig, Tickets
from fairway.settings import SECOND_NS, KeyEntry, KeySource, Scope, digest_of, parse_api_keys
from fairway.testing import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "s3cret-that-must-not-show"


def entry(name: str = "ann", secret: str = SECRET, *scopes: Scope) -> KeyEntry:
    return KeyEntry(
        name=name, digest=digest_of(secret), scopes=frozenset[Scope](scopes or ("read",))
    )


def identity(*scopes: Scope, prefixes: tuple[str, ...] = (), name: str = "ann") -> Identity:
    made = replace(entry(name, SECRET, *scopes), prefixes=prefixes)
    return Keyring([made]).identify(SECRET, 0)


def admit(
    access: Access,
    authorization: str | None = None,
    *,
    host: str | None = "localhost:4000",
    origin: str | None = None,
    wall_ns: int = 0,
) -> Identity:
    return access.admit(authorization=authorization, host=host, origin=origin, wall_ns=wall_ns)


# --- identities


def test_a_scope_is_needed_and_admin_has_them_all() -> None:
    reader = identity("read")
    reader.require("read", "anything")
    for scope in ("write", "delete", "admin"):
        with pytest.raises(Forbidden) as refusal:
            reader.require(scope)
        assert refusal.value.detail == {"scope": scope}
        identity("admin").require(scope, "anything")
        identity(scope).require(scope)


def test_names_are_checked_against_the_prefixes_all_of_them() -> None:
    ann = identity("read", prefixes=("orders.", "logs"))
    ann.require("read", "orders.eu", "logs", "logs.eu")
    with pytest.raises(Forbidden) as refusal:
        ann.require("read", "orders.eu", "orders")
    assert refusal.value.detail == {"name": "orders"}
    with pytest.raises(Forbidden):
        ann.require("write", "orders.eu")
    assert not ann.may_touch("Orders.eu")
    assert identity("read").may_touch("anything")
    with pytest.raises(Forbidden):
        identity("admin", prefixes=("a",)).require("read", "b")


def test_a_prefix_is_allowed_only_if_all_its_names_are() -> None:
    ann = identity("read", prefixes=("orders.",))
    ann.require_prefix("read", "orders.")
    ann.require_prefix("read", "orders.eu")
    for prefix in ("", "order", "orders", "logs"):
        with pytest.raises(Forbidden) as refusal:
            ann.require_prefix("read", prefix)
        assert refusal.value.detail == {"prefix": prefix}
    with pytest.raises(Forbidden):
        ann.require_prefix("write", "orders.")
    identity("read").require_prefix("read", "")


# --- keys


def test_a_key_is_sent_as_a_bearer_token() -> None:
    access = KeyedAccess(Keyring([entry("bob", "other"), entry()]))
    for header in (f"Bearer {SECRET}", f"bearer  {SECRET} ", f"BEARER {SECRET}"):
        assert admit(access, header).name == "ann"
    assert admit(access, "Bearer other").name == "bob"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        SECRET,
        f"Bearer{SECRET}",
        f"Basic {SECRET}",
        f"Bearer {SECRET} {SECRET}",
        f"Bearer {SECRET},",
        f"Bearer {SECRET[:-1]}",
        f"Bearer {SECRET.upper()}",
        f"Bearer {digest_of(SECRET).hex()}",
        f"Bearer {SECRET}\n",
        f"Bearer {SECRET}\xe9",
        "Bearer \udce9",
    ],
)
def test_anything_else_is_refused_and_not_repeated(header: str | None) -> None:
    access = KeyedAccess(Keyring([entry()]))
    with pytest.raises(Unauthorized) as refusal:
        admit(access, header)
    assert SECRET.lower() not in str(refusal.value).lower()


def test_with_keys_host_and_origin_do_not_matter() -> None:
    access = KeyedAccess(Keyring([entry()]))
    sent = f"Bearer {SECRET}"
    assert admit(access, sent, host="evil.example", origin="https://evil.example").name == "ann"
    assert admit(access, sent, host=None, origin="null").name == "ann"


@pytest.mark.parametrize("secret", ["k0", "k4", "k9", "none"])
def test_every_key_is_compared_in_constant_time(
    secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyring = Keyring([entry(f"n{number}", f"k{number}") for number in range(10)])
    compared: list[tuple[bytes, bytes]] = []
    honest = hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return honest(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    if secret == "none":
        with pytest.raises(Unauthorized):
            keyring.identify(secret, 0)
    else:
        assert keyring.identify(secret, 0).name == f"n{secret[1:]}"
    assert compared == [(digest_of(secret), digest_of(f"k{number}")) for number in range(10)]


def test_a_key_ends_at_its_expiry() -> None:
    keyring = Keyring([replace(entry(), expires_wall_ns=100)])
    ann = keyring.identify(SECRET, 99)
    assert keyring.confirm(ann, 99) == ann
    with pytest.raises(Unauthorized, match="'ann' has expired"):
        keyring.identify(SECRET, 100)
    with pytest.raises(Unauthorized, match="'ann' has expired"):
        keyring.confirm(ann, 100)


def test_replacing_keys_revokes_and_tells_who_is_gone() -> None:
    access = KeyedAccess(Keyring([entry("ann", "a"), entry("bob", "b"), entry("cid", "c")]))
    gone: list[frozenset[str]] = []
    access.listen(gone.append)
    ann, bob, cid = (admit(access, f"Bearer {secret}") for secret in "abc")
    access.replace(Keyring([entry("ann", "a", "write"), entry("bob", "new"), entry("dan", "d")]))
    assert access.confirm(ann, 0).scopes == {"write"}  # what it may do is what it may do now
    for former in (bob, cid):
        with pytest.raises(Unauthorized):
            access.confirm(former, 0)
    with pytest.raises(Unauthorized):
        admit(access, "Bearer b")
    assert admit(access, "Bearer new").name == "bob"
    assert gone == [{bob.id, cid.id}]
    assert len(access.keyring) == 3


def test_an_id_belongs_to_one_name_and_secret() -> None:
    ids = {
        Keyring([entry(name, secret)]).identify(secret, 0).id
        for name in ("ann", "bob")
        for secret in ("a", "b")
    }
    assert len(ids) == 4
    assert not any(digest_of("a").hex().startswith(shown[:8]) for shown in ids)


def test_no_secret_is_shown() -> None:
    keyring = Keyring([entry()])
    ann = keyring.identify(SECRET, 0)
    ticket = Tickets(secrets.token_bytes).issue(ann, 0)
    assert repr(ann) == "Identity('ann')"
    assert repr(keyring) == "Keyring(ann)"
    assert ticket.secret not in repr(ticket)
    for shown in (f"{ann} {keyring} {ticket} {[ann, keyring, ticket]!r}",):
        for hidden in (SECRET, ticket.secret, digest_of(SECRET).hex(), repr(digest_of(SECRET))):
            assert hidden not in shown


# --- open access

LOOPBACK = [
    "localhost",
    "localhost:4000",
    "LocalHost:4000",
    "localhost.",
    "localhost.:4000",
    "shop.localhost:4000",
    "127.0.0.1",
    "127.0.0.1:",
    "127.8.9.10:4000",
    "[::1]",
    "[::1]:4000",
    "[0:0:0:0:0:0:0:1]:4000",
    "[::ffff:127.0.0.1]:4000",
]
ELSEWHERE = [
    "",
    "evil.example",
    "localhost.evil.example",
    "evil-localhost",
    "localhost..",
    "127.0.0.1.evil.example",
    "127.1",
    "0x7f.0.0.1",
    "2130706433",
    "0.0.0.0:4000",
    "192.168.1.2:4000",
    "::1",
    "[::]:4000",
    "[::2]:4000",
    "[::ffff:10.0.0.1]",
    "[127.0.0.1]",
    "[localhost]",
    "localhost:port",
    "localhost:4000:1",
    "evil.example@localhost",
    "localhost@evil.example",
    "localhost, evil.example",
    "localhost evil.example",
    "localhost/",
    "localhost\n",
    "localho\u017ft",
    "127.0.0.\uff11",
]


@pytest.mark.parametrize("host", LOOPBACK)
def test_open_access_answers_to_loopback(host: str) -> None:
    assert is_loopback_authority(host)
    assert admit(OpenAccess(Cors()), host=host) is ANYONE


@pytest.mark.parametrize("host", [*ELSEWHERE, None])
def test_open_access_answers_to_no_other_host(host: str | None) -> None:
    with pytest.raises(Forbidden) as refusal:
        admit(OpenAccess(Cors()), host=host)
    assert refusal.value.detail == {"host": host or ""}


@pytest.mark.parametrize("host", LOOPBACK)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_open_access_takes_pages_of_this_machine(host: str, scheme: str) -> None:
    assert admit(OpenAccess(Cors()), origin=f"{scheme}://{host}") is ANYONE


@pytest.mark.parametrize(
    "origin",
    [
        *(f"http://{host}" for host in ELSEWHERE),
        *("null", "", "localhost", "file://", "file://localhost", "tauri://localhost"),
        *("chrome-extension://abcdef", "http://localhost http://evil.example", "//localhost"),
        "http://evil.example#://localhost",
    ],
)
def test_open_access_takes_no_page_from_elsewhere(origin: str) -> None:
    with pytest.raises(Forbidden) as refusal:
        admit(OpenAccess(Cors()), origin=origin)
    assert refusal.value.detail == {"origin": origin}


def test_open_access_takes_an_allowed_origin_but_no_other_host() -> None:
    access = OpenAccess(Cors(["https://shop.example/"]))
    assert admit(access, origin="https://shop.example") is ANYONE
    assert admit(access, origin="https://SHOP.example:443") is ANYONE
    for origin in ("http://shop.example", "https://shop.example:444", "https://a.shop.example"):
        with pytest.raises(Forbidden):
            admit(access, origin=origin)
    with pytest.raises(Forbidden):
        admit(access, host="shop.example", origin="https://shop.example")


def test_every_origin_without_keys_takes_an_explicit_word() -> None:
    with pytest.raises(InvalidConfig, match="--allow-insecure"):
        OpenAccess(Cors(["*"]))
    assert admit(OpenAccess(Cors(["*"]), insecure=True), origin="https://any.example") is ANYONE


def test_insecure_access_has_any_host_and_the_same_origin() -> None:
    access = OpenAccess(Cors(), insecure=True)
    assert admit(access, host="fairway:4000") is ANYONE
    assert admit(access, host=None) is ANYONE
    assert admit(access, host="fairway:4000", origin="http://Fairway:4000") is ANYONE
    assert admit(access, host="shop.example", origin="https://shop.example") is ANYONE
    for origin in ("http://evil.example", "http://fairway:4001", "http://fairway", "null"):
        with pytest.raises(Forbidden):
            admit(access, host="fairway:4000", origin=origin)


def test_open_access_ignores_keys_and_confirms_anyone() -> None:
    access = OpenAccess(Cors())
    assert admit(access, "Bearer whatever") is ANYONE
    assert access.confirm(ANYONE, 0) is ANYONE
    ANYONE.require("admin", "anything")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST."])
def test_loopback_may_be_bound_without_keys(host: str) -> None:
    check_bind(host, keyed=False, allow_insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "shop.example", "*", "127.1"])
def test_the_network_is_bound_only_with_keys_or_when_told_so(host: str) -> None:
    with pytest.raises(InvalidConfig, match="--allow-insecure"):
        check_bind(host, keyed=False, allow_insecure=False)
    check_bind(host, keyed=True, allow_insecure=False)
    check_bind(host, keyed=False, allow_insecure=True)


# --- CORS


def test_cors_is_off_without_origins() -> None:
    cors = Cors(exposed=["ETag"])
    assert not cors.enabled
    for origin in (None, "null", "http://localhost", "https://shop.example"):
        assert cors.response_headers(origin) == ()
        assert cors.preflight_headers(origin) == ()


def test_cors_headers_of_a_response() -> None:
    cors = Cors(["https://shop.example", "http://localhost:3000"], exposed=["ETag", "Stream-Seq"])
    assert cors.response_headers("https://shop.example") == (
        ("Access-Control-Allow-Origin", "https://shop.example"),
        ("Vary", "Origin"),
        ("Access-Control-Expose-Headers", "ETag, Stream-Seq"),
    )
    for origin in (None, "null", "https://evil.example", "http://localhost:3001"):
        assert cors.response_headers(origin) == (("Vary", "Origin"),)
        assert cors.preflight_headers(origin) == ()


def test_cors_preflight_allows_our_methods_and_headers() -> None:
    cors = Cors(["https://shop.example"])
    headers = dict(cors.preflight_headers("https://shop.example", "stream-new, X-Evil,producer-x"))
    assert headers["Access-Control-Allow-Origin"] == "https://shop.example"
    assert headers["Vary"] == "Origin"
    assert set(headers["Access-Control-Allow-Methods"].split(", ")) >= {"PUT", "POST", "DELETE"}
    allowed = headers["Access-Control-Allow-Headers"].split(", ")
    assert allowed == [*CORS_HEADERS, "producer-x", "stream-new"]
    assert {"Last-Event-ID", "Authorization", "Idempotency-Key", "If-None-Match"} <= set(allowed)
    assert "Access-Control-Allow-Credentials" not in headers


def test_cors_never_repeats_what_could_break_a_header() -> None:
    cors = Cors(["https://shop.example"])
    told = cors.preflight_headers("https://shop.example", "stream-a\r\nX: y, stream-b")
    assert "X:" not in str(told)
    assert cors.preflight_headers("https://shop.example\r\nX: y") == ()
    assert cors.response_headers("https://shop.example\n") == (("Vary", "Origin"),)


def test_cors_for_every_origin() -> None:
    cors = Cors(["*"], exposed=["ETag"])
    assert cors.response_headers("null") == (
        ("Access-Control-Allow-Origin", "*"),
        ("Access-Control-Expose-Headers", "ETag"),
    )
    assert cors.response_headers(None) == ()
    assert ("Access-Control-Allow-Origin", "*") in cors.preflight_headers("https://any.example")


@pytest.mark.parametrize(
    "origin", ["null", "shop.example", "https://", "https://a/b", "https://a b"]
)
def test_a_malformed_origin_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(InvalidConfig, match="not a web origin"):
        Cors([origin])


def test_origins_are_compared_in_one_spelling() -> None:
    assert parse_origin("HTTPS://Shop.Example.:443") == parse_origin("https://shop.example")
    assert parse_origin("http://[::0001]") == parse_origin("http://[::1]:80")
    assert parse_origin("http://a") != parse_origin("https://a")


# --- tickets


def numbered() -> Iterator[bytes]:
    for number in range(10**6):
        yield number.to_bytes(24, "big")


def tickets(**limits: int) -> Tickets:
    source = numbered()
    return Tickets(lambda size: next(source), TicketConfig(**limits))


def test_a_ticket_is_good_once() -> None:
    issued = tickets()
    ann = identity("read")
    ticket = issued.issue(ann, 0)
    assert ticket.expires_at_ns == 60 * SECOND_NS
    assert issued.redeem(ticket.secret, 1, path="/v0/ws") is ann
    with pytest.raises(Unauthorized):
        issued.redeem(ticket.secret, 1, path="/v0/ws")
    issued.check()
    assert len(issued) == 0


def test_a_ticket_ends_after_a_minute() -> None:
    issued = tickets()
    early, late = issued.issue(ANYONE, 0), issued.issue(ANYONE, 10)
    assert issued.redeem(early.secret, 60 * SECOND_NS - 1, path="/") is ANYONE
    early = issued.issue(ANYONE, 60 * SECOND_NS - 1)
    with pytest.raises(Unauthorized):
        issued.redeem(late.secret, 60 * SECOND_NS + 10, path="/")
    assert len(issued) == 1
    issued.check()


def test_a_ticket_for_a_path_is_used_up_elsewhere() -> None:
    issued = tickets()
    path = "/v0/topics/orders/watch"
    assert issued.redeem(issued.issue(ANYONE, 0, path=path).secret, 0, path=path) is ANYONE
    ticket = issued.issue(ANYONE, 0, path=path)
    for wanted in ("/v0/topics/logs/watch", path):
        with pytest.raises(Unauthorized):
            issued.redeem(ticket.secret, 0, path=wanted)


@pytest.mark.parametrize("secret", ["", "x", "A" * 31, "A" * 32, "A" * 10_000, "\udcff"])
def test_a_made_up_ticket_is_refused(secret: str) -> None:
    issued = Tickets(secrets.token_bytes)
    kept = issued.issue(ANYONE, 0)
    with pytest.raises(Unauthorized):
        issued.redeem(secret, 0, path="/")
    assert issued.redeem(kept.secret, 0, path="/") is ANYONE


def test_unused_tickets_are_bounded_and_the_refusal_says_until_when() -> None:
    issued = tickets(ttl_ns=100, per_identity_max=2, total_max=3)
    ann, bob = identity("read"), identity("read", name="bob")
    first = issued.issue(ann, 0)
    issued.issue(ann, 10)
    with pytest.raises(Throttled) as refusal:
        issued.issue(ann, 20)
    assert (refusal.value.limit, refusal.value.maximum) == ("tickets_per_key", 2)
    assert refusal.value.retry_after_ns == 80
    issued.issue(bob, 20)
    with pytest.raises(Throttled) as refusal:
        issued.issue(bob, 30)
    assert (refusal.value.limit, refusal.value.maximum) == ("tickets", 3)
    assert refusal.value.retry_after_ns == 70
    issued.check()
    issued.redeem(first.secret, 30, path="/")
    issued.issue(ann, 30)
    issued.issue(bob, 110)  # ann's second one has just expired
    assert len(issued) == 3
    issued.check()


def test_only_digests_of_tickets_are_kept() -> None:
    issued = tickets()
    ticket = issued.issue(ANYONE, 0)
    digest = hashlib.sha256(ticket.secret.encode()).digest()
    assert list(issued._issued) == [digest]
    assert ticket.secret not in repr(vars(issued))


def test_a_ticket_has_at_least_128_random_bits() -> None:
    asked: list[int] = []

    def source(size: int) -> bytes:
        asked.append(size)
        return random.Random(1).randbytes(size)

    ticket = Tickets(source).issue(ANYONE, 0)
    assert asked[0] * 8 >= 128
    assert len(ticket.secret) == 32
    assert isinstance(ticket, AccessTicket)


def test_a_clock_that_steps_back_revives_no_ticket() -> None:
    issued = tickets(ttl_ns=100)
    old = issued.issue(ANYONE, 0)
    issued.purge(100)
    with pytest.raises(Unauthorized):
        issued.redeem(old.secret, 50, path="/")
    assert issued.issue(ANYONE, 50).expires_at_ns == 200


def test_a_ticket_of_a_revoked_key_is_worth_nothing() -> None:
    access = KeyedAccess(Keyring([entry()]))
    issued = tickets()
    ticket = issued.issue(admit(access, f"Bearer {SECRET}"), 0)
    access.replace(Keyring([entry("ann", "new")]))
    holder = issued.redeem(ticket.secret, 1, path="/")
    with pytest.raises(Unauthorized):
        access.confirm(holder, 1)


def test_ticket_limits_are_positive() -> None:
    for broken in ({"ttl_ns": 0}, {"per_identity_max": 0}, {"total_max": 0}):
        with pytest.raises(InvalidConfig):
            TicketConfig(**broken)


# --- live reloading


def written(path: Path, name: str, secret: str) -> Path:
    path.write_text(f'[[key]]\nname = "{name}"\nsecret = "{secret}"\nscopes = ["read"]\n')
    return path


def test_keys_follow_their_file(tmp_path: Path) -> None:
    path = written(tmp_path / "keys.toml", "ann", "old")

    async def main() -> None:
        async with BlockingPool(1) as pool, asyncio.TaskGroup() as group:
            keys = ReloadedKeys(KeySource(path, fixed=parse_api_keys("fixed")), pool=pool)
            task = group.create_task(keys.run())
            assert keys.access.keyring.names == {"ann", "env-1"}
            written(path, "ann", "new")
            await asyncio.sleep(0.9)
            assert admit(keys.access, "Bearer old").name == "ann"
            await asyncio.sleep(0.2)
            assert admit(keys.access, "Bearer new").name == "ann"
            assert admit(keys.access, "Bearer fixed").name == "env-1"
            with pytest.raises(Unauthorized):
                admit(keys.access, "Bearer old")
            replacement = written(tmp_path / "next.toml", "bob", "newer")
            replacement.rename(path)
            await asyncio.sleep(1)
            assert keys.access.keyring.names == {"bob", "env-1"}
            task.cancel()

    run(main, seed=1)


def test_a_broken_file_keeps_the_old_keys_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "keys.toml", "ann", SECRET)
    caplog.set_level(logging.INFO, "fairway.server")

    async def main() -> None:
        async with BlockingPool(1) as pool, asyncio.TaskGroup() as group:
            keys = ReloadedKeys(KeySource(path), pool=pool)
            task = group.create_task(keys.run())
            path.write_text(f'[[key]]\nname = "ann"\nsecret = "{SECRET}"\nscopes = ["{SECRET}"]')
            await asyncio.sleep(5.5)
            assert [record.levelname for record in caplog.records] == ["ERROR"]
            assert "keys.toml: key 1 ('ann'): scopes[0]" in caplog.text
            with pytest.raises(InvalidConfig, match=r"keys\.toml"):
                await keys.reload()
            path.write_text("")  # an editor at work: it must not turn keys off
            await asyncio.sleep(5)
            path.unlink()
            await asyncio.sleep(5)
            assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
            assert admit(keys.access, f"Bearer {SECRET}").name == "ann"
            written(path, "bob", SECRET)
            await asyncio.sleep(1)
            assert admit(keys.access, f"Bearer {SECRET}").name == "bob"
            task.cancel()

    run(main, seed=1)
    assert caplog.records[-1].message == "keys reloaded: 1"
    assert SECRET not in caplog.text


def test_keys_are_reloaded_on_demand(tmp_path: Path) -> None:
    path = written(tmp_path / "keys.toml", "ann", "a")

    async def main() -> None:
        async with BlockingPool(1) as pool:
            keys = ReloadedKeys(KeySource(path), pool=pool)
            assert not await keys.reload()
            written(path, "bob", "b")
            async with asyncio.TaskGroup() as group:
                both = [group.create_task(keys.reload()) for _ in range(2)]
            assert sorted(task.result() for task in both) == [False, True]
            assert keys.access.keyring.names == {"bob"}

    run(main, seed=1)


@pytest.mark.parametrize("seed", range(20))
def test_reloads_do_not_overtake_each_other(tmp_path: Path, seed: int) -> None:
    path = written(tmp_path / "keys.toml", "ann", "a")

    async def main() -> None:
        async with BlockingPool(4) as pool:
            keys = ReloadedKeys(KeySource(path), pool=pool)
            async with asyncio.TaskGroup() as group:
                for number in range(4):
                    written(path, f"bob-{number}", "b")
                    group.create_task(keys.reload())
                    await asyncio.sleep(0.001)  # a read takes up to 2 ms either way
            assert keys.access.keyring.names == {"bob-3"}

    run(main, seed=seed)


def test_a_full_pool_only_delays_the_look(tmp_path: Path) -> None:
    path = written(tmp_path / "keys.toml", "ann", "a")

    class FullAtFirst(BlockingPool):
        refusals = 3

        async def run(self, call, *args):  # type: ignore[no-untyped-def,override]
            if self.refusals:
                self.refusals -= 1
                raise Backpressure("blocking", depth=1, limit="1 calls", retry_after_ns=1)
            return await super().run(call, *args)

    async def main() -> None:
        async with FullAtFirst(1) as pool, asyncio.TaskGroup() as group:
            keys = ReloadedKeys(KeySource(path), pool=pool)
            task = group.create_task(keys.run())
            written(path, "bob", "b")
            await asyncio.sleep(3.5)
            assert keys.access.keyring.names == {"ann"}
            await asyncio.sleep(1)
            assert keys.access.keyring.names == {"bob"}
            task.cancel()

    run(main, seed=1)


def test_a_broken_file_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    with pytest.raises(InvalidConfig, match=r"keys\.toml: No such file"):
        ReloadedKeys(KeySource(path), pool=BlockingPool(1))
    path.write_text("")
    with pytest.raises(InvalidConfig, match=r"keys\.toml: there is no key"):
        ReloadedKeys(KeySource(path), pool=BlockingPool(1))
    with pytest.raises(InvalidConfig):
        ReloadedKeys(KeySource(written(path, "a", "b")), pool=BlockingPool(1), period_ns=0)


# --- logs


@pytest.mark.parametrize(
    ("target", "logged"),
    [
        ("/v0/ws", "/v0/ws"),
        ("/v0/ws?", "/v0/ws?"),
        (f"/v0/ws?ticket={SECRET}", "/v0/ws?ticket=***"),
        (f"/v0/ws?a=1&TICKET={SECRET}&b=2", "/v0/ws?a=1&TICKET=***&b=2"),
        (f"/v0/ws?%74icket={SECRET}", "/v0/ws?%74icket=***"),
        (f"/v0/ws?ticket={SECRET}={SECRET}&ticket={SECRET}", "/v0/ws?ticket=***&ticket=***"),
        (f"/v0/ws?access_token={SECRET}", "/v0/ws?access_token=***"),
        ("/v0/ws?ticket", "/v0/ws?ticket"),
        ("/v0/topics/a/watch?from_seq=1", "/v0/topics/a/watch?from_seq=1"),
    ],
)
def test_a_target_is_logged_without_its_secrets(target: str, logged: str) -> None:
    assert scrubbed(target) == logged
