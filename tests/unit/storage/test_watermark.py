"""The watermark: a number that only rises, and that damage cannot raise."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from fairway.errors import Corrupt
from fairway.storage.watermark import Watermark

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shard.mark"


def created(path: Path, *numbers: int) -> Watermark:
    mark = Watermark(path)
    mark.create()
    for number in numbers:
        mark.advance(number)
    mark.close()
    return mark


def read(path: Path) -> int:
    mark = Watermark(path)
    try:
        return mark.open()
    finally:
        mark.close()


def test_it_starts_at_zero_and_remembers_the_highest(path: Path) -> None:
    created(path)
    assert read(path) == 0
    mark = Watermark(path)
    mark.open()
    for number in (1, 2, 5, 4, 5, 9, 3):
        mark.advance(number)
    assert mark.value == 9
    mark.close()
    assert read(path) == 9


def test_numbers_of_one_parity_still_take_turns(path: Path) -> None:
    """Unsynced groups in between make the numbers jump; the older slot is the one before."""
    created(path, 2, 4, 6, 8)
    for damaged, expected in ((0, 8), (1, 6)):
        raw = bytearray(path.read_bytes())
        raw[damaged * 512 + 9] ^= 1
        path.with_name("copy").write_bytes(raw)
        assert read(path.with_name("copy")) == expected


def test_the_turn_goes_on_after_a_restart(path: Path) -> None:
    created(path, 1, 2, 3)
    for number in (4, 5, 6):
        mark = Watermark(path)
        mark.open()
        mark.advance(number)
        mark.close()
        raw = path.read_bytes()
        assert sorted(raw[slot * 512 + 8] for slot in range(2)) == [number - 1, number]


def test_a_torn_write_falls_back_by_one_step(path: Path) -> None:
    created(path, 7, 8)
    for length in range(20):
        torn = bytearray(path.read_bytes())
        torn[:length] = os.urandom(length)  # where 9 would go
        path.with_name("torn").write_bytes(torn)
        assert read(path.with_name("torn")) == 8


@pytest.mark.parametrize("bit", range(20 * 8))
def test_no_flipped_bit_raises_it(bit: int, path: Path) -> None:
    """A number that is too high would refuse a healthy log; too low by one step is forgiven."""
    created(path, 10, 11)
    for slot in range(2):
        raw = bytearray(path.read_bytes())
        raw[slot * 512 + bit // 8] ^= 1 << bit % 8
        path.with_name("copy").write_bytes(raw)
        assert read(path.with_name("copy")) in (10, 11)


def test_two_damaged_slots_are_refused(path: Path) -> None:
    created(path, 1, 2)
    raw = bytearray(path.read_bytes())
    raw[0] ^= 1
    raw[512] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Corrupt, match="readable") as refused:
        read(path)
    assert refused.value.place == str(path)


@pytest.mark.parametrize("size", [0, 19])
def test_a_file_cut_short_is_refused(size: int, path: Path) -> None:
    created(path, 1)
    os.truncate(path, size)
    with pytest.raises(Corrupt):
        read(path)


def test_a_missing_file_is_refused(path: Path) -> None:
    with pytest.raises(Corrupt, match="missing"):
        read(path)


def test_a_creation_that_broke_off_can_be_repeated(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At no moment is there a file under the final name that cannot be read."""

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    for name in ("pwrite", "fsync", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, killed)
            with pytest.raises(Killed):
                Watermark(path).create()
        assert not path.exists()
    path.with_name(path.name + ".new").write_bytes(b"half")
    created(path, 3)
    assert read(path) == 3
    assert sorted(os.listdir(path.parent)) == [path.name]


def test_the_note_is_kept_beside_it(path: Path) -> None:
    mark = created(path, 5)
    assert mark.note is None
    mark.open()
    for note in (1, 2**64 - 1, 7):
        mark.remember(note)
        mark.advance(mark.value + 1)
    mark.close()
    again = Watermark(path)
    assert (again.open(), again.note) == (8, 7)
    again.close()
    raw = bytearray(path.read_bytes())
    raw[2 * 512 + 10] ^= 1
    path.write_bytes(raw)
    assert (again.open(), again.note) == (8, None)
    again.close()


def test_closing_twice_is_fine(path: Path) -> None:
    mark = created(path)
    mark.close()
    mark.close()


# --- shared by several processes


def shared(path: Path) -> Watermark:
    mark = Watermark(path)
    mark.share()
    return mark


def test_a_shared_mark_is_made_by_whoever_comes_first_and_read_without_being_opened(
    path: Path,
) -> None:
    assert Watermark(path).peek() == 0
    assert not path.exists()
    first, second = shared(path), shared(path)
    assert Watermark(path).peek() == 0
    first.advance(1)
    second.advance(2)
    first.advance(3)
    assert Watermark(path).peek() == 3
    first.close()
    second.close()
    again = shared(path)
    assert again.value == 3
    again.close()


def test_a_shared_mark_that_is_written_out_of_order_lags_and_never_leads(path: Path) -> None:
    """One who was paused between a commit and the mark writes it when others are far ahead."""
    paused, others = shared(path), shared(path)
    for number in (1, 2, 4, 5, 6):
        others.advance(number)
    paused.advance(3)
    assert Watermark(path).peek() in (5, 6)
    others.advance(7)
    assert Watermark(path).peek() == 7
    paused.close()
    others.close()


@pytest.mark.parametrize("left", [b"", b"fwmark01", bytes(532), b"x" * 2048])
def test_a_shared_mark_that_cannot_be_read_says_nothing_and_is_written_anew(
    path: Path, left: bytes
) -> None:
    path.write_bytes(left)
    assert Watermark(path).peek() == 0
    mark = shared(path)
    mark.advance(5)
    mark.close()
    assert Watermark(path).peek() == 5
