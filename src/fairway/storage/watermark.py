"""How far the store was ever synced, kept beside the data so that a shortened store is noticed.

SQLite drops everything after a damaged frame of its write-ahead file without a word, and RocksDB
forgives a damaged tail. The watermark remembers the number of the last group that was synced; a
store that ends before it has lost acknowledged data and must be refused.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING
from zlib import crc32

from fairway.errors import Corrupt
from fairway.storage.sync import sync_directory

if TYPE_CHECKING:
    from pathlib import Path

_SLOT = struct.Struct("<8sQI")  # magic, group number, checksum of both
_MAGIC = b"fwmark01"
_SLOT_BYTES = 512  # one sector each, so that a torn write cannot hurt both
_NOTE_SLOT = 2
_BOOT = struct.Struct("<8s16sI")  # magic, boot id, checksum of both
_BOOT_MAGIC = b"fwboot01"
_BOOT_SLOT = 3


class Watermark:
    """A number that only rises, in two slots written in turn, and a note beside it.

    It is written after the sync it speaks of and is not synced itself: after power loss it may be
    older than the data, never newer. One damaged slot is forgiven (the other is one step older);
    two are not. The note is the store's own: any number up to 64 bits, None if there is none. The
    boot id says in which run of the system the store was last written: see `runtime.boot`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._value = 0
        self._next = 0  # the slot that is written next: the one with the older number
        self._note: int | None = None
        self._boot: bytes | None = None

    @property
    def boot(self) -> bytes | None:
        """The boot id last remembered, None if there is none or it is damaged."""
        return self._boot

    @property
    def value(self) -> int:
        """The highest number known to be synced."""
        return self._value

    @property
    def note(self) -> int | None:
        """What was last noted, None if nothing was or it is damaged."""
        return self._note

    def create(self) -> None:
        """Make a new file at zero and sync it, directory included. Kill it at any point: the file
        is absent or whole."""
        assert not self._path.exists(), "there is a watermark already"
        blank = b"".join(_slot(0).ljust(_SLOT_BYTES, b"\0") for _ in range(2))
        draft = self._path.with_name(self._path.name + ".new")
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, blank.ljust(3 * _SLOT_BYTES, b"\0"), 0)
            os.fsync(fd)
            os.rename(draft, self._path)
            sync_directory(self._path.parent)
        except BaseException:
            os.close(fd)
            raise
        self._fd, self._value, self._next = fd, 0, 0

    def open(self) -> int:
        """Read the number back; `Corrupt` if the file is missing or neither slot is sound."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Corrupt("the watermark is missing", place=str(self._path)) from None
        found = [_parse(os.pread(fd, _SLOT.size, slot * _SLOT_BYTES)) for slot in range(3)]
        self._boot = _parse_boot(os.pread(fd, _BOOT.size, _BOOT_SLOT * _SLOT_BYTES))
        self._note = found.pop()
        sound = [number for number in found if number is not None]
        if not sound:
            os.close(fd)
            raise Corrupt("neither slot of the watermark is readable", place=str(self._path))
        self._fd, self._value = fd, max(sound)
        self._next = 1 - found.index(self._value)
        return self._value

    def share(self) -> None:
        """Open it as one of several processes that advance one mark, and make it if it is not
        there.

        They overwrite each other's slots, so it may fall behind and never runs ahead. Whatever
        cannot be read counts as nothing: two who wrote one slot at once are no damage.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self._path, flags, 0o644)  # as a file of SQLite's: whoever reads one may both
        found = [_parse(os.pread(fd, _SLOT.size, slot * _SLOT_BYTES)) or 0 for slot in range(2)]
        self._fd, self._value = fd, max(found)
        self._next = 1 - found.index(self._value)

    def peek(self) -> int:
        """The number of a shared mark, 0 if there is none to be read. Changes nothing."""
        try:
            raw = self._path.read_bytes()
        except OSError:
            return 0
        slots = (raw[slot * _SLOT_BYTES :][: _SLOT.size] for slot in range(2))
        return max(_parse(slot) or 0 for slot in slots)

    def advance(self, number: int) -> None:
        """Record that everything up to group `number` is synced."""
        if number <= self._value:
            return
        assert self._fd is not None, "not open"
        os.pwrite(self._fd, _slot(number), self._next * _SLOT_BYTES)
        self._value = number
        self._next = 1 - self._next

    def remember(self, note: int) -> None:
        """Replace the note."""
        if note == self._note:
            return
        assert self._fd is not None, "not open"
        os.pwrite(self._fd, _slot(note), _NOTE_SLOT * _SLOT_BYTES)
        self._note = note

    def remember_boot(self, boot: bytes | None) -> None:
        """Replace the boot id; None if it is not known, or what was not synced may be gone."""
        if boot == self._boot or self._fd is None:
            return
        raw = bytes(_BOOT.size)
        if boot is not None:
            raw = _BOOT.pack(_BOOT_MAGIC, boot, crc32(_BOOT_MAGIC + boot))
        with suppress(OSError):
            os.pwrite(self._fd, raw, _BOOT_SLOT * _SLOT_BYTES)
            self._boot = boot

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _slot(number: int) -> bytes:
    body = _MAGIC + number.to_bytes(8, "little")
    return _SLOT.pack(_MAGIC, number, crc32(body))


def _parse(raw: bytes) -> int | None:
    if len(raw) != _SLOT.size:
        return None
    magic, number, check = _SLOT.unpack(raw)
    if magic != _MAGIC or crc32(raw[:16]) != check:
        return None
    return int(number)


def _parse_boot(raw: bytes) -> bytes | None:
    if len(raw) != _BOOT.size:
        return None
    magic, boot, check = _BOOT.unpack(raw)
    if magic != _BOOT_MAGIC or crc32(raw[:24]) != check:
        return None
    return bytes(boot)
