"""Numbers in configurations: which of them can be meant. Pure.

A configuration is checked once, when it is made. What is no number (a nan, a text, a bool) would
otherwise fail later, far from where it was given, or pass for another number.
"""

from __future__ import annotations

from typing import Final

WHOLE_MAX: Final = 2**63 - 1
"""The largest whole number that stores and messages hold."""
_SHOWN_BITS_MAX: Final = 256
_SHOWN: Final = (bool, int, float, str, bytes, type(None))


def wrong_whole(name: str, value: object, *, least: int, most: int = WHOLE_MAX) -> str | None:
    """Why the field `name` cannot have this value; None if it is a whole number within bounds."""
    if not isinstance(value, int) or isinstance(value, bool):
        return f"{name} is a whole number, not {_shown(value)}"
    if value < least:
        return f"{name} is at least {least:,}, not {_shown(value)}"
    if value > most:
        return f"{name} is at most {most:,}, not {_shown(value)}"
    return None


def wrong_share(name: str, value: object) -> str | None:
    """Why the field `name` cannot have this value; None if it is a number from 0 to 1."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return f"{name} is a number, not {_shown(value)}"
    if not 0 <= value <= 1:  # which nan is not
        return f"{name} is a share from 0 to 1, not {_shown(value)}"
    return None


def check_whole(config: object, **least: int) -> None:
    """These fields of a configuration are whole numbers, each at least so much, or `ValueError`."""
    for name, at_least in least.items():
        if wrong := wrong_whole(name, getattr(config, name), least=at_least):
            raise ValueError(wrong)


def check_shares(config: object, *names: str) -> None:
    """These fields of a configuration are numbers from 0 to 1, or `ValueError`."""
    for name in names:
        if wrong := wrong_share(name, getattr(config, name)):
            raise ValueError(wrong)


def _shown(value: object) -> str:
    """A value in an error: short, and without running code of its own."""
    if type(value) is int and value.bit_length() > _SHOWN_BITS_MAX:
        return f"one of {value.bit_length():,} bits"
    return f"{value!r:.80}" if type(value) in _SHOWN else f"a {type(value).__name__}"
