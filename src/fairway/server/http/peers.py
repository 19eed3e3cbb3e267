"""Who is connected: how many from one address and under one key, and who has to make room.

A connection is a stranger's until it has shown a key that is good (without keys: until it was
served). Strangers never take the last places, and the one that has been there longest goes when
somebody else needs its place. Nothing here touches a socket; `enter` says whose must be closed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fairway.server.http.limits import ADDRESS_CROWDED, CROWDED
from fairway.server.http.read_turns import Standing

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from fairway.server.http.limits import HttpLimits, HttpRefusal

NEW, KNOWN, STRANGER = Standing.NEW, Standing.KNOWN, Standing.STRANGER
NOWHERE: Final = ""
"""The address of whoever has none."""


class Peer:
    """Whoever is at the other end of one connection."""

    __slots__ = ("_peers", "address", "due_ns", "holder", "key", "make_room", "standing")

    def __init__(self, peers: Peers, address: str, make_room: Callable[[], None]) -> None:
        self._peers = peers
        self.address = address
        self.make_room = make_room
        """Closes the connection of a stranger: somebody else needs the place."""
        self.standing = NEW
        self.key: str | None = None
        """The key it has shown, by name."""
        self.holder: Hashable = address
        """For whom its reads count: its key, or else its address."""
        self.due_ns = 0
        """When it may come back, if it was refused and told so; else 0."""

    @property
    def key_connections_max(self) -> int:
        return self._peers.by_key_most

    def show(self, key: str | None) -> bool:
        """It has shown this key, or was served without one; False if the key has too many."""
        return self._peers.know(self, key)

    def seems_strange(self) -> None:
        """What it asked showed no key that is good."""
        if self.standing is NEW:
            self.standing = STRANGER


class Peers:
    """The connections of one server."""

    def __init__(self, limits: HttpLimits) -> None:
        self._most = limits.connections_max
        reserved = min(limits.connections_reserved, limits.connections_max // 2)
        self._strangers_most = limits.connections_max - reserved
        self._by_address_most = limits.connections_per_address
        self.by_key_most = limits.connections_per_key
        self._by_address: Counter[str] = Counter()
        self._by_key: Counter[str] = Counter()
        self._strangers: dict[Peer, None] = {}  # the one that came first is first
        self._count = 0
        self._going: set[Peer] = set()  # told to make room, and not gone yet

    def __len__(self) -> int:
        return self._count

    @property
    def strangers(self) -> int:
        return len(self._strangers)

    def enter(self, peer: Peer) -> tuple[HttpRefusal | None, Peer | None]:
        """A connection was made: (why it is refused, who has to go for it). `leave` must follow."""
        self._count += 1
        self._by_address[peer.address] += 1
        self._strangers[peer] = None
        if self._by_address[peer.address] > self._by_address_most:
            return replace(ADDRESS_CROWDED, maximum=self._by_address_most), None
        if self._count > self._most or len(self._strangers) > self._strangers_most:
            eldest = next(iter(self._strangers))
            if eldest is peer:
                return CROWDED, None
            # It leaves soon. Its place is the new one's from here on: of several that come at once
            # each finds another one to go, and not itself the last one left.
            del self._strangers[eldest]
            self._going.add(eldest)
            self._count -= 1
            return None, eldest
        return None, None

    def know(self, peer: Peer, key: str | None) -> bool:
        """`peer` is a stranger no more. False if its key has as many connections as it may have."""
        if key != peer.key:
            if key is not None and self._by_key[key] >= self.by_key_most:
                return False
            self._count_key(peer, -1)
            peer.key = key
            peer.holder = peer.address if key is None else (key,)
            self._count_key(peer, 1)
        peer.standing = KNOWN
        self._strangers.pop(peer, None)
        return True

    def leave(self, peer: Peer) -> None:
        """Its connection is gone."""
        if peer in self._going:
            self._going.remove(peer)
        else:
            self._count -= 1
        self._strangers.pop(peer, None)
        self._by_address[peer.address] -= 1
        if not self._by_address[peer.address]:
            del self._by_address[peer.address]
        self._count_key(peer, -1)
        peer.key = None

    def _count_key(self, peer: Peer, step: int) -> None:
        if peer.key is not None:
            self._by_key[peer.key] += step
            if not self._by_key[peer.key]:
                del self._by_key[peer.key]
