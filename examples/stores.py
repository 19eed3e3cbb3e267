"""The same code on every store; only the name changes.

Run it with `python examples/stores.py`. RocksDB takes part if `rocksdict` is installed.
"""

import asyncio
import tempfile
from pathlib import Path

from fairway import Log, wal_at
from fairway.errors import InvalidConfig
from fairway.storage.wal import Wal
from fairway.storage.wals.sqlite import SqliteWal


# --8<-- [start:use]
async def say_hello(wal: Wal) -> list[bytes]:
    async with Log(wal) as log:
        await log.append(1, b"hello")
        return [entry.payload for entry in await log.read(1)]


# --8<-- [end:use]


def stores(directory: Path) -> dict[str, Wal]:
    # --8<-- [start:names]
    chosen = {
        "SQLite": wal_at(directory / "log"),  # or wal_at("sqlite:…")
        "memory": wal_at("memory:"),
    }
    # --8<-- [end:names]
    # --8<-- [start:shards]
    chosen["SQLite in four files"] = SqliteWal(directory / "sharded", shards=4)
    # --8<-- [end:shards]
    try:
        chosen["RocksDB"] = wal_at(f"rocksdb:{directory / 'rocksdb'}")
    except InvalidConfig as missing:
        print(f"without RocksDB: {missing}")
    return chosen


def main(directory: Path) -> None:
    for name, wal in stores(directory).items():
        assert asyncio.run(say_hello(wal)) == [b"hello"]
        print(f"{name}: hello")
    try:
        asyncio.run(say_hello(SqliteWal(directory / "sharded", shards=2)))
    except InvalidConfig as refused:
        print(str(refused).replace(str(directory), "…"))


with tempfile.TemporaryDirectory() as directory:
    main(Path(directory))
