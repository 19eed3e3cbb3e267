"""A process that owns the PostgreSQL log and does what it is told, a line at a time.

    python postgres_process.py URL SCHEMA LEASE_TTL_NS

`write KEY` writes one synced entry and answers with the outcome; after `pause` the next commit says
so and waits for a line before it is sent; `flood` writes unsynced entries until it is killed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fairway.errors import FairwayError
from fairway.storage.wal import Entry, Operation
from fairway.storage.wals.postgres import PostgresWal

if TYPE_CHECKING:
    from fairway.storage.wal import Failures

PARTITIONS = (1, 2)


def say(word: object) -> None:
    print(word, flush=True)


def main(url: str, schema: str, lease_ttl_ns: str) -> None:
    pausing = False

    def before(name: str) -> None:
        nonlocal pausing
        if name == "commit" and pausing:
            pausing = False
            say("at commit")
            sys.stdin.readline()

    wal = PostgresWal(
        url,
        schema=schema,
        lease_ttl_ns=int(lease_ttl_ns),
        connect_pause_ns=1_000_000,
        before_statement=before,
    )
    tails = wal.open()
    say(f"owner {wal.epoch}")
    key = max((tail.last_key for tail in tails.values()), default=0)
    for line in iter(sys.stdin.readline, ""):
        command, *arguments = line.split()
        if command == "write":
            say(outcome(wal, int(arguments[0]), sync=True))
        elif command == "pause":
            pausing = True
            say("pausing")
        elif command == "renew":
            try:
                wal.renew()
                say("ok")
            except FairwayError as error:
                say(type(error).__name__)
        elif command == "flood":
            while outcome(wal, key + 1, sync=False) == "ok":
                key += 1
                say(key)
    wal.close()


def outcome(wal: PostgresWal, key: int, *, sync: bool) -> str:
    operation = Operation(entries=[Entry(key, b"%d" % key)])
    failures: Failures = wal.write({number: [operation] for number in PARTITIONS}, sync=sync)
    kinds = {type(failures.get(number)).__name__ for number in PARTITIONS}
    return "ok" if not failures else "+".join(sorted(kinds))


if __name__ == "__main__":
    main(*sys.argv[1:])
