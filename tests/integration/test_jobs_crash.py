"""kill -9 of busy workers, again and again: every job ends, each once, and no key has two holders.

What ran is written down by the workers themselves, outside the store. One store goes through all
rounds. Which moment a worker is killed at follows from the number of jobs it has begun.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw
import msgspec
import pytest
from msgspec import structs

from fairway.jobs.context import Context  # noqa: TC001  annotations of jobs are read
from fairway.jobs.engine import Kinds
from fairway.jobs.job import Filter, NewJob, Status
from fairway.jobs.kinds import Options, function_kind, machine_kind
from fairway.jobs.outcome import Outcome, Retry  # noqa: TC001  likewise
from fairway.jobs.worker import Worker
from tests.support.culprits import WAYS
from tests.support.jobs_child import Line, config_of, gate_of, store_at
from tests.support.pipes import readable
from tests.support.postgres import PostgresServer, postgres_url

if TYPE_CHECKING:
    import random
    from collections import Counter
    from collections.abc import Callable, Iterator

    from fairway.jobs.job import Job
    from fairway.jobs.store import JobStore
    from tests.conftest import Campaign

ROOT = Path(__file__).parents[2]
WORKERS = 2
JOBS_A_ROUND = 60
LEASE_MS = 2_500
LOOK_S = 0.05
"""How often the store is asked how far they are."""
IDLE_S = 0.3
"""After which a worker that began nothing is taken to have nothing to do."""
STORES = ("sqlite", "postgres")

schemas = itertools.count(1)


class WorkerProcess:
    """A running `jobs_child`."""

    def __init__(self, place: str, book: Path, lease_ms: int) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "tests.support.jobs_child", place, str(book), str(lease_ms)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.began = 0
        self.killed_ns: int | None = None

    @property
    def pid(self) -> int:
        return self.child.pid

    def wait_for_jobs(self, count: int, more: Callable[[], object] = lambda: None) -> None:
        """Until it has begun that many more. If it has nothing to do, `more` is called."""
        assert self.child.stdout is not None
        until = self.began + count
        while self.began < until:
            if not readable(self.child.stdout, IDLE_S):
                more()
                continue
            output = os.read(self.child.stdout.fileno(), until - self.began)
            assert output, f"the worker ended by itself: {self.child.wait()}"
            self.began += len(output)

    def kill(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        assert self.child.wait() == -signal.SIGKILL, "it had died before it was killed"
        self.killed_ns = time.monotonic_ns()

    def wait(self) -> int:
        """Until it ends by its own doing."""
        code = self.child.wait()
        self.killed_ns = time.monotonic_ns()
        return code

    def finish(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()
        assert self.child.wait() == 0

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            assert pipe is not None
            pipe.close()


class Run(NamedTuple):
    began_ns: int
    ended_ns: int
    job: int
    attempt: int
    whole: bool
    """Whether it came to its end; else its process was killed."""


class Arena:
    """A store, the workers on it, and the book of what they ran."""

    def __init__(self, place: str, scratch: Path, tally: Counter[str]) -> None:
        self.place = place
        self.tally = tally
        self.book = scratch / "book"
        self.store: JobStore = store_at(place)
        self.runner = asyncio.Runner()
        self.runner.run(self.store.open())
        self.ids: list[int] = []
        self.workers: list[WorkerProcess] = []
        self.ended: dict[int, int] = {}
        """When processes were killed."""

    def start(self, lease_ms: int = LEASE_MS) -> WorkerProcess:
        worker = WorkerProcess(self.place, self.book, lease_ms)
        self.workers.append(worker)
        return worker

    def pause(self, worker: WorkerProcess) -> None:
        """Stop a worker, but not inside a transaction of SQLite: there it would stop all others."""
        while True:
            worker.child.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)
            if not self._locked():
                return
            worker.child.send_signal(signal.SIGCONT)

    def _locked(self) -> bool:
        file = Path(self.place) / "jobs.db"
        if not file.exists():
            return False
        connection = apsw.Connection(str(file))
        try:
            connection.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            return True
        finally:
            connection.close()
        return False

    def remove_killed(self, worker: WorkerProcess) -> None:
        assert worker.killed_ns is not None
        self.ended[worker.pid] = worker.killed_ns
        self.workers.remove(worker)
        worker.close()

    def add(self, *jobs: NewJob) -> list[int]:
        added = [one.id for one in self.runner.run(self.store.enqueue(jobs))]
        self.ids += added
        return added

    def find(self, id: int) -> Job:
        job = self.runner.run(self.store.find(id))
        assert job is not None, f"job {id} is lost"
        return job

    def wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.runner.run(asyncio.sleep(LOOK_S))

    def all_ended(self) -> bool:
        (queue,) = self.runner.run(self.store.queues())
        return not queue.ready + queue.scheduled + queue.waiting + queue.blocked + queue.running

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.runner.run(self.store.aclose())
        self.runner.close()

    # What must hold

    def runs(self) -> dict[int, list[Run]]:
        """Every run of every job, in order; one that was killed ended with its process."""
        began: dict[tuple[int, int, int], Line] = {}
        runs: dict[int, list[Run]] = defaultdict(list)
        for raw in self.book.read_bytes().splitlines():
            line = msgspec.json.decode(raw, type=Line)
            key = (line.pid, line.job, line.attempt)
            if line.what == "began":
                assert key not in began, f"one claim ran twice: {line}"
                began[key] = line
            else:
                first = began.pop(key)
                runs[line.job].append(Run(first.at_ns, line.at_ns, line.job, line.attempt, True))
        for (pid, job, attempt), first in began.items():
            assert pid in self.ended, f"worker {pid} lives and forgot job {job}"
            runs[job].append(Run(first.at_ns, self.ended[pid], job, attempt, False))
        for one in runs.values():
            one.sort()
        return runs

    def check(self) -> None:
        """Every job was committed as done once; its runs are accounted for; no key has two
        holders."""
        runs = self.runs()
        by_key: dict[str, list[Run]] = defaultdict(list)
        for id in self.ids:
            job = self.find(id)
            assert job.status is Status.DONE, f"job {id} is {job.status.word}: {job.error}"
            assert job.attempt == 0
            attempts = [run.attempt for run in runs[id]]
            # A claim ends with a commit or with a crash: the last run is the one that counts.
            assert attempts == sorted(set(attempts)), f"job {id} ran as {attempts}"
            assert attempts[-1] == job.crashes + 1
            assert job.result == b"%d" % attempts[-1]
            assert runs[id][-1].whole
            assert len(attempts) <= job.crashes + 1
            self.tally["killed runs"] += sum(not run.whole for run in runs[id])
            self.tally["ended but not committed"] += sum(run.whole for run in runs[id]) - 1
            self.tally["killed before they began"] += job.crashes + 1 - len(attempts)
            by_key[job.partition_key or f"job {id}"] += runs[id]
        for key, one in by_key.items():
            for before, after in itertools.pairwise(sorted(one)):
                assert before.ended_ns <= after.began_ns, f"{key}: {before} meets {after}"
        self.check_total()

    def check_total(self) -> None:
        listed: list[int] = []
        last = None
        while page := self.runner.run(self.store.browse(Filter(before=last, limit=200))):
            listed += [job.id for job in page]
            last = page[-1].id
        assert sorted(listed) == sorted(self.ids), "a job twice, or one nobody added"


@contextmanager
def arena(kind: str, scratch: Path, tally: Counter[str], url: str | None = None) -> Iterator[Arena]:
    if kind == "sqlite":
        place = f"sqlite:{scratch / 'jobs.db'}"
    else:
        place = f"postgres:jobs_crash_{next(schemas)}:{url or postgres_url()}"
    made = Arena(place, scratch, tally)
    try:
        yield made
    finally:
        made.close()


def some_jobs(rng: random.Random, count: int) -> list[NewJob]:
    """Half of them with a key, some in strict order, some in threads."""
    jobs = []
    for _ in range(count):
        key = rng.choice([None, None, None, "a", "b", "c"])
        jobs.append(
            NewJob(
                kind=rng.choice(["work", "work", "threaded"]),
                partition_key=key,
                strict=key == "c",
                priority=rng.choice([0, 0, 800]),
                tenant=rng.choice(["", "x"]),
                max_attempts=1_000,
                max_crashes=1_000,
            )
        )
    return jobs


@pytest.mark.parametrize("kind", STORES)
def test_kill_9_loses_nothing_and_repeats_nothing_that_was_committed(
    kind: str, campaign: Campaign, tmp_path: Path
) -> None:
    rng = campaign.random()
    rounds = campaign.rounds(share=3, full=50)
    with arena(kind, tmp_path, campaign.tally) as at:
        for _ in range(WORKERS):
            at.start()
        for _ in range(rounds):
            at.add(*some_jobs(rng, JOBS_A_ROUND))
            victims = list(at.workers) if rng.random() < 0.25 else [rng.choice(at.workers)]
            count = rng.randint(1, JOBS_A_ROUND // 4)
            victims[0].wait_for_jobs(count, lambda: at.add(*some_jobs(rng, JOBS_A_ROUND // 3)))
            for victim in victims:
                victim.kill()
                at.remove_killed(victim)
                campaign.tally["kills"] += 1
            for _ in victims:
                at.start()
        at.wait_until(at.all_ended)
        for worker in at.workers:
            worker.finish()
        at.check()
    assert campaign.tally["killed runs"], "nobody was killed in the act"


@pytest.mark.parametrize("kind", STORES)
def test_a_job_that_kills_its_worker_is_put_aside_and_the_others_go_on(
    kind: str, campaign: Campaign, tmp_path: Path
) -> None:
    with arena(kind, tmp_path, campaign.tally) as at:
        (poison,) = at.add(NewJob(kind="poison", max_crashes=2))
        others = at.add(*[NewJob(kind="work", max_crashes=4) for _ in range(20)])
        deaths = []
        for _ in range(2):
            worker = at.start(lease_ms=800)
            deaths.append(worker.wait())
            at.remove_killed(worker)
        last = at.start(lease_ms=800)
        at.wait_until(at.all_ended)
        last.finish()
        assert deaths == [-signal.SIGKILL, 13]
        job = at.find(poison)
        assert (job.status, job.crashes) == (Status.DEAD, 2)
        assert job.error == "its worker died 2 times"
        at.ids.remove(poison)
        assert len(at.runs()[poison]) == 2
        assert {at.find(id).status for id in others} == {Status.DONE}


@pytest.mark.parametrize("kind", STORES)
def test_a_job_that_ends_its_process_counts_a_crash_and_everything_else_is_there(
    kind: str, campaign: Campaign, tmp_path: Path
) -> None:
    """In a coroutine or a thread it ends the worker. Another one counts that, and goes on."""
    deaths = [(place, way) for way in WAYS for place in ("coroutine", "thread")]
    rng = campaign.random()
    deaths = rng.sample(deaths, campaign.rounds(share=3 if kind == "sqlite" else 1, full=6))
    with arena(kind, tmp_path, campaign.tally) as at:
        others = at.add(*[NewJob(kind="work", max_crashes=20) for _ in range(20)])
        ended = []
        for place, way in deaths:
            state = msgspec.json.encode({"way": way})
            ended += at.add(NewJob(kind=f"ends_in_a_{place}", state=state, max_crashes=1))
            worker = at.start(lease_ms=800)
            assert worker.wait() == (13 if way == "os._exit" else -signal.SIGSEGV)
            at.remove_killed(worker)
            campaign.tally[f"{way} in a {place}"] += 1
        last = at.start(lease_ms=800)
        at.wait_until(at.all_ended)
        last.finish()
        for id in ended:
            job = at.find(id)
            assert (job.status, job.crashes) == (Status.DEAD, 1)
            assert job.error == "its worker died 1 times"
            at.ids.remove(id)
            assert len(at.runs()[id]) == 1
        assert {at.find(id).status for id in others} == {Status.DONE}


@pytest.mark.parametrize("kind", STORES)
def test_a_worker_that_was_paused_beyond_its_lease_wakes_and_commits_nothing(
    kind: str, campaign: Campaign, tmp_path: Path
) -> None:
    """Another one has run its jobs meanwhile. It stops them, registers anew, and goes on."""
    with arena(kind, tmp_path, campaign.tally) as at:
        paused = at.start()
        ids = at.add(*[NewJob(kind="gated") for _ in range(4)])
        paused.wait_for_jobs(4)
        at.pause(paused)
        other = at.start()
        other.wait_for_jobs(4)  # when the lease has run out
        Path(gate_of(str(at.book), other.pid)).touch()
        at.wait_until(at.all_ended)
        paused.child.send_signal(signal.SIGCONT)

        def output(pid: int) -> list[tuple[str, int, int]]:
            lines = (
                msgspec.json.decode(raw, type=Line) for raw in at.book.read_bytes().splitlines()
            )
            return [(line.what, line.job, line.attempt) for line in lines if line.pid == pid]

        at.wait_until(lambda: sum(what == "stopped" for what, _, _ in output(paused.pid)) == 4)
        other.finish()
        more = at.add(*[NewJob(kind="work") for _ in range(10)])
        paused.wait_for_jobs(10)
        at.wait_until(at.all_ended)
        paused.finish()
        begun = [("began", id, 1) for id in ids]
        stopped = [("stopped", id, 1) for id in ids]
        woken = output(paused.pid)
        assert sorted(woken[:8]) == begun + stopped
        assert {job for _, job, _ in woken[8:]} == set(more)
        for id in ids:  # what was committed is the other one's
            job = at.find(id)
            assert (job.status, job.crashes, job.result) == (Status.DONE, 1, b"2")
            assert ("ended", id, 2) in output(other.pid)
        campaign.tally["woke up"] += 1


def test_a_worker_outlives_a_crash_of_its_database(campaign: Campaign, tmp_path: Path) -> None:
    """PostgreSQL is stopped as by a power cut and comes back. The worker is never told."""
    rng = campaign.random()
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer())
        at = stack.enter_context(arena("postgres", tmp_path, campaign.tally, server.url()))
        worker = at.start()
        for _ in range(campaign.rounds(share=1, full=20)):
            at.add(*[NewJob(kind="work") for _ in range(120)])
            worker.wait_for_jobs(rng.randint(5, 60))
            server.stop("immediate")
            server.start()
            campaign.tally["database crashes"] += 1
            at.runner.run(at.store.aclose())
            at.runner.run(at.store.open())
        at.wait_until(at.all_ended)
        worker.finish()
        runs = at.runs()
        for id in at.ids:
            job = at.find(id)
            assert job.status is Status.DONE, f"job {id} is {job.status.word}: {job.error}"
            assert runs[id], f"job {id} is done and never ran"
            campaign.tally["ran again"] += len(runs[id]) - 1
        at.check_total()


@pytest.mark.parametrize("kind", STORES)
def test_what_a_job_says_of_itself_never_stops_its_worker(
    kind: str, campaign: Campaign, tmp_path: Path
) -> None:
    """A store that refused one settlement would refuse all that are in the same exchange."""
    kinds = Kinds()

    async def unspeakable(ctx: Context[Any]) -> None:
        raise ValueError("zero \x00, half a pair \udc80")

    async def overdue(ctx: Context[Any]) -> Retry | None:
        return ctx.retry(after_s=-5) if ctx.attempt == 1 else None

    async def for_ever(ctx: Context[Any]) -> Retry:
        return ctx.defer(after_s=1e15)

    async def good() -> None:
        pass

    for function in (unspeakable, overdue, for_ever, good):
        kinds.add(function_kind(function, function.__name__, 1, Options(max_attempts=1)))

    class Signals(msgspec.Struct):
        def ask(self, ctx: Context[Any]) -> Outcome:
            return ctx.wait("\x00", then="ask")

    kinds.add(machine_kind(Signals, "signals", 1, Options(), None))

    with arena(kind, tmp_path, campaign.tally) as at:
        names = ("unspeakable", "overdue", "for_ever", "signals")
        jobs = [NewJob(kind=name, step="run", max_attempts=2) for name in names]
        jobs[0] = structs.replace(jobs[0], max_attempts=1)
        jobs[3] = structs.replace(jobs[3], step="ask")
        unspeakable_id, overdue_id, for_ever_id, signals_id = at.add(*jobs)
        good_id = at.add(NewJob(kind="good"))[0]

        async def play() -> None:
            worker = Worker(at.store, kinds.by_version, config_of(LEASE_MS))
            async with asyncio.TaskGroup() as group:
                running = group.create_task(worker.run())
                async with asyncio.timeout(30):
                    for id in (unspeakable_id, overdue_id, signals_id, good_id):
                        while not (await found(id)).status.ended:  # noqa: ASYNC110  it has none
                            await asyncio.sleep(LOOK_S)
                await worker.drain()
                running.cancel()

        async def found(id: int) -> Job:
            job = await at.store.find(id)
            assert job is not None
            return job

        at.runner.run(play())
        assert at.find(good_id).status is Status.DONE
        assert at.find(overdue_id).status is Status.DONE
        assert at.find(signals_id).status is Status.FAILED
        output = at.find(unspeakable_id).error
        assert output is not None
        assert r"zero \x00, half a pair \udc80" in output
        assert at.find(for_ever_id).status is Status.SCHEDULED
