"""`client.graphs`: look at the graphs of a running server, push, fire and steer; sync and async.

Two thin shells over `graph_calls`, where every request is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import httpx

from fairway.client import graph_calls as calls
from fairway.client.events import EventParser
from fairway.errors import InvalidRequest, Throttled
from fairway.wire.graphs import (
    DEAD_DEFAULT,
    FIRINGS_DEFAULT,
    AuditEntry,
    DeadLetterView,
    FiringsEvent,
    FiringView,
    GraphState,
    GraphSummary,
    GraphView,
    JournalPage,
    PushReply,
    RecoveryView,
    UnloadReply,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from fairway.client.aio import AsyncClient
    from fairway.client.sync import Client

Summaries: TypeAlias = list[GraphSummary]
Firings: TypeAlias = list[FiringView]
DeadLetters: TypeAlias = list[DeadLetterView]
Recoveries: TypeAlias = list[RecoveryView]
Audited: TypeAlias = list[AuditEntry]
GraphNews: TypeAlias = "GraphState | FiringsEvent"

EVERY_MS: Final = 250
SILENCE_S: Final = 45.0
"""A watch that says nothing for so long is dead: its server says something every 15 s."""


class RemoteGraphs:
    """The graphs of a server. `tenant` says whose, where several have one of that name.

    client.graphs.push("pricing", "quotes", {"bid": 1.0, "ask": 1.2})
    client.graphs.fire("pricing").outputs
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self, *, tenant: str | None = None) -> Summaries:
        return self._client.call(calls.graphs(tenant)).graphs

    def get(self, graph: str, *, tenant: str | None = None) -> GraphView:
        """A graph as it is declared, with the numbers of its sources and nodes."""
        return self._client.call(calls.graph(graph, tenant))

    def state(self, graph: str, *, tenant: str | None = None, cache: bool = True) -> GraphState:
        return self._client.call(calls.state(graph, tenant, cache=cache))

    def firings(
        self, graph: str, *, tenant: str | None = None, limit: int = FIRINGS_DEFAULT
    ) -> Firings:
        """Its last firings, newest first."""
        return self._client.call(calls.firings(graph, tenant, limit)).firings

    def dead(
        self, graph: str, *, tenant: str | None = None, limit: int = DEAD_DEFAULT
    ) -> DeadLetters:
        """What could not be used, newest first."""
        return self._client.call(calls.dead(graph, tenant, limit)).dead

    def recoveries(self, graph: str, *, tenant: str | None = None) -> Recoveries:
        return self._client.call(calls.recoveries(graph, tenant)).recoveries

    def journal(self, graph: str, *, tenant: str | None = None) -> Iterator[JournalPage]:
        """What the journal of a graph still holds, page by page, as it is stored."""
        after: int | None = None
        while True:
            page = self._client.call(calls.journal(graph, after, tenant))
            yield page
            if page.next is None:
                return
            after = page.next

    def audit(self, graph: str, *, tenant: str | None = None) -> Audited:
        return self._client.call(calls.audit(graph, tenant)).entries

    def svg(self, graph: str, *, tenant: str | None = None) -> str:
        return self._client.call(calls.svg(graph, tenant))

    def push(
        self,
        graph: str,
        source: str,
        *events: Any,
        tenant: str | None = None,
        wait_s: float | None = None,
    ) -> int:
        """Give a source values, in order; accepted when this returns, durably if checkpointed.

        A full source is tried again as the client's `retry` says; `wait_s` is how long the server
        waits for room each time. Raises `Throttled` if there is none, and says how many of several
        were accepted before. A lost answer is `OutcomeUnknown`.
        """
        _check_events(events)
        reply = self._client.call(calls.push(graph, source, events, tenant, wait_s))
        return _all_accepted(reply, events)

    def fire(
        self, graph: str, cache: Mapping[str, Any] | None = None, *, tenant: str | None = None
    ) -> FiringView:
        """Fire now, paused or not; with `cache`, these values by source replace the cache.

        Raises `Conflict` with the code `firing_failed` if it fails: then nothing was consumed.
        """
        return self._client.call(calls.fire(graph, cache, tenant))

    def pause(self, graph: str, *, tenant: str | None = None) -> GraphSummary:
        """Fire no more by itself; sources go on accumulating."""
        return self._client.call(calls.steer(graph, "pause", tenant))

    def resume(self, graph: str, *, tenant: str | None = None) -> GraphSummary:
        """Fire by itself again, at once if it is due; it also ends a halt."""
        return self._client.call(calls.steer(graph, "resume", tenant))

    def restart(
        self, graph: str, *, source: str | None = None, tenant: str | None = None
    ) -> GraphSummary:
        """Start a graph anew, or a source of it that was given up."""
        return self._client.call(calls.restart(graph, source, tenant))

    def load(self, reference: str, *, fresh: bool = False) -> GraphSummary:
        """Run the graph that `module:graph` means on the server; `fresh` imports it anew."""
        return self._client.call(calls.load(reference, fresh))

    def unload(self, graph: str, *, tenant: str | None = None, forget: bool = False) -> UnloadReply:
        """Drain a graph and stop it; with `forget`, what was kept of it goes as well."""
        return self._client.call(calls.unload(graph, tenant, forget))

    def watch(
        self,
        graph: str,
        *,
        tenant: str | None = None,
        every_ms: int = EVERY_MS,
        cache: bool = True,
    ) -> Iterator[GraphNews]:
        """Its state whenever it changes, and its firings, until it is unloaded or the connection
        is lost."""
        stream = calls.watch(graph, tenant, every_ms, cache=cache)
        parser = EventParser()
        response = self._client.open_stream(stream, SILENCE_S)
        try:
            for chunk in response.iter_raw():
                for event in parser.feed(chunk):
                    news = calls.news_of(event)
                    if news is None:
                        return
                    yield news
        except httpx.HTTPError as error:
            raise self._client._exchange.lost(error) from error
        finally:
            response.close()


