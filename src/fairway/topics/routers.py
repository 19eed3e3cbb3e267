"""The routers that exist: which rules are kept in the catalog, and where each one has got to."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from fairway.errors import Conflict, FairwayError, NotFound
from fairway.runtime.clock import sleep_ns
from fairway.storage.writer import Durability
from fairway.topics.match import TagMatch
from fairway.topics.routing import Router, find_cycle
from fairway.wire.topics import RouterConfig, check_name

if TYPE_CHECKING:
    from fairway.kernel.catalog import Named
    from fairway.topics.engine import Topics

ROUTER: Final = "router"
"""Their kind in the catalog."""
POSITIONS_NS: Final = 1_000_000_000


class _Stored(msgspec.Struct, array_like=True):
    config: RouterConfig
    source_epoch: int
    start_seq: int
    owner: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Stored).decode


class Routers:
    """Keeps rules and runs them. The engine lets one change of them happen at a time."""

    def __init__(self, engine: Topics) -> None:
        self.all: dict[str, Router] = {}
        self._engine = engine
        self._fan_out: dict[str, tuple[int, int]] | None = None

    def get(self, name: str) -> Router:
        router = self.all.get(name)
        if router is None:
            raise NotFound("router", name)
        return router

    def of(self, topic: str) -> list[str]:
        """The names of those that read or write a topic."""
        return [
            router.name
            for router in self.all.values()
            if topic in (router.config.source, router.config.dest)
        ]

    def fan_out(self, topic: str) -> tuple[int, int]:
        """How many read a topic, and how many of these lead to one that others read."""
        if self._fan_out is None:
            read = {router.config.source for router in self.all.values()}
            found: dict[str, tuple[int, int]] = {}
            for router in self.all.values():
                every, leading = found.get(router.config.source, (0, 0))
                leads = router.config.dest in read
                found[router.config.source] = every + 1, leading + leads
            self._fan_out = found
        return self._fan_out.get(topic, (0, 0))

    async def put(self, name: str, config: RouterConfig, owner: str) -> tuple[Router, bool]:
        """Create a router, or replace one; True if it is new."""
        self._check(name, config)
        existing = self.all.get(name)
        if existing is not None and existing.config == config:
            return existing, False  # and goes on to count for whoever made it
        engine = self._engine
        source = engine.get(config.source)
        if not config.create_dest:
            engine.get(config.dest)
        if not config.allow_cycle:
            self._check_cycle(name, config)
        if engine.find(config.dest) is None:
            await engine.create(config.dest, owner=owner)
        start_seq = source.head
        if existing is not None and existing.config.source == config.source:
            start_seq = existing.state().cursor
        saved = _Stored(config, source.epoch, start_seq, owner)
        await engine.kernel.catalog.put(ROUTER, name, _encode(saved))
        if existing is not None:
            self.forget(name)
        router = self.all[name] = Router(name, config, start_seq, owner)
        self._fan_out = None
        await self._start(router)
        return router, existing is None

    async def delete(self, name: str) -> bool:
        if name not in self.all:
            return False
        await self._engine.kernel.catalog.remove((ROUTER, name))
        self.forget(name)
        return True

    def forget(self, name: str) -> None:
        """Stop a router whose rule is gone."""
        router = self.all.pop(name)
        self._fan_out = None
        if router.watcher is not None:
            self._engine.delivery.detach(router.watcher)

    async def restore(self, found: dict[str, Named]) -> None:
        """The rules that the catalog holds, for topics that are there."""
        for name, named in found.items():
            saved = _decode(named.value)
            source = self._engine.find(saved.config.source)
            if source is not None and source.epoch == saved.source_epoch:
                self.all[name] = Router(name, saved.config, saved.start_seq, saved.owner)
            else:
                with suppress(FairwayError):  # it is left over; the next start removes it
                    await self._engine.kernel.catalog.remove((ROUTER, name))

    async def start_all(self) -> None:
        for router in self.all.values():
            await self._start(router)

    async def run(self) -> None:
        """Remember positions now and then, until cancelled."""
        while True:
            await sleep_ns(POSITIONS_NS)
            await self.save_positions()

    async def save_positions(self) -> None:
        """Routers that copy little of what they read remember how far they have read."""
        for router in list(self.all.values()):
            dest = self._engine.find(router.config.dest)
            position = router.progress() if dest is not None else None
            if dest is not None and position is not None:
                try:
                    await self._engine.writing.enqueue_meta(
                        dest, {}, position, durability=Durability.DISK
                    )
                except FairwayError:
                    continue  # then some of it is read again

    async def _start(self, router: Router) -> None:
        engine = self._engine
        source = engine.find(router.config.source)
        if source is None:
            return
        cursor = router.start_seq
        dest = engine.find(router.config.dest)
        if dest is not None:
            known = await engine.writing.written_position_of(dest, router.producer)
            if known is not None and known[0] == source.epoch:
                cursor = max(cursor, known[1])
        engine.activate(source)
        watcher = router.follow(engine, source, min(cursor, source.head))
        engine.delivery.attach(watcher, router=True)

    def _check(self, name: str, config: RouterConfig) -> None:
        check_name(name, what="router")
        check_name(config.source)
        check_name(config.dest)
        if config.source == config.dest:
            raise Conflict(
                f"a router needs two topics, not {config.source!r} twice",
                code="router_cycle",
                detail={"cycle": [config.source, config.source]},
            )
        if config.filter is not None:
            TagMatch.of(config.filter)

    def _check_cycle(self, name: str, config: RouterConfig) -> None:
        edges = [
            (other.config.source, other.config.dest)
            for other in self.all.values()
            if other.name != name
        ]
        cycle = find_cycle(edges, config.source, config.dest)
        if cycle is not None:
            raise Conflict(
                f"router {name!r} would close a cycle: {' -> '.join(cycle)}",
                code="router_cycle",
                detail={"cycle": cycle},
            )
