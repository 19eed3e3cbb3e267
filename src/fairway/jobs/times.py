"""Times as people write them, in seconds: which of them can be kept."""

from __future__ import annotations

from math import isfinite
from typing import Final

from fairway.errors import InvalidConfig, InvalidRequest
from fairway.runtime.amounts import LENGTH_MAX_NS
from fairway.runtime.words import brief

SECOND_NS: Final = 1_000_000_000
TIME_MAX_NS: Final = LENGTH_MAX_NS


def time_ns(what: str, seconds: float) -> int:
    """Seconds as nanoseconds; below 0 is a time that has passed. `InvalidRequest` for others."""
    is_float = isinstance(seconds, float)
    if not (is_float or isinstance(seconds, int)) or (is_float and not isfinite(seconds)):
        raise InvalidRequest(f"{what} is a number of seconds, not {brief(seconds)}")
    if abs(seconds) * SECOND_NS > TIME_MAX_NS:
        raise InvalidRequest(f"{what} is a hundred years at most")
    return round(seconds * SECOND_NS)


def length_ns(what: str, seconds: float) -> int:
    """As `time_ns`, of what lasts so long: not below 0."""
    if (length := time_ns(what, seconds)) < 0:
        raise InvalidRequest(f"{what} is 0 or more, not {brief(seconds)}")
    return length


def timeout_ns(seconds: float | None) -> int | None:
    """A timeout that is declared. Raises `InvalidConfig` for one that cannot be kept."""
    if seconds is None:
        return None
    try:
        length = time_ns("a timeout", seconds)
    except InvalidRequest as wrong:
        raise InvalidConfig(str(wrong)) from None
    if length <= 0:
        raise InvalidConfig(f"a timeout is positive, not {brief(seconds)}")
    return length
