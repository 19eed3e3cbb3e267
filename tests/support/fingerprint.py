"""What is in the files of a directory, to show that a refused start changed none of them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fairway.errors import Corrupt, InvalidConfig, UnknownFormat

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


def fingerprint(directory: Path) -> dict[str, bytes]:
    """Every file below it, byte for byte: but for locks, SQLite's shared memory (which is made
    of the others) and RocksDB's own log of what it does."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.name == "owner.lock" or path.name.endswith(("-shm", "-turn")):
            continue
        if path.name.startswith("LOG"):
            continue
        with suppress(FileNotFoundError):
            found[str(path.relative_to(directory))] = path.read_bytes() if path.is_file() else b""
    return found


def watch_refusals(monkeypatch: pytest.MonkeyPatch, *kinds: type[Any]) -> None:
    """From now on, whichever log of these kinds refuses to open must have left its files alone."""
    for kind in kinds:
        monkeypatch.setattr(kind, "open", _watched(kind.open))


def _watched(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def watched(wal: Any) -> Any:
        before = fingerprint(wal._directory)
        try:
            return original(wal)
        except (Corrupt, UnknownFormat, InvalidConfig) as refusal:
            after = fingerprint(wal._directory)
            changed = [name for name in {*before, *after} if before.get(name) != after.get(name)]
            if changed:
                raise AssertionError(f"a refused start changed {sorted(changed)}") from refusal
            raise

    return watched
