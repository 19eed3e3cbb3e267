"""When it is worth trying again with a source that is full. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

RECENT: Final = 16
"""Firings that are looked at: what was before them weighs next to nothing."""
WEIGHT: Final = 4
"""The newest firing counts for one part in so many, all before it for the rest."""
RETRY_FLOOR_NS: Final = 1_000_000
RETRY_CAP_NS: Final = 5_000_000_000


def pace_ns(durations_ns: Iterable[int]) -> int:
    """How long a firing takes of late, from those that were, oldest first; 0 if there are none."""
    pace = None
    for duration_ns in durations_ns:
        pace = duration_ns if pace is None else pace + (duration_ns - pace) // WEIGHT
    return pace or 0


def retry_after_ns(pace_ns: int, depth: int) -> int:
    """When a quarter of what waits has been fired."""
    return min(max(pace_ns * max(1, depth // 4), RETRY_FLOOR_NS), RETRY_CAP_NS)
