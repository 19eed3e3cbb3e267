"""What users give, as JSON. What that has no number for is refused, and not written as null."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import Any, Final

import msgspec

from fairway.errors import InvalidRequest

NOT_JSON: Final = (TypeError, ValueError, OverflowError, RecursionError)
"""What `encode` raises."""

_NULL: Final = b"null"
_encode: Final = msgspec.json.Encoder().encode
_encode_any: Final = msgspec.json.Encoder(enc_hook=repr).encode
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
        _check(msgspec.to_builtins(value, enc_hook=_unknown))


def check_finite(value: Any) -> None:
    """Raise `ValueError` if `nan` or `inf` is in `value`, which was not encoded.

    It may be anything: objects that msgspec does not know are not looked into.
    """
    try:
        odd = _find_odd(_pack_known(value)) is not None
    except OverflowError:
        odd = True
    except Exception:  # it is nested too deeply, or in itself: nobody could encode it
        return
    if odd:
        with suppress(RecursionError):
            _check(msgspec.to_builtins(value, enc_hook=_unknown))


def encode_shown(value: Any) -> bytes:
    """`value` as JSON for somebody to look at, whatever it is: `nan` and `inf` are text there, and
    what has no JSON is what Python shows of it. Raises what `repr` of something in it does."""
    encoded = _encode_any(value)
    try:
        check_numbers(encoded, value)
    except NOT_JSON:
        return _encode_any(_shown(msgspec.to_builtins(value, str_keys=True, enc_hook=_plain)))
    return encoded


def _shown(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _shown(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    return value


def _plain(value: Any) -> Any:
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else repr(value)


def _unknown(value: Any) -> None:
    """What cannot be looked into: an object of the user's, or `msgspec.Raw`, JSON already."""


_pack_known: Final = msgspec.msgpack.Encoder(enc_hook=_unknown).encode


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
