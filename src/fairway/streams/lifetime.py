"""How long a stream lives: while it is used, or until a date. Pure."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final, NamedTuple

from fairway.errors import InvalidRequest

TOUCH_SHARE: Final = 8
"""The last access is saved after this share of the TTL: a restart lengthens a life by as much."""

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


class Lifetime(NamedTuple):
    """How long a stream lives: while it is not idle for `ttl_s`, or until a moment."""

    ttl_s: int | None = None
    expires_at: str | None = None

    @property
    def expires_ms(self) -> int | None:
        """The moment, if it is a date."""
        return milliseconds(self.expires_at) if self.expires_at is not None else None

    def ends_ms(self, touched_ms: int) -> int | None:
        """When a stream that was used last at `touched_ms` is over; None: never."""
        if self.expires_at is not None:
            return self.expires_ms
        return None if self.ttl_s is None else touched_ms + self.ttl_s * 1000

    def over(self, touched_ms: int, now_ms: int, *, in_use: bool) -> bool:
        """Whether the stream is over. One that is `in_use` is not idle, but a date comes anyway."""
        ends_ms = self.ends_ms(touched_ms)
        if ends_ms is None or now_ms < ends_ms:
            return False
        return not in_use or self.expires_at is not None

    def worth_saving(self, saved_ms: int, now_ms: int) -> bool:
        """Whether a use now is to be stored, if the last one that is was at `saved_ms`."""
        return self.ttl_s is not None and now_ms - saved_ms >= self._share_ms

    def after_restart(self, touched_ms: int) -> int:
        """When the stream was used last, if `touched_ms` is the last time that was stored.

        It may have been used since without that being saved: it is never ended too early.
        """
        return touched_ms + self._share_ms

    @property
    def _share_ms(self) -> int:
        return (self.ttl_s or 0) * 1000 // TOUCH_SHARE


def milliseconds(moment: str) -> int:
    """A date as a client gives it; `InvalidRequest` if it is none."""
    try:
        if not _RFC3339.fullmatch(moment):
            raise ValueError("not RFC 3339")
        return int(datetime.fromisoformat(moment.upper()).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"Stream-Expires-At is an RFC 3339 timestamp: {error}") from None
