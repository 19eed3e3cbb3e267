"""Counts and lengths of time in configurations: which of them every store can keep. Pure."""

from __future__ import annotations

from math import isfinite
from typing import Final

from fairway.core.amounts import WHOLE_MAX, wrong_whole
from fairway.errors import InvalidConfig
from fairway.runtime.words import brief

SECOND_NS: Final = 1_000_000_000
COUNT_MAX: Final = 1_000_000
LENGTH_MAX_NS: Final = 100 * 365 * 86_400 * SECOND_NS
"""A hundred years: with it, every time still fits 63 bits of nanoseconds."""


def check_amounts(config: object, *, count_max: int = COUNT_MAX, **least: int) -> None:
    """These fields of a configuration are whole numbers, each at least so much.

    Lengths of time (`_ns`, `_ms`) are a hundred years at most, bytes fit 63 bits, and others are
    `count_max` at most. Raises `InvalidConfig` with the field and its value.
    """
    for name, at_least in least.items():
        value = getattr(config, name)
        if wrong := wrong_whole(name, value, least=at_least):
            raise InvalidConfig(wrong)
        most, bound = _bound(name, count_max)
        if value > most:
            raise InvalidConfig(f"{name} is at most {bound}, not {value:,}")


def _bound(name: str, count_max: int) -> tuple[int, str]:
    """The largest value of a field, by the unit in its name, and how people read it."""
    if name.endswith("_ns"):
        return LENGTH_MAX_NS, "a hundred years"
    if name.endswith("_ms"):
        return LENGTH_MAX_NS // 1_000_000, "a hundred years"
    most = WHOLE_MAX if "bytes" in name.split("_") else count_max
    return most, f"{most:,}"


def count(what: str, value: int, *, least: int = 1) -> int:
    """A whole number. Raises `InvalidConfig` for others, and for one that is too small."""
    if wrong := wrong_whole(what, value, least=least):
        raise InvalidConfig(wrong)
    return value


def length_ns(what: str, seconds: float, *, zero: bool = False) -> int:
    """Seconds as nanoseconds: above 0, or not below. Raises `InvalidConfig` for others."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or (isinstance(seconds, float) and not isfinite(seconds)):
        raise InvalidConfig(f"{what} is a number of seconds, not {brief(seconds)}")
    if abs(seconds) * SECOND_NS > LENGTH_MAX_NS:
        raise InvalidConfig(f"{what} is a hundred years at most")
    length = round(seconds * SECOND_NS)
    if length < 0 or (length == 0 and not zero):
        raise InvalidConfig(f"{what} is {'not negative' if zero else 'above 0'}")
    return length
