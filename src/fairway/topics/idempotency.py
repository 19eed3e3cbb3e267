"""Idempotency keys in memory: within a byte budget, oldest forgotten first.

Every key is in the log, in the same operation as its records. Memory only spares the look-up: while
a key that is still in its window may have been forgotten, a miss must ask the store.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

    from fairway.topics.names import SeenKey
    from fairway.topics.outcome import Appended

KEY_OVERHEAD: Final = 320
"""Bytes that remembering a key costs beside its text."""


class KeyMemory:
    """Keys by (topic epoch, key), first in, first out."""

    def __init__(self, budget: int, cold_until_ms: int) -> None:
        self.budget = budget
        self.used = 0
        self.cold_until_ms = cold_until_ms
        """Until then a miss proves nothing: ask the store."""
        self.under_way: dict[tuple[int, str], asyncio.Future[Appended]] = {}
        """Keys whose first append is being made."""
        self.forgotten: dict[int, int] = {}
        """Topics, by epoch, with keys that only the store knows, and when the last may go."""
        self._seen: OrderedDict[tuple[int, str], tuple[SeenKey, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def get(self, epoch: int, key: str) -> SeenKey | None:
        found = self._seen.get((epoch, key))
        return found[0] if found is not None else None

    def holds(self, epoch: int, key: str) -> bool:
        """Whether a key is remembered or being used: then its row is not to be removed."""
        return (epoch, key) in self._seen or (epoch, key) in self.under_way

    def doubt(self, until_ms: int) -> None:
        """The store may know keys that are not remembered here."""
        self.cold_until_ms = max(self.cold_until_ms, until_ms)

    def remember(self, epoch: int, key: str, seen: SeenKey, expires_ms: int) -> None:
        if (epoch, key) in self._seen:
            self.used -= len(key) + KEY_OVERHEAD
            del self._seen[epoch, key]
        self._seen[epoch, key] = (seen, expires_ms)
        self.used += len(key) + KEY_OVERHEAD
        while self.used > self.budget:
            (owner, oldest), (_, forgotten_ms) = self._seen.popitem(last=False)
            self.used -= len(oldest) + KEY_OVERHEAD
            self.doubt(forgotten_ms)
            self.forgotten[owner] = max(forgotten_ms, self.forgotten.get(owner, 0))

    def expire(self, now_ms: int, limit: int = 1000) -> list[tuple[int, str]]:
        """Forget keys whose window has passed, and say which: their rows can go."""
        gone: list[tuple[int, str]] = []
        while self._seen and len(gone) < limit:
            (epoch, key), (_, expires_ms) = next(iter(self._seen.items()))
            if expires_ms > now_ms:
                break  # windows differ between topics; a longer one in front only delays the rest
            del self._seen[epoch, key]
            self.used -= len(key) + KEY_OVERHEAD
            gone.append((epoch, key))
        return gone
