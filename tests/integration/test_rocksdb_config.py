"""The file in which rocksdict keeps its settings, and which it writes anew whenever it opens.

Whatever is in it when a store is refused is still in it afterwards: after an exchange of two files
it may be the only copy of a log.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from fairway.errors import Corrupt
from fairway.storage.wal import Entry, Operation
from fairway.storage.wals import rocksdb_config
from fairway.storage.wals.rocksdb import RocksdbWal
from tests.support.fingerprint import fingerprint
from tests.support.log_files import flip_bit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONFIG = "rocksdb/rocksdict-config.json"
KEYS = list(range(1, 30))


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """What is left if the process is killed: everything is in the log file."""
    with closing(RocksdbWal(tmp_path / "live")) as wal:
        wal.open()
        for key in KEYS:
            wal.write({7: [Operation((Entry(key, b"%d" % key),))]}, sync=True)
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
    return tmp_path / "killed"


def log_of(directory: Path) -> Path:
    (found,) = (directory / "rocksdb-log").glob("*.log")
    return found


def keys(directory: Path, *, held: bool = False) -> list[int]:
    with closing(RocksdbWal(directory)) as wal:
        if held:
            wal.open_held()
        else:
            wal.open()
        return [entry.key for entry in wal.read(7)]


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def replace_by_directory(config: Path) -> None:
    config.unlink()
    config.mkdir()
    (config / "inside").write_text("kept")


ODDITIES: dict[str, Callable[[Path], Any]] = {
    "as rocksdict writes it": lambda config: None,
    "missing": lambda config: config.unlink(),
    "empty": lambda config: config.write_bytes(b""),
    "with white space": lambda config: config.write_bytes(config.read_bytes() + b" \n"),
    "something else": lambda config: config.write_bytes(b"\0\xffsomething else" * 1000),
    "a link to nothing": lambda config: (config.unlink(), config.symlink_to("nothing")),
}


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("name", ["log", "CURRENT", "MANIFEST"])
def test_a_config_that_changed_places_with_another_file_is_not_written_over(
    name: str, held: bool, killed: Path
) -> None:
    config = killed / CONFIG
    other = log_of(killed) if name == "log" else next((killed / "rocksdb").glob(f"{name}*"))
    exchange(config, other)
    before = fingerprint(killed)
    for _ in range(2):
        with pytest.raises(Corrupt):
            keys(killed, held=held)
        assert fingerprint(killed) == before
    exchange(config, other)
    assert keys(killed) == KEYS, "it was all there"


@pytest.mark.parametrize("oddity", [*ODDITIES, "a directory"])
def test_a_refused_store_leaves_its_config_as_it_was(oddity: str, killed: Path) -> None:
    sound = log_of(killed).read_bytes()
    flip_bit(log_of(killed), 8 * (len(sound) // 2))
    {**ODDITIES, "a directory": replace_by_directory}[oddity](killed / CONFIG)
    before = fingerprint(killed)
    with pytest.raises(Corrupt):
        keys(killed)
    assert fingerprint(killed) == before
    assert (killed / CONFIG).is_symlink() == (oddity == "a link to nothing")


@pytest.mark.parametrize("oddity", ODDITIES)
def test_a_sound_store_is_opened_whatever_its_config_holds(oddity: str, killed: Path) -> None:
    ODDITIES[oddity](killed / CONFIG)
    before = fingerprint(killed)
    assert keys(killed, held=True) == KEYS
    assert fingerprint(killed) == before
    assert keys(killed) == KEYS
    assert (killed / CONFIG).read_bytes() == rocksdb_config.WRITTEN


def test_a_start_that_is_killed_while_it_keeps_the_config_loses_nothing(killed: Path) -> None:
    config, log = killed / CONFIG, log_of(killed)
    exchange(config, log)
    before = fingerprint(killed)
    twice = killed.with_name("twice")
    with rocksdb_config.kept(killed / "rocksdb"):
        config.write_bytes(rocksdb_config.WRITTEN)
        shutil.copytree(killed, twice)
    assert fingerprint(killed) == before
    assert fingerprint(twice) != before
    with pytest.raises(Corrupt):
        keys(twice)
    assert fingerprint(twice) == before
