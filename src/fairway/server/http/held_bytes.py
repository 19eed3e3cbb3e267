"""One bound in bytes over what all connections of a server make it hold for them.

Counted are the bodies that are being received or wait, the answers that clients do not read, and
those that are being built (`large_pages`). The first 16 KiB of each are not: the number of
connections bounds those, and small requests, which are most of them, cost no counting.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fairway.errors import Throttled
from fairway.server.http.limits import HELD_FULL, SECOND_NS

FREE: Final = 16 * 1024
"""What a connection may have in either direction without being counted."""


class HeldBytes:
    """How many bytes are held, and whether there is room for more."""

    __slots__ = ("most", "refusal", "used")

    def __init__(self, most: int) -> None:
        self.most = most
        self.refusal = replace(HELD_FULL, maximum=most)
        self.used = 0

    def throttled(self) -> Throttled:
        """The refusal, as an error."""
        return Throttled(
            self.refusal.message,
            retry_after_ns=self.refusal.retry_after_s * SECOND_NS,
            limit=self.refusal.limit,
            maximum=self.most,
        )

    def has_room(self, size: int) -> bool:
        return self.used + size <= self.most

    def take(self, size: int) -> bool:
        """Count `size` bytes more, unless they do not fit: then nothing is counted, and False."""
        if self.used + size > self.most:
            return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        """So many are held no more."""
        assert 0 <= size <= self.used, "more was given back than taken"
        self.used -= size
