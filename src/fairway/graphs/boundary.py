"""What comes from a source, and how it is kept: a typed value and where it stood.

A value is decoded once, where it enters, and stays an object inside; it is encoded again only for
the journal and the wire. What a journal holds carries the version it was written under, so that a
type may change while its old values are still kept.
"""

from __future__ import annotations

from sys import getsizeof
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from fairway.errors import InvalidConfig, InvalidRequest
from fairway.graphs.finite import finite_check
from fairway.runtime.usercode import reraise_interrupt, without_task
from fairway.runtime.words import named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Marks: TypeAlias = "dict[str, int]"
"""How far a source was consumed: the last offset by stream.

A source may be fed by several streams: the partitions of a broker, the incarnation of a topic, and
`~push` for what was pushed. Offsets rise within each.
"""

PUSH = "~push"
"""The stream of what was pushed."""
WHOLE = b""
"""The data of a state that keeps everything: all that was written to it, up to its mark. Each of
these values is in a record of its own already."""


_Class = type


class Boundary(NamedTuple):
    """One typed value of a source, and how far the source is consumed once this is."""

    value: Any
    marks: Marks = {}  # noqa: RUF012  (never changed: whoever adds to marks makes new ones)
    """Empty if it cannot be read again: then nothing is remembered of where it came from."""
    keys: tuple[Any, ...] = ()
    """What tells it from its repeats, if the source has a way to say."""


class Stored(NamedTuple):
    """An encoded value and the version of its type that it was written under."""

    version: int
    data: bytes


class Schema:
    """The type of a source's values: from bytes and back, and from older versions to this one.

    `upgrades[n]` takes the plain data (dicts, lists) of a value written under version n and gives
    that of version n + 1.
    """

    __slots__ = ("_json", "_pack", "cls", "finite", "type", "upgrades", "version")

    def __init__(
        self,
        type: Any,
        *,
        version: int = 1,
        upgrades: Mapping[int, Callable[[Any], Any]] | None = None,
    ) -> None:
        if version < 1:
            raise InvalidConfig("versions of a boundary count from 1")
        self.type = type
        # Any is a class as well, and the only one that nothing is one of.
        self.cls = type if isinstance(type, _Class) and type is not Any else None
        """The type, if it is a class: what is one of it fits, and is not looked into."""
        self.version = version
        self.upgrades = dict(upgrades or {})
        for step in self.upgrades:
            if not 1 <= step < version:
                raise InvalidConfig(
                    f"an upgrade from version {step} leads nowhere: the type is at {version}"
                )
        try:
            self._json: msgspec.json.Decoder[Any] = msgspec.json.Decoder(type)
            self._pack: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(type)
        except TypeError as error:
            raise InvalidConfig(f"{type!r} cannot be a boundary: {error}") from None
        self.finite = finite_check(type)
        """Raises `ValueError` for a value with `nan` or `inf`; None if the type has no place for
        them. It is for what somebody gives. What is made inside may have them: by a poll, by
        `through`, by a node."""

    def of_json(self, data: bytes) -> Any:
        """A value from JSON, checked. Raises `InvalidRequest` and says where it does not fit."""
        try:
            return self._json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"the boundary does not decode: {error}") from None
        except BaseException as error:  # of the type itself, which may have code of its own
            reraise_interrupt(error)
            raise InvalidRequest(f"the boundary does not decode: {named(error)}") from error

    def of_builtins(self, data: Any) -> Any:
        """A value from dicts and lists, checked in the same way."""
        try:
            return msgspec.convert(data, self.type)
        except (msgspec.ValidationError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"the boundary does not fit: {error}") from None
        except BaseException as error:  # of the type itself, or of what was given
            reraise_interrupt(error)
            raise InvalidRequest(f"the boundary does not fit: {named(error)}") from error

    def fitting(self, value: Any) -> Any:
        """A value as it is if it is one of this type; else from plain data, checked."""
        if self.type is Any:
            return value
        cls = self.cls
        if cls is not None and isinstance(value, cls) and type(value) is not bool:
            return value
        return self.of_builtins(value)

    def store(self, value: Any) -> Stored:
        return Stored(self.version, _encode(value))

    def size_of(self, value: Any) -> int:
        """The bytes that a value takes: encoded; or, if it cannot be, what it says of itself."""
        for size_of in (_encoded_size, getsizeof):
            try:
                return size_of(value)
            except BaseException as error:
                reraise_interrupt(error)
        return 0

    def load(self, stored: Stored) -> Any:
        """A kept value, brought up to this version. Raises `InvalidRequest` if there is no way."""
        version, data = stored
        if version > self.version:
            raise InvalidRequest(
                f"a value of version {version} is kept, and the type is at {self.version}:"
                " newer code wrote it"
            )
        try:
            if version == self.version:
                return self._pack.decode(data)
            return msgspec.convert(self._upgraded(version, _decode(data)), self.type)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise InvalidRequest(f"a kept value does not fit its type: {error}") from None

    def _upgraded(self, version: int, data: Any) -> Any:
        for step in range(version, self.version):
            if step not in self.upgrades:
                raise InvalidRequest(
                    f"a value of version {version} is kept, the type is at {self.version},"
                    f" and there is no upgrade from {step}"
                )
            try:
                data = without_task(self.upgrades[step], data)
            except BaseException as error:
                reraise_interrupt(error)
                raise InvalidRequest(
                    f"the upgrade from version {step} failed: {named(error)}"
                ) from error
        return data


def _encoded_size(value: Any) -> int:
    return len(_encode(value))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