class AsyncRemoteGraphs:
    """The graphs of a server, for asyncio: what `RemoteGraphs` is, awaited."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(self, *, tenant: str | None = None) -> Summaries:
        return (await self._client.call(calls.graphs(tenant))).graphs

    async def get(self, graph: str, *, tenant: str | None = None) -> GraphView:
        return await self._client.call(calls.graph(graph, tenant))

    async def state(
        self, graph: str, *, tenant: str | None = None, cache: bool = True
    ) -> GraphState:
        return await self._client.call(calls.state(graph, tenant, cache=cache))

    async def firings(
        self, graph: str, *, tenant: str | None = None, limit: int = FIRINGS_DEFAULT
    ) -> Firings:
        return (await self._client.call(calls.firings(graph, tenant, limit))).firings

    async def dead(
        self, graph: str, *, tenant: str | None = None, limit: int = DEAD_DEFAULT
    ) -> DeadLetters:
        return (await self._client.call(calls.dead(graph, tenant, limit))).dead

    async def recoveries(self, graph: str, *, tenant: str | None = None) -> Recoveries:
        return (await self._client.call(calls.recoveries(graph, tenant))).recoveries

    async def audit(self, graph: str, *, tenant: str | None = None) -> Audited:
        return (await self._client.call(calls.audit(graph, tenant))).entries

    async def svg(self, graph: str, *, tenant: str | None = None) -> str:
        return await self._client.call(calls.svg(graph, tenant))

    async def push(
        self,
        graph: str,
        source: str,
        *events: Any,
        tenant: str | None = None,
        wait_s: float | None = None,
    ) -> int:
        _check_events(events)
        reply = await self._client.call(calls.push(graph, source, events, tenant, wait_s))
        return _all_accepted(reply, events)

    async def fire(
        self, graph: str, cache: Mapping[str, Any] | None = None, *, tenant: str | None = None
    ) -> FiringView:
        return await self._client.call(calls.fire(graph, cache, tenant))

    async def pause(self, graph: str, *, tenant: str | None = None) -> GraphSummary:
        return await self._client.call(calls.steer(graph, "pause", tenant))

    async def resume(self, graph: str, *, tenant: str | None = None) -> GraphSummary:
        return await self._client.call(calls.steer(graph, "resume", tenant))

    async def restart(
        self, graph: str, *, source: str | None = None, tenant: str | None = None
    ) -> GraphSummary:
        return await self._client.call(calls.restart(graph, source, tenant))

    async def load(self, reference: str, *, fresh: bool = False) -> GraphSummary:
        return await self._client.call(calls.load(reference, fresh))

    async def unload(
        self, graph: str, *, tenant: str | None = None, forget: bool = False
    ) -> UnloadReply:
        return await self._client.call(calls.unload(graph, tenant, forget))

    async def watch(
        self,
        graph: str,
        *,
        tenant: str | None = None,
        every_ms: int = EVERY_MS,
        cache: bool = True,
    ) -> AsyncIterator[GraphNews]:
        stream = calls.watch(graph, tenant, every_ms, cache=cache)
        parser = EventParser()
        response = await self._client.open_stream(stream, SILENCE_S)
        try:
            async for chunk in response.aiter_raw():
                for event in parser.feed(chunk):
                    news = calls.news_of(event)
                    if news is None:
                        return
                    yield news
        except httpx.HTTPError as error:
            raise self._client._exchange.lost(error) from error
        finally:
            await response.aclose()


def _check_events(events: tuple[Any, ...]) -> None:
    if not events:
        raise InvalidRequest("there is nothing to push")


def _all_accepted(reply: PushReply, events: tuple[Any, ...]) -> int:
    """How many were accepted. Raises why the next one was not."""
    refused = reply.refused
    if refused is None:
        return reply.accepted
    told = f"{reply.accepted} of {len(events)} were accepted, and then: {refused.message}"
    if refused.retry_after_ms is None:
        raise InvalidRequest(told, code=refused.code)
    raise Throttled(told, retry_after_ns=refused.retry_after_ms * 1_000_000)
