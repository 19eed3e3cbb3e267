"""The JSON that jobs are kept in. What it has no number for is refused, and not written as null."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

_NULL: Final = b"null"


def encode(value: Any) -> bytes:
    """`value` as JSON. Raises `ValueError` for `nan` and `inf`, else as msgspec does."""
    encoded = msgspec.json.encode(value)
    if _NULL in encoded:  # which is what they would be written as
        check_numbers(value)
    return encoded


def check_numbers(value: Any) -> None:
    """Raise `ValueError` if JSON has no number for one in `value`."""
    if not isinstance(value, msgspec.Raw):  # that is JSON already
        _check(msgspec.to_builtins(value))


def _check(value: Any) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON has no number {value}")
    elif isinstance(value, dict):
        for each in value.values():
            _check(each)
    elif isinstance(value, list | tuple):
        for each in value:
            _check(each)
