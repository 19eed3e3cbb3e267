"""What both clients share of HTTP: how a call becomes a request, and what came back a value."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final, TypeVar

import httpx

from fairway.client.clock import SYSTEM_CLIENT_CLOCK, ClientClock
from fairway.client.problems import HttpResponse, NoResponse, no_response_error, refusal_of
from fairway.client.retry import Attempts, RetryConfig
from fairway.settings import read_client_settings

if TYPE_CHECKING:
    from fairway.client.following import StreamCall
    from fairway.client.protocol import Call
    from fairway.errors import FairwayError

T = TypeVar("T")

CONNECT_S: Final = 5.0
TIMEOUT_S: Final = 15.0
UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
"""Failures that say that no request has left."""


class Auto:
    """The default of `key`: the client makes one, so that a retry is safe."""

    def __repr__(self) -> str:
        return "AUTO"


AUTO: Final = Auto()


class Exchange:
    """Settings of one client, and whether its server has ever answered."""

    def __init__(
        self,
        url: str | None,
        key: str | None,
        *,
        retry: RetryConfig | None,
        timeout_s: float,
        clock: ClientClock | None,
        source: random.Random | None,
    ) -> None:
        settings = read_client_settings(url, key)
        self.url = settings.url
        self.retry = retry if retry is not None else RetryConfig()
        self.clock: ClientClock = clock if clock is not None else SYSTEM_CLIENT_CLOCK
        self.random = source if source is not None else random.SystemRandom()
        self.met = False
        self._key = settings.key
        self._timeout_s = timeout_s

    def client_options(self, verify: Any, transport: Any) -> dict[str, Any]:
        """For `httpx.Client` and its sister. The environment is read by `settings` alone."""
        headers = {"user-agent": "fairway-client"}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        return {
            "base_url": self.url,
            "headers": headers,
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
            "trust_env": False,
            "transport": transport,
            "verify": verify,
        }

    def request(self, call: Call[Any]) -> dict[str, Any]:
        """For `build_request`."""
        return {
            "method": call.method,
            "url": call.path,
            "params": call.query,
            "content": call.body,
            "headers": {"content-type": "application/json"} if call.body is not None else {},
            "timeout": self._timeout(self._timeout_s + call.wait_ns / 1e9),
        }

    def stream_request(self, stream: StreamCall, silence_s: float) -> dict[str, Any]:
        """The same for a stream. Silence beyond `silence_s` ends it: that is the watchdog."""
        headers = {"accept": "text/event-stream", "accept-encoding": "identity"}
        if stream.last_id:
            headers["last-event-id"] = stream.last_id
        return {
            "method": "GET",
            "url": stream.path,
            "params": stream.query,
            "headers": headers,
            "timeout": self._timeout(silence_s),
        }

    def attempts(self, call: Call[T]) -> Attempts[T]:
        now_ns = self.clock.now_ns()
        return Attempts(call, self.retry, self.random, now_ns, where=self.url, met=self.met)

    def replied(self, response: httpx.Response) -> HttpResponse:
        """A response that was read to its end."""
        self.met = True
        return HttpResponse(response.status_code, response.headers, response.content)

    def unanswered(self, error: httpx.HTTPError) -> NoResponse:
        sent = not isinstance(error, UNSENT)
        self.met = self.met or sent
        return NoResponse(sent, str(error) or type(error).__name__)

    def value(self, call: Call[T], outcome: HttpResponse | NoResponse) -> T:
        """What one attempt came to; raises what it means if it failed."""
        if isinstance(outcome, NoResponse):
            raise no_response_error(outcome, where=self.url)
        if outcome.status in call.good:
            return call.decode(outcome.body)
        raise self.refusal(outcome, mutates=call.mutates)

    def refusal(self, response: HttpResponse, *, mutates: bool = False) -> FairwayError:
        return refusal_of(response, mutates=mutates, where=self.url).error

    def lost(self, error: httpx.HTTPError) -> FairwayError:
        """What it means that a stream could not be opened, or broke."""
        return no_response_error(self.unanswered(error), where=self.url)

    def key_for(self, given: str | Auto | None) -> str | None:
        """An idempotency key: the given one, none, or a new one."""
        return f"{self.random.getrandbits(128):032x}" if isinstance(given, Auto) else given

    def _timeout(self, read_s: float) -> httpx.Timeout:
        connect_s = min(CONNECT_S, self._timeout_s)
        return httpx.Timeout(self._timeout_s, connect=connect_s, read=read_s, pool=connect_s)
