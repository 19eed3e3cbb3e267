"""A whole server whose log and jobs are in PostgreSQL, and whose sessions are ended under load."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fairway.client import Client
from fairway.errors import FairwayError
from tests.support import jobs_served
from tests.support.postgres import PostgresServer
from tests.support.server import server_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Campaign

A_ROUND = 10
END = """
select count(pg_terminate_backend(pid)) from pg_stat_activity
where backend_type = 'client backend' and pid <> pg_backend_pid()
"""


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    """One of its own: all its sessions are ended."""
    with PostgresServer() as server:
        yield server


def test_a_server_outlives_the_end_of_its_sessions_under_load(
    database: PostgresServer, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the log, of the jobs and of the heartbeat. What was answered is there, and the same
    process goes on answering."""
    rounds = campaign.rounds(share=4, full=60)
    place: Any = database.url()
    monkeypatch.setenv(jobs_served.PLACE, "overruled")
    with server_process(place, f"{jobs_served.__name__}:app") as process:
        appended, enqueued = Load(process.port, append), Load(process.port, enqueue)
        for load in (appended, enqueued):
            load.start()
        ended = 0
        try:
            with psycopg.connect(database.url(), autocommit=True) as hand:
                for _ in range(rounds):
                    for load in (appended, enqueued):
                        load.wait_more(A_ROUND)
                    row = hand.execute(END).fetchone()
                    assert row is not None
                    ended += row[0]
                for load in (appended, enqueued):
                    load.wait_more(A_ROUND)
        finally:
            for load in (appended, enqueued):
                load.stop()
        assert not process.ended, process.errors
        assert ended >= rounds
        campaign.tally["sessions ended"] += ended
        with Client(f"http://127.0.0.1:{process.port}") as client:
            kept = [record.data for record in client.topic("kept").read()]
            assert set(appended.answered) <= set(kept)
            for number, id in enqueued.answered.items():
                assert client.jobs.wait(id) == number + 1


def append(client: Client, number: int) -> int:
    return client.topic("kept").append(number).last_seq


def enqueue(client: Client, number: int) -> int:
    return client.jobs.enqueue("add", {"a": number}).id


class Load(threading.Thread):
    """Calls one after the other, as fast as they are answered; one that fails is made again."""

    def __init__(self, port: int, call: Callable[[Client, int], int]) -> None:
        super().__init__(daemon=True)
        self._url = f"http://127.0.0.1:{port}"
        self._call = call
        self._changed = threading.Condition()
        self._stopped = False
        self.answered: dict[int, int] = {}

    def run(self) -> None:
        with Client(self._url) as client:
            while not self._stopped:
                number = len(self.answered)
                try:
                    answer = self._call(client, number)
                except FairwayError:
                    continue
                with self._changed:
                    self.answered[number] = answer
                    self._changed.notify_all()

    def wait_more(self, count: int) -> None:
        with self._changed:
            target = len(self.answered) + count
            assert self._changed.wait_for(lambda: len(self.answered) >= target, timeout=60)

    def stop(self) -> None:
        self._stopped = True
        self.join(60)
