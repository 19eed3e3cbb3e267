"""One owner per directory, decided by the kernel; the pid is only told."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest

from fairway.errors import AlreadyOwned
from fairway.storage.owner import LOCK_NAME, DirectoryLock

if TYPE_CHECKING:
    from pathlib import Path


def test_a_second_owner_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path), DirectoryLock(tmp_path)
    first.acquire()
    with pytest.raises(AlreadyOwned, match=f"process {os.getpid()}") as refused:
        second.acquire()
    assert (refused.value.place, refused.value.pid) == (str(tmp_path), os.getpid())
    first.release()
    second.acquire()
    second.release()


def test_the_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "inside"
    lock = DirectoryLock(place)
    lock.acquire()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert stat.S_IMODE((place / LOCK_NAME).stat().st_mode) == 0o600
    lock.release()


def test_the_file_of_a_dead_owner_means_nothing(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_text("1\n")
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    assert (tmp_path / LOCK_NAME).read_text() == f"{os.getpid()}\n"
    lock.release()
    assert (tmp_path / LOCK_NAME).exists()  # removing it would race the next owner


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"-5\n", b"12 34", b"9" * 100])
def test_an_unreadable_pid_is_not_guessed(content: bytes, tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    (tmp_path / LOCK_NAME).write_bytes(content)
    with pytest.raises(AlreadyOwned) as refused:
        DirectoryLock(tmp_path).acquire()
    assert refused.value.pid is None or content.startswith(str(refused.value.pid).encode())
    lock.release()


def test_a_full_disk_does_not_keep_the_owner_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    lock = DirectoryLock(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        lock.acquire()
    with pytest.raises(AlreadyOwned) as refused:
        DirectoryLock(tmp_path).acquire()
    assert refused.value.pid is None
    lock.release()


def test_releasing_twice_is_fine_and_a_refused_one_holds_nothing(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path), DirectoryLock(tmp_path)
    first.acquire()
    with pytest.raises(AlreadyOwned):
        second.acquire()
    second.release()
    with pytest.raises(AlreadyOwned):
        DirectoryLock(tmp_path).acquire()
    first.release()
    first.release()
    first.acquire()
    first.release()


def test_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    holder = DirectoryLock(tmp_path)
    holder.acquire()
    before = len(os.listdir("/dev/fd"))
    for _ in range(10):
        with pytest.raises(AlreadyOwned):
            DirectoryLock(tmp_path).acquire()
    assert len(os.listdir("/dev/fd")) == before
    holder.release()
