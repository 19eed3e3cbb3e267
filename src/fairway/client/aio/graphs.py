"""`client.graphs`: look at the graphs of a running server, push, fire and steer.

A thin shell over `graph_calls`, where every request is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from fairway.client import graph_calls as calls
from fairway.client.events import EventParser
from fairway.client.graph_calls import EVERY_MS, SILENCE_S
from fairway.wire.graphs import DEAD_DEFAULT, FIRINGS_DEFAULT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from fairway.client.aio.client import AsyncClient
    from fairway.client.graph_calls import (
        Audited,
        DeadLetters,
        Firings,
        GraphNews,
        Recoveries,
        Summaries,
    )
    from fairway.wire.graphs import (
        FiringView,
        GraphStateView,
        GraphSummary,
        GraphView,
        JournalPage,
        UnloadReply,
    )


class AsyncRemoteGraphs:
    """The graphs of a server. `tenant` says whose, where several have one of that name.

    await client.graphs.push("pricing", "quotes", {"bid": 1.0, "ask": 1.2})
    firing = await client.graphs.fire("pricing")
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(self, *, tenant: str | None = None) -> Summaries:
        reply = await self._client.call(calls.graphs(tenant))
        return reply.graphs

    async def get(self, graph: str, *, tenant: str | None = None) -> GraphView:
        """A graph as it is declared, with the numbers of its sources and nodes."""
        return await self._client.call(calls.graph(graph, tenant))

    async def state(
        self, graph: str, *, tenant: str | None = None, cache: bool = True
    ) -> GraphStateView:
        return await self._client.call(calls.state(graph, tenant, cache=cache))

    async def firings(
        self, graph: str, *, tenant: str | None = None, limit: int = FIRINGS_DEFAULT
    ) -> Firings:
        """Its last firings, newest first."""
        reply = await self._client.call(calls.firings(graph, tenant, limit))
        return reply.firings

    async def dead(
        self, graph: str, *, tenant: str | None = None, limit: int = DEAD_DEFAULT
    ) -> DeadLetters:
        """What could not be used, newest first."""
        reply = await self._client.call(calls.dead(graph, tenant, limit))
        return reply.dead

    async def recoveries(self, graph: str, *, tenant: str | None = None) -> Recoveries:
        reply = await self._client.call(calls.recoveries(graph, tenant))
        return reply.recoveries

    async def journal(self, graph: str, *, tenant: str | None = None) -> AsyncIterator[JournalPage]:
        """What the journal of a graph still holds, page by page, as it is stored."""
        after: int | None = None
        while True:
            page = await self._client.call(calls.journal(graph, after, tenant))
            yield page
            if page.next is None:
                return
            after = page.next

    async def audit(self, graph: str, *, tenant: str | None = None) -> Audited:
        reply = await self._client.call(calls.audit(graph, tenant))
        return reply.entries

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
        """Give a source values, in order; accepted when this returns, durably if checkpointed.

        A full source is tried again as the client's `retry` says; `wait_s` is how long the server
        waits for room each time. Raises `Throttled` if there is none, and says how many of several
        were accepted before. A lost answer is `OutcomeUnknown`.
        """
        reply = await self._client.call(calls.push(graph, source, events, tenant, wait_s))
        return calls.all_accepted(reply, events)

    async def fire(
        self, graph: str, cache: Mapping[str, Any] | None = None, *, tenant: str | None = None
    ) -> FiringView:
        """Fire now, paused or not; with `cache`, these values by source replace the cache.

        Raises `Conflict` with the code `firing_failed` if it fails: then nothing was consumed.
        """
        return await self._client.call(calls.fire(graph, cache, tenant))

    async def pause(self, graph: str, *, tenant: str | None = None) -> GraphSummary:
        """Fire no more by itself; sources go on accumulating."""
        return await self._client.call(calls.steer(graph, "pause", tenant))

    async def resume(self, graph: str, *, tenant: str | None = None) -> GraphSummary:
        """Fire by itself again, at once if it is due; it also ends a halt."""
        return await self._client.call(calls.steer(graph, "resume", tenant))

    async def restart(
        self, graph: str, *, source: str | None = None, tenant: str | None = None
    ) -> GraphSummary:
        """Start a graph anew, or a source of it that was given up."""
        return await self._client.call(calls.restart(graph, source, tenant))

    async def load(self, reference: str, *, fresh: bool = False) -> GraphSummary:
        """Run the graph that `module:graph` means on the server; `fresh` imports it anew."""
        return await self._client.call(calls.load(reference, fresh))

    async def unload(
        self, graph: str, *, tenant: str | None = None, forget: bool = False
    ) -> UnloadReply:
        """Drain a graph and stop it; with `forget`, what was kept of it goes as well."""
        return await self._client.call(calls.unload(graph, tenant, forget))

    async def watch(
        self,
        graph: str,
        *,
        tenant: str | None = None,
        every_ms: int = EVERY_MS,
        cache: bool = True,
    ) -> AsyncIterator[GraphNews]:
        """Its state whenever it changes, and its firings, until it is unloaded or the connection
        is lost."""
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
