"""Whose log a directory holds: two stores in one would each begin empty beside the other's data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fairway.errors import InvalidConfig

if TYPE_CHECKING:
    from pathlib import Path

FILES: Final = {
    "sqlite": ("SQLite", "shard-*-of-*.*"),
    "rocksdb": ("RocksDB", "rocksdb"),
}
"""By how a store is named in a setting: what it is called, and what its files are."""


def holds_a_log(directory: Path) -> bool:
    """Whether there is anything of a log in the directory, of whichever store."""
    return any(next(directory.glob(pattern), None) for _, pattern in FILES.values())


def refuse_other_store(directory: Path, scheme: str) -> None:
    """Raises `InvalidConfig` if the directory holds the log of another store than `scheme`."""
    for other, (name, pattern) in FILES.items():
        found = next(directory.glob(pattern), None) if other != scheme else None
        if found is not None:
            raise InvalidConfig(
                f"{directory} holds a {name} log ({found.name}), and was opened as"
                f" {FILES[scheme][0]}: open it as {other}:{directory}, or name another directory"
            )
