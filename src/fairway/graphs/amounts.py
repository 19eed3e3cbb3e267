"""Lengths of time and counts that graphs are declared with: which of them can be kept. Pure."""

from __future__ import annotations

from math import isfinite
from typing import Final

from fairway.errors import InvalidConfig
from fairway.runtime.amounts import LENGTH_MAX_NS
from fairway.runtime.words import brief

SECOND_NS: Final = 1_000_000_000


def length_ns(what: str, seconds: float, *, zero: bool = False) -> int:
    """Seconds as nanoseconds: above 0, or not below. Raises `InvalidConfig` for others."""
    is_float = isinstance(seconds, float)
    if not (is_float or isinstance(seconds, int)) or (is_float and not isfinite(seconds)):
        raise InvalidConfig(f"{what} is a number of seconds, not {brief(seconds)}")
    if abs(seconds) * SECOND_NS > LENGTH_MAX_NS:
        raise InvalidConfig(f"{what} is a hundred years at most")
    length = round(seconds * SECOND_NS)
    if length < 0 or (length == 0 and not zero):
        raise InvalidConfig(f"{what} is {'not negative' if zero else 'above 0'}")
    return length


def count(what: str, value: int, *, least: int = 1) -> int:
    """A whole number. Raises `InvalidConfig` for others, and for one that is too small."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidConfig(f"{what} is a whole number, not {brief(value)}")
    if value < least:
        raise InvalidConfig(f"{what} is at least {least}")
    return value
