"""Idempotency keys in memory: within a byte budget, oldest forgotten first.

Every key is in the log, in the same operation as its records. Memory only spares the look-up: while
a key that is still in its window may have been forgotten, a miss must ask the store. A window is
counted from when the append was accepted, here as in the store: a restart changes no answer.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from fairway.topics.names import SeenKey
    from fairway.topics.operations import KeySeen
    from fairway.topics.outcome import Appended

KEY_OVERHEAD: Final = 320
"""Bytes that remembering a key costs beside its text."""


class KeyMemory:
    """Keys by (topic epoch, key), first in, first out."""

    def __init__(self, budget: int, window_ms: Callable[[int], int]) -> None:
        """`window_ms` says for how long keys count of the topic with an epoch."""
        self.budget = budget
        self.used = 0
        self._window_ms = window_ms
        self._unsure_ms = 0
        self.under_way: dict[tuple[int, str], asyncio.Future[Appended]] = {}
        """Keys whose first append is being made."""
        self.forgotten: dict[int, int] = {}
        """Topics, by epoch, with keys that only the store knows, and when the last may go."""
        self._seen: OrderedDict[tuple[int, str], SeenKey] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def get(self, epoch: int, key: str) -> SeenKey | None:
        return self._seen.get((epoch, key))

    def holds(self, epoch: int, key: str) -> bool:
        """Whether a key is remembered or being used: then its row is not to be removed."""
        return (epoch, key) in self._seen or (epoch, key) in self.under_way

    def doubt(self, used_ms: int) -> None:
        """The store may know keys that were used up to then and are not remembered here."""
        self._unsure_ms = max(self._unsure_ms, used_ms)

    def unsure(self, now_ms: int, window_ms: int) -> bool:
        """Whether a miss proves nothing of a key that counts for so long: ask the store."""
        return now_ms - self._unsure_ms < window_ms

    def apply(self, epoch: int, change: KeySeen) -> None:
        """An operation wrote the row of a key, or removed it; or the row was found in the store."""
        key, seen = change
        self.forget(epoch, key)
        if seen is None:
            return
        self._seen[epoch, key] = seen
        self.used += len(key) + KEY_OVERHEAD
        while self.used > self.budget:
            (owner, oldest), gone = self._seen.popitem(last=False)
            self.used -= len(oldest) + KEY_OVERHEAD
            self.doubt(gone.ts)
            expires_ms = gone.ts + self._window_ms(owner)
            self.forgotten[owner] = max(expires_ms, self.forgotten.get(owner, 0))

    def forget(self, epoch: int, key: str) -> None:
        """Nobody here knows whether a key was used."""
        if self._seen.pop((epoch, key), None) is not None:
            self.used -= len(key) + KEY_OVERHEAD

    def expire(self, now_ms: int, limit: int = 1000) -> list[tuple[int, str]]:
        """Forget keys whose window has passed, and say which: their rows can go."""
        gone: list[tuple[int, str]] = []
        while self._seen and len(gone) < limit:
            (epoch, key), seen = next(iter(self._seen.items()))
            if seen.ts + self._window_ms(epoch) > now_ms:
                break  # windows differ between topics; a longer one in front only delays the rest
            del self._seen[epoch, key]
            self.used -= len(key) + KEY_OVERHEAD
            gone.append((epoch, key))
        return gone
