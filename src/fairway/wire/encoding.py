"""What users give, as JSON. What that has no number for is refused, and not written as null."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import msgspec

from fairway.errors import InvalidRequest

NOT_JSON: Final = (TypeError, ValueError, OverflowError, RecursionError)
"""What `encode` raises."""

_NULL: Final = b"null"
_encode: Final = msgspec.json.Encoder().encode
_pack: Final = msgspec.msgpack.Encoder().encode
# A double whose exponent is all ones. Seldom it is something else, and never is one missed.
_find_odd: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]").search


def encode(value: Any) -> bytes:
    """`value` as JSON. Raises `ValueError` for `nan` and `inf`, else as msgspec does."""
    encoded = _encode(value)
    check_numbers(encoded, value)
    return encoded


def encode_given(value: Any, what: str) -> bytes:
    """The same for what a caller gave. Raises `InvalidRequest`, which says what that is."""
    try:
        return encode(value)
    except NOT_JSON as error:
        raise InvalidRequest(f"{what} is not JSON: {error}") from None


def check_numbers(encoded: bytes, value: Any) -> None:
    """Raise `ValueError` if JSON has no number for one in `value`, which was `encoded` by msgspec.

    Nearly always the first look is all: it would be null there.
    """
    if encoded.find(_NULL) < 0:  # `in` asks first whether that is a number: twice as slow
        return
    try:
        odd = _find_odd(_pack(value)) is not None  # far cheaper than to look at each of them
    except OverflowError:  # an integer of more than 64 bits, which only JSON has
        odd = True
    if odd:
        _check(msgspec.to_builtins(value, enc_hook=_raw))


def _raw(value: Any) -> None:
    """What `to_builtins` does not know of all that can be encoded: `msgspec.Raw`, JSON already."""


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
