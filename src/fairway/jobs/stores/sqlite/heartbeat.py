"""The connection that keeps one worker alive, for a thread that does nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairway.jobs.job import LeaseRenewal
from fairway.jobs.stores.sqlite.connections import answering, connect
from fairway.jobs.stores.sqlite.mark import COUNT
from fairway.jobs.stores.sqlite.ready_lines import Names
from fairway.jobs.stores.sqlite.transaction import REASON, Transaction
from fairway.jobs.stores.sqlite.writer_queue import WriterQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

    import apsw

    from fairway.runtime.clock import Clock

LEASED = f"""
SELECT job, token, claimed_ns, {REASON}, partition_key FROM lease JOIN job ON id = job
WHERE worker = ? ORDER BY job
"""


class SqliteLeaseRenewer:
    """See `LeaseRenewer`. A renewal waits for whoever writes, as long as any write would."""

    def __init__(self, place: str, clock: Clock) -> None:
        self._place = place
        self._clock = clock
        self._connection: apsw.Connection | None = None
        self._writer_queue = WriterQueue(place)

    def renew(
        self, worker: int, held: Mapping[int, int], ttl_ns: int, grace_ns: int
    ) -> LeaseRenewal:
        known = dict(held)  # before we look: what is claimed meanwhile is not missing
        with answering(self._place):
            if self._connection is None:
                # Made in the thread that may wait for it. Not synced: whoever could take the jobs
                # after a power cut has gone as well.
                self._connection = connect(self._place)
                self._connection.pragma("synchronous", "NORMAL")
            connection = self._connection
            self._writer_queue.begin(connection)
            try:
                transaction = Transaction(connection, Names(connection), self._clock.wall_ns())
                answer = _renew(transaction, worker, held, known, ttl_ns, grace_ns)
                connection.execute(COUNT)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return answer

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close(force=True)
            self._connection = None
        self._writer_queue.close()


def _renew(
    transaction: Transaction,
    worker: int,
    held: Mapping[int, int],
    known: Mapping[int, int],
    ttl_ns: int,
    grace_ns: int,
) -> LeaseRenewal:
    if not transaction.alive(worker):
        return LeaseRenewal(alive=False)
    transaction.connection.execute(
        "UPDATE worker SET until_ns = max(until_ns, ?), beat_ns = ? WHERE id = ?",
        (transaction.now_ns + ttl_ns, transaction.now_ns, worker),
    )
    cancel: dict[int, str] = {}
    released = 0
    rows = transaction.connection.execute(LEASED, (worker,)).fetchall()
    for id, token, claimed_ns, cancelling, key in rows:
        if held.get(id) != token and claimed_ns + grace_ns <= transaction.now_ns:
            transaction.let_go([id])
            transaction.give_back(id, key)
            released += 1
        elif cancelling is not None:
            cancel[id] = cancelling
    have = {(id, token) for id, token, *_ in rows}
    lost = {id: token for id, token in known.items() if (id, token) not in have}
    return LeaseRenewal(alive=True, cancel=cancel, released=released, lost=lost)
