"""Counts and lengths of time in configurations: which of them every store can keep. Pure."""

from __future__ import annotations

from typing import Final

from fairway.errors import InvalidConfig
from fairway.runtime.words import brief

COUNT_MAX: Final = 1_000_000
LENGTH_MAX_NS: Final = 100 * 365 * 86_400 * 1_000_000_000
"""A hundred years: with it, every time still fits 63 bits of nanoseconds."""


def check_amounts(config: object, **least: int) -> None:
    """These fields of a configuration are whole numbers, each at least so much.

    Those in nanoseconds are a hundred years at most, others a million. Raises `InvalidConfig`.
    """
    for name, at_least in least.items():
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidConfig(f"{name} is a whole number, not {brief(value)}")
        if value < at_least:
            raise InvalidConfig(f"{name} is at least {at_least}, not {brief(value)}")
        if name.endswith("_ns") and value > LENGTH_MAX_NS:
            raise InvalidConfig(f"{name} is a hundred years at most")
        if not name.endswith("_ns") and value > COUNT_MAX:
            raise InvalidConfig(f"{name} is at most {COUNT_MAX:,}")
