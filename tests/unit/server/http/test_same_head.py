"""A request whose head is known from the one before is the same request without the parser."""

from __future__ import annotations

import asyncio
import gc
import socket
from itertools import cycle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.server.http.limits import HttpLimits
from fairway.server.http.same_head import TRIES, Heads, SameHead
from fairway.testing import run
from tests.support.http_protocol import Client, echo, end_of, on_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairway.server.http.response import ResponseCycle

SMALL = HttpLimits(url_bytes_max=200, head_bytes_max=400, header_count_max=8, body_bytes_max=100)


class Begins:
    """A site where every request begins at once, and is the app's."""

    ownership = None
    door = None

    def admit(self, peer: Any, cycle: ResponseCycle, begin: Callable[[], object]) -> None:
        begin()

    def line_up(self, peer: Any, head: SameHead, begin: Callable[[], object]) -> bool:
        return False

    def let_in(self, peer: Any, cycle: ResponseCycle, begin: Callable[[], object]) -> None:
        begin()

    def lost(self, peer: Any) -> None: ...

    def answer_without_task(self, cycle: ResponseCycle) -> bool:
        return False


class Lines(Begins):
    """A site where each request waits for its turn, and begins after `turns` of the loop."""

    def __init__(self, turns: int = 1) -> None:
        self._turns = turns
        self.lined_up = 0

    def admit(self, peer: Any, cycle: ResponseCycle, begin: Callable[[], object]) -> None:
        self._later(begin, self._turns)

    def line_up(self, peer: Any, head: SameHead, begin: Callable[[], object]) -> bool:
        self.lined_up += 1
        self._later(begin, self._turns)
        return True

    def _later(self, begin: Callable[[], object], turns: int) -> None:
        loop = asyncio.get_running_loop()
        if turns:
            loop.call_soon(self._later, begin, turns - 1)
        else:
            begin()


class Counting:
    """A parser that counts how often it is asked."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> None:
        self.asked += 1
        self._parser.feed_data(data)


def post(body: bytes = b"hello", *, path: str = "/t", more: str = "", length: str = "") -> bytes:
    spelled = length or f"content-length: {len(body)}"
    return f"POST {path} HTTP/1.1\r\nhost: a\r\n{spelled}\r\n{more}\r\n".encode() + body


def talk(
    parts: list[bytes], *, learns: bool = True, site: Any = None, pauses: Iterable[int] = (2,)
) -> tuple[bytes, list[Any], float, int]:
    """What is answered, what the app saw, when it was over, and how often the parser was asked."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        kept = {name: scope[name] for name in scope if name not in ("state", "extensions")}
        seen.append({**kept, "headers": [*scope["headers"]]})
        scope["headers"].append((b"app", b"its own"))  # which is nobody else's
        await echo(scope, receive, send)

    async def scenario() -> tuple[bytes, list[Any], float, int]:
        with socket.socket() as held:
            client = Client(app, held, SMALL, site or Begins())
            parser: Any = Counting(client.protocol.parser)
            client.protocol.parser = parser
            if not learns:
                client.protocol._tries = 0
            for part, turns in zip(parts, cycle(pauses), strict=False):
                if client.transport.ended_at is None:
                    client.send(part)
                    for _ in range(turns):
                        await asyncio.sleep(0)
            ended = await end_of(client)
            assert not client.state.tasks
            return bytes(client.transport.sent), seen, ended, parser.asked

    return run(scenario, seed=1, quiet=True)


def test_the_parser_sees_a_head_that_repeats_only_once() -> None:
    bodies = [b"a", b"bc" * 20, b"d", b"e" * 100]
    sent, seen, _, asked = talk([post(body) for body in bodies])
    assert asked == 1
    assert [one["path"] for one in seen] == ["/t"] * 4
    for body, one in zip(bodies, seen, strict=True):
        assert one["headers"] == [(b"host", b"a"), (b"content-length", b"%d" % len(body))]
        assert b"content-length: %d\r\n\r\n%b" % (len(body), body) in sent


def test_another_head_is_parsed_and_known_from_then_on() -> None:
    parts = [post(), post(path="/u?x=1"), post(path="/u?x=1"), post(more="x: y\r\n"), post()]
    _, seen, _, asked = talk(parts)
    assert asked == 4
    assert [(one["path"], one["query_string"]) for one in seen] == [
        ("/t", b""),
        ("/u", b"x=1"),
        ("/u", b"x=1"),
        ("/t", b""),
        ("/t", b""),
    ]


def test_a_body_that_looks_like_the_request_before_is_a_body() -> None:
    head, body = post(post())[: -len(post())], post()
    parts = [post(), head, body, post()]
    _, seen, _, asked = talk(parts)
    assert [one["headers"][1][1] for one in seen] == [b"5", b"%d" % len(body), b"5"]
    assert asked == 4
    assert talk(parts, learns=False)[:3] == talk(parts)[:3]


