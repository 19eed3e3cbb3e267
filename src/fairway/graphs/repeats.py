"""By which keys a source recognises repeats, and how many of them it remembers. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable


KEY_BYTES_MAX: Final = 65_536
"""Of a key that is kept in a journal, where the last 10,000 of a source stand in each snapshot."""
NUMBER_BYTES: Final = 9


class Repeats:
    """The keys that were met last. One that is met again counts as met now."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: OrderedDict[Any, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def met(self, keys: tuple[Any, ...]) -> bool:
        """Whether what has these keys is a repeat. What has none never is."""
        if not keys or keys[0] not in self._keys:
            return False
        self._keys.move_to_end(keys[0])
        return True

    def remember(self, keys: Iterable[Any]) -> None:
        for key in keys:
            self._keys[key] = None
            if len(self._keys) > self._most:
                self._keys.popitem(last=False)

    def forget(self, keys: Iterable[Any]) -> None:
        """What had these was not used: whoever tries again brings no repeat."""
        for key in keys:
            self._keys.pop(key, None)


def lasting(key: Any) -> Any:
    """A key that is the same when it comes back from the journal.

    Raises what the encoder does (`TypeError`, `OverflowError`, `UnicodeEncodeError`), or
    `ValueError`, if the journal could not hold it.
    """
    kind = type(key)
    if kind is int:
        if -(2**63) <= key < 2**64:
            return key
        key = f"int {key:x}".encode()  # such as a UUID; the encoder has no number for it
    elif kind is str:
        if not key.isascii():
            key.encode()  # or it could not be written
    elif kind in _LASTING:
        return key
    else:
        key = _encode(key)
    if len(key) > KEY_BYTES_MAX:
        raise ValueError(f"its key has {len(key):,} bytes, and {KEY_BYTES_MAX:,} are kept")
    return key


def size_of(keys: Iterable[Any]) -> int:
    """The bytes of keys, as they count."""
    return sum([len(key) if isinstance(key, str | bytes) else NUMBER_BYTES for key in keys])


def hashable(key: Any) -> Any:
    """A key of lists as one of tuples."""
    return tuple(map(hashable, key)) if isinstance(key, list | tuple) else key


_LASTING: Final = frozenset({bool, float, type(None)})
_encode = msgspec.msgpack.Encoder(order="deterministic").encode
