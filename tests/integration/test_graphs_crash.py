"""kill -9 of a process that runs a checkpointed graph, at random moments, again and again.

The graph reads a topic and Kafka, keeps a sum, and has two effects for each event: a record in
another topic, and a job. Afterwards every event has fired, the sum is exact, each effect is there
once, and each source was seen in order.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psycopg
import pytest

from tests.support.graphs_child import Outcome
from tests.support.kafka_mock import mock_process
from tests.support.pipes import readable
from tests.support.postgres import postgres_server, postgres_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Campaign

ROOT = Path(__file__).parents[2]
PATIENCE_S = 90.0
MESSAGES_A_ROUND = 40
LEASE_MS = 2_000

databases = itertools.count(1)


class GraphProcess:
    """A running `graphs_child`."""

    def __init__(self, place: str, *options: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "tests.support.graphs_child", place, *options],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._buffer = b""

    def line(self, beginning: str, patience_s: float = PATIENCE_S) -> str:
        """The next line that begins so; others are skipped."""
        assert self.child.stdout is not None
        while True:
            while b"\n" in self._buffer:
                line, _, self._buffer = self._buffer.partition(b"\n")
                if line.startswith(beginning.encode()):
                    return line.decode()
            ready = readable(self.child.stdout, patience_s)
            assert ready, f"no line {beginning!r} within {patience_s} s"
            found = os.read(self.child.stdout.fileno(), 1 << 16)
            assert found, f"it ended before it said {beginning!r}"
            self._buffer += found

    def says(self, beginning: str, within_s: float) -> bool:
        with contextlib.suppress(AssertionError):
            self.line(beginning, within_s)
            return True
        return False

    def ask(self, text: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(text.encode() + b"\n")
        self.child.stdin.flush()

    def signal(self, number: int) -> None:
        self.child.send_signal(number)

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def finish(self, messages: int) -> Outcome:
        self.ask(f"finish {messages}")
        found = self.line("outcome").removeprefix("outcome ")
        assert self.child.wait(PATIENCE_S) == 0
        return msgspec.json.decode(found, type=Outcome)


@contextlib.contextmanager
def graph_process(place: str, *options: str) -> Iterator[GraphProcess]:
    made = GraphProcess(place, *options)
    try:
        yield made
    finally:
        made.kill()
        for pipe in (made.child.stdin, made.child.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def check(outcome: Outcome, messages: int) -> None:
    """Everything happened, once, in order."""
    counts = Counter((each.source, each.id) for each in outcome.notes)
    expected = {("numbers", id) for id in range(1, outcome.numbers + 1)}
    expected |= {("ticks", id) for id in range(1, messages + 1)}
    assert set(counts) == expected, sorted(expected ^ set(counts))[:10]
    assert not [each for each, count in counts.items() if count > 1], "an effect happened twice"
    for source in ("numbers", "ticks"):
        ids = [each.id for each in outcome.notes if each.source == source]
        assert ids == sorted(ids), f"{source} was not seen in order"
    assert [each.firing for each in outcome.notes] == list(range(1, len(outcome.notes) + 1))
    running = 0
    for each in outcome.notes:
        running += each.id
        assert each.total == running, f"the sum is wrong at firing {each.firing}"
    assert outcome.total == running
    assert outcome.jobs == {f"{source}-{id}": 1 for source, id in expected}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("store", "window_ms", "full"),
    [("sqlite", 60_000, 30), ("sqlite", 1, 10), ("postgres", 60_000, 10)],
    ids=["within", "after_every_window", "postgres"],
)
def test_no_event_is_lost_and_no_effect_happens_twice(
    campaign: Campaign, tmp_path: Path, store: str, window_ms: int, full: int
) -> None:
    """With windows of a millisecond every replay comes after all of them have passed."""
    from confluent_kafka import Producer

    rounds = campaign.rounds(share=2, full=full)
    random = campaign.random()
    sent = 0
    with mock_process() as cluster:
        cluster.topic("ticks", 1)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        options = ("--kafka", cluster.bootstrap, "--window", str(window_ms))
        place = str(tmp_path / "data")
        if store == "postgres":
            place = _database()
            options += ("--lease", str(LEASE_MS), "--jobs", place)
        for _ in range(rounds):
            with graph_process(place, *options) as process:
                process.line("ready")
                for _ in range(MESSAGES_A_ROUND):
                    sent += 1
                    producer.produce("ticks", b'{"id":%d}' % sent)
                producer.flush(30)
                for _ in range(random.randrange(1, 12)):
                    process.line("fired")
                if random.random() < 0.5:  # not always right after a line was written
                    process.says("never", random.random() * 0.05)
                process.kill()
                campaign.tally["killed"] += 1
        with graph_process(place, *options) as process:
            process.line("ready")
            outcome = process.finish(sent)
    check(outcome, sent)
    assert outcome.epoch == rounds + 1, "each life took the graph over"
    campaign.tally["firings"] += len(outcome.notes)


def _database() -> str:
    """A database that nobody else uses."""
    name = f"graphs_{os.getpid()}_{next(databases)}"
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    return postgres_server().url(name)


@pytest.mark.timeout(300)
def test_a_holder_that_wakes_after_it_was_replaced_changes_nothing(campaign: Campaign) -> None:
    """Two instances of one app: the one that has the lease is stopped, and woken too late."""
    random = campaign.random()
    url = _database()
    rounds = campaign.rounds(share=2, full=10)
    lease = ("--lease", str(LEASE_MS), "--jobs", url)
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(graph_process(url, *lease))
        holder.line("ready")
        for _ in range(rounds):
            other = stack.enter_context(graph_process(url, *lease))
            for _ in range(random.randrange(1, 4)):
                holder.line("fired")
            assert not other.says("ready", 0.2), "two run the graph"
            holder.signal(signal.SIGSTOP)
            other.line("ready")
            other.line("fired")
            holder.signal(signal.SIGCONT)
            holder.line("refused")
            other.line("fired")
            campaign.tally["replaced"] += 1
            holder = other
        outcome = holder.finish(0)
    check(outcome, 0)
    assert outcome.epoch == rounds + 1