def test_requests_in_advance_are_bounded_also_if_their_head_is_known() -> None:
    class Holds(Begins):
        def admit(self, scope: Any, begin: Callable[[], object]) -> None:
            pass

    async def scenario() -> None:
        with socket.socket() as held:
            client = Client(echo, held, SMALL, Holds())
            client.send(post())
            for _ in range(10 * SMALL.pipeline_max):
                client.send(post())
            assert len(client.protocol.pipeline) <= SMALL.pipeline_max
            client.transport.abort()
            await end_of(client)

    on_virtual_time(scenario)


def test_a_client_that_repeats_itself_now_and_then_is_learned_again() -> None:
    parts = [post(path=f"/{number // 2}") for number in range(8 * TRIES)]
    assert talk(parts)[3] == 4 * TRIES


def test_a_client_that_never_repeats_itself_is_not_learned_for_ever() -> None:
    learned: list[SameHead | None] = []

    async def scenario() -> None:
        with socket.socket() as held:
            client = Client(echo, held, SMALL, Begins())
            for number in range(2 * TRIES):
                client.send(post(path=f"/{number}"))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                learned.append(client.protocol._same_head)  # type: ignore[attr-defined]
            await end_of(client)

    on_virtual_time(scenario)
    assert len({id(one) for one in learned[:TRIES]}) == TRIES
    assert learned[TRIES:] == [None] * TRIES


def test_connections_share_a_head_and_it_is_forgotten_with_the_last_of_them() -> None:
    async def scenario() -> None:
        with socket.socket() as first, socket.socket() as second, socket.socket() as other:
            heads = Heads()
            clients = [Client(echo, held, SMALL, Begins()) for held in (first, second, other)]
            for client in clients:
                client.protocol.heads = heads  # as connections of one server have
            for client, request in zip(
                clients, (post(), post(b"more"), post(path="/o")), strict=True
            ):
                client.send(request)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            known = [client.protocol._same_head for client in clients]  # type: ignore[attr-defined]
            assert known[0] is known[1] is not known[2]
            assert len(heads) == 2
            for client in clients:
                client.send(post(path="/another"))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            known.clear()
            gc.collect()
            assert len(heads) == 1
            for client in clients:
                await end_of(client)

    on_virtual_time(scenario)


END_OF_POST = b"a\r\ncontent-length: 5\r\n\r\nhello"
ODD = ["CONTENT-LENGTH:5", "content-length:   5", "content-length: 5 ", "content-length: 05"]
ODD += ["content-length: +5", "content-length: 5\r\ncontent-length: 5", "x: content-length: 5"]
ODD += [
    "content-length: 5\r\ncontent-length: 6",
    "content-length: 999",
    "transfer-encoding: chunked",
]
REQUESTS = st.one_of(
    st.integers(1, 101).map(lambda size: post(b"x" * size)),
    st.integers(1, 101).map(lambda size: post(b"x" * size)),
    st.just(post()),
    st.sampled_from(["a: 1\r\n", "a: 2\r\n"]).map(lambda more: post(more=more)),
    st.sampled_from(ODD).map(lambda spelled: post(length=spelled)),
    st.sampled_from(["connection: close\r\n", "expect: 100-continue\r\n", "upgrade: x\r\n"]).map(
        lambda more: post(more=more)
    ),
    st.sampled_from(
        [
            b"GET /t HTTP/1.1\r\nhost: a\r\n\r\n",
            b"\r\n" + post(),
            post() + b"\r\n",
            post(length="content-length: 0"),
            b"POST /t HTTP/1.0\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello",
            post(length="transfer-encoding: chunked", body=b"5\r\nhello\r\n0\r\n\r\n"),
        ]
    ),
)


@pytest.mark.parametrize(
    "parts",
    [
        [post(b"x" * 101)],
        [post(length="content-length: 05")],
        [post(more="a: 1\r\n"), post(more="a: 2\r\n")],
        [b"POST /u HTTP/1.1\r\nhost: a\r\nx: ", post()],
        [post(more="connection: close\r\n")],
        [b"POST /t HTTP/1.1\r\nhost: ", END_OF_POST, END_OF_POST],
        [post() + b"P", post()[1:], post()[1:]],
        [post() + b"POST ", post()[5:], post()[5:]],
        [post() + b"P", post()],
        [post() + b"\r\n", post(), post()],
        [post(b"x" * 40, more="x: y\r\n" * 5, path="/" + "u" * 180), post(b"x" * 101)],
    ],
)
def test_nobody_can_tell(parts: list[bytes]) -> None:
    *known, _ = talk([post(), *parts, post()])
    *parsed, _ = talk([post(), *parts, post()], learns=False)
    assert known == parsed


