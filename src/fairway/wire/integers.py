"""Integers as JSON has them: `1.0` and `1e3` are the numbers 1 and 1000.

msgspec takes a number with a fraction for a float. A message is rewritten where its type says that
an integer is due, and nowhere else: what is kept raw stays as it was sent.
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw, inspect

_DIGITS_MAX: Final = 40
_encode: Final = msgspec.json.Encoder().encode
_object: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_array: Final = msgspec.json.Decoder(list[Raw]).decode


def with_integers(body: bytes, type: Any) -> bytes:
    """`body`, a message of `type`, with its integers written as such. Raises `DecodeError`."""
    return bytes(_rewritten(Raw(body.strip()), _info(type)))


@lru_cache(maxsize=256)
def _info(type: Any) -> inspect.Type:
    return inspect.type_info(type)


def _rewritten(raw: Raw, kind: inspect.Type) -> Raw:
    text = bytes(raw)
    first = text[:1]
    for member in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
        if isinstance(member, inspect.IntType) and first in b"-0123456789":
            return _integer(text)
        if first == b"{" and isinstance(member, inspect.StructType):
            fields = {one.encode_name: one.type for one in member.fields}
            found = _object(text)
            return _built(
                {k: _rewritten(v, fields[k]) if k in fields else v for k, v in found.items()}
            )
        if first == b"{" and isinstance(member, inspect.DictType):
            return _built({k: _rewritten(v, member.value_type) for k, v in _object(text).items()})
        if first == b"[" and isinstance(member, inspect.ListType):
            return _built([_rewritten(one, member.item_type) for one in _array(text)])
    return raw


def _built(value: Any) -> Raw:
    return Raw(_encode(value))


def _integer(text: bytes) -> Raw:
    if len(text) > _DIGITS_MAX:
        return Raw(text)
    number = Decimal(text.decode())
    if number.adjusted() > _DIGITS_MAX or number != number.to_integral_value():
        return Raw(text)
    return Raw(b"%d" % int(number))