@given(st.lists(REQUESTS, max_size=6), st.lists(st.integers(0, 800), max_size=3), st.booleans())
def test_nobody_can_tell_whether_a_head_was_known(
    requests: list[bytes], cuts: list[int], joined: bool
) -> None:
    """However the requests are spelled, cut into pieces or sent in advance."""
    parts = [b"".join(requests)] if joined else requests
    for cut in cuts:
        parts = [piece for part in parts for piece in (part[:cut], part[cut:]) if piece]
    *known, _ = talk([post(), *parts, post(), post(b"end")])
    *parsed, _ = talk([post(), *parts, post(), post(b"end")], learns=False)
    assert known == parsed


@given(
    st.lists(REQUESTS, max_size=6),
    st.lists(st.integers(0, 800), max_size=3),
    st.integers(0, 4),
    st.lists(st.sampled_from([0, 1, 12]), min_size=1, max_size=4),
)
def test_nobody_can_tell_whether_it_waited_in_line_unread(
    requests: list[bytes], cuts: list[int], turns: int, pauses: list[int]
) -> None:
    """Whatever comes meanwhile."""
    for cut in cuts:
        requests = [piece for part in requests for piece in (part[:cut], part[cut:]) if piece]
    parts = [post(), *requests, post(), post(b"end")]
    pauses = [12, *pauses * 3]
    *known, _ = talk(parts, site=Lines(turns), pauses=pauses)
    *parsed, _ = talk(parts, site=Lines(turns), pauses=pauses, learns=False)
    assert known == parsed


def in_line(happens: Callable[[Client], object]) -> tuple[Client, int, float]:
    """What becomes of a connection whose second request waits for its turn when something
    `happens`: the connection, how many of its requests were served, and when it ended."""
    served: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        served.append(len(served))
        await echo(scope, receive, send)

    async def scenario() -> tuple[Client, int, float]:
        with socket.socket() as held:
            site = Lines(turns=5)
            client = Client(app, held, SMALL, site)
            client.send(post(b"first"))
            for _ in range(8):
                await asyncio.sleep(0)
            client.send(post(b"second"))
            assert site.lined_up == 1
            assert b"second" not in client.transport.sent
            happens(client)
            ended = await end_of(client)
            return client, len(served), ended

    return run(scenario, seed=1, quiet=True)


def test_what_comes_while_a_request_waits_is_answered_behind_it() -> None:
    client, served, _ = in_line(lambda client: client.send(post(b"third")))
    assert served == 3
    assert client.transport.sent.endswith(b"third")
    assert client.transport.sent.index(b"second") < client.transport.sent.index(b"third")


def test_a_client_that_leaves_while_its_request_waits_is_not_served() -> None:
    _, served, _ = in_line(lambda client: client.transport.lose())
    assert served == 1


def test_a_client_that_sends_no_more_while_its_request_waits_is_answered() -> None:
    client, served, ended = in_line(lambda client: client.transport.end_input())
    assert served == 2
    assert client.transport.sent.endswith(b"second")
    assert ended == 0


def test_a_server_that_stops_answers_what_waits_in_line() -> None:
    client, served, ended = in_line(lambda client: client.protocol.shutdown())
    assert served == 2
    assert b"connection: close" in client.transport.sent
    assert client.transport.sent.endswith(b"second")
    assert ended == 0


def test_a_request_that_waits_is_not_closed_for_being_idle() -> None:
    async def scenario() -> None:
        with socket.socket() as held:
            site = Lines(turns=5)
            site._later = lambda begin, turns: begins.append(begin)  # type: ignore[method-assign]
            begins: list[Callable[[], object]] = []
            client = Client(echo, held, HttpLimits(idle_ns=10**9), site)
            client.send(post(b"first"))
            begins.pop()()
            await asyncio.sleep(0.5)
            client.send(post(b"second"))
            await asyncio.sleep(100)
            assert client.transport.ended_at is None
            begins.pop()()
            assert await end_of(client) == 101.5
            assert client.transport.sent.endswith(b"second")

    on_virtual_time(scenario)


@given(st.binary(max_size=40), st.integers(0, 12))
def test_what_is_not_this_head_with_its_body_is_left_to_the_parser(noise: bytes, at: int) -> None:
    scope = {"method": "POST", "path": "/t", "raw_path": b"/t", "query_string": b""}
    head = Heads().learn(post(), 5, {**scope, "headers": [(b"content-length", b"5")]})
    assert head is not None
    begin = post().index(b"5\r\n") - 2
    mutant = post()[: begin + at] + noise + post()[begin + at :]
    found = head.body_at(mutant)
    if found:
        assert mutant[:found] == post(mutant[found:])[:found]
