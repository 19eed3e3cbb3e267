"""What runs log is kept with their attempts, and logging is otherwise as it was."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairway.errors import InvalidConfig, JobFailed
from fairway.jobs import steps
from fairway.jobs.attempts import LOG_BYTES_MAX
from fairway.jobs.engine import Jobs, Kinds
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.job import NewJob
from fairway.jobs.kinds import Options, function_kind
from fairway.jobs.logs import RunLog, hearing, task_logs_for
from fairway.jobs.stores.memory import MemoryStore
from fairway.jobs.worker import Worker, WorkerConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairway.jobs.logs import LoggedRun

logger = logging.getLogger("shop.mail")
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (.*)")


@pytest.fixture(autouse=True)
def capturing() -> Iterator[None]:
    """Records of the shop are made and reach nobody: pytest would format them."""
    logger.setLevel(logging.INFO)
    logger.addFilter(_nobody)
    yield
    logger.removeFilter(_nobody)
    logger.setLevel(logging.NOTSET)


def _nobody(record: logging.LogRecord) -> bool:
    return False


def logs_of(*functions: Callable[..., Any], count: int = 1, **config: Any) -> list[list[str]]:
    """The logs of jobs that run these, `count` of each at once: the lines without their times."""

    async def play() -> list[list[str]]:
        store, kinds = MemoryStore(), Kinds()
        for function in functions:
            kinds.add(function_kind(function, function.__name__, 1, Options()))
        jobs = Jobs(store, kinds)
        settings = WorkerConfig(queues={"default": FeederConfig()}, **config)
        worker = Worker(store, kinds.by_version, settings, on_ended=jobs.on_ended)
        jobs.attach(worker)
        await store.open()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(worker.run())
            await worker.wait_started()
            wanted = [
                NewJob(kind=one.__name__, max_attempts=1) for one in functions for _ in range(count)
            ]
            added = await jobs.enqueue(wanted)
            for one in added:
                with contextlib.suppress(JobFailed):
                    await jobs.result(one.id, timeout_s=60)
            found = [await jobs.attempt_log(one.id, 1) for one in added]
            await worker.drain()
            running.cancel()
        return [(log or b"").decode().splitlines() for log in found]

    return [[untimed(line) for line in lines] for lines in asyncio.run(play())]


def untimed(line: str) -> str:
    found = LINE.fullmatch(line)
    return found[1] if found is not None else line


async def in_a_task() -> None:
    logger.info("it begins with %d", 7)
    logger.debug("its level keeps this back")

    async def inner() -> None:
        logger.warning("from a task of its own")

    await asyncio.create_task(inner())
    await asyncio.to_thread(logger.info, "from a thread of its own")


def in_a_thread() -> None:
    logger.info("it runs in %s", "a pool" if threading.current_thread().name else "nothing")


async def fails() -> None:
    try:
        raise KeyError("lost")
    except KeyError:
        logger.exception("it looked for")
    raise ValueError("no")


def test_what_a_run_logs_is_kept_wherever_it_runs() -> None:
    task, thread, failed = logs_of(in_a_task, in_a_thread, fails)
    assert task == [
        "INFO shop.mail: it begins with 7",
        "WARNING shop.mail: from a task of its own",
        "INFO shop.mail: from a thread of its own",
    ]
    assert thread == ["INFO shop.mail: it runs in a pool"]
    assert failed[0] == "ERROR shop.mail: it looked for"
    assert failed[-1] == "KeyError: 'lost'"


def test_runs_at_once_have_logs_of_their_own() -> None:
    numbers = iter(range(100))
    both = asyncio.Barrier(5)

    async def mine() -> None:
        number = next(numbers)
        for _ in range(3):
            await both.wait()
            logger.info("I am %d", number)

    logs = logs_of(mine, count=5)
    assert sorted(set(map(tuple, logs))) == [
        (f"INFO shop.mail: I am {number}",) * 3 for number in range(5)
    ]


class Wild:
    """Whoever asks it what it says regrets it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __str__(self) -> str:
        raise self.error


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()]
)
def test_a_record_that_cannot_be_formatted_fails_no_run(error: BaseException) -> None:
    async def wild() -> None:
        logger.info("it is %s", Wild(error))
        logger.info("%d and %d", 1)
        logger.info("half a \ud800 character")

    (lines,) = logs_of(wild)
    assert lines == [
        "INFO shop.mail: (a record that cannot be formatted)",
        "INFO shop.mail: (a record that cannot be formatted)",
        "INFO shop.mail: half a \\ud800 character",
    ]


def test_the_end_of_a_long_log_is_kept_and_no_character_cut() -> None:
    log = RunLog(100)
    for number in range(50):
        log.add(f"line {number} äöü")
    kept = log.text()
    assert kept.decode().splitlines() == [f"line {number} äöü" for number in range(44, 50)]
    log.add("ä" * 60)
    assert log.text() == "ä".encode() * 49 + b"\n"
    assert len(log.text()) == 99


def test_a_run_keeps_as_much_as_the_worker_says() -> None:
    async def much() -> None:
        for number in range(1000):
            logger.info("line %d", number)

    (lines,) = logs_of(much, log_bytes=200)
    assert [line.partition("line ")[2] for line in lines] == ["996", "997", "998", "999"]
    (nothing,) = logs_of(in_a_task, log_bytes=0)
    assert nothing == []
    for wrong in (-1, LOG_BYTES_MAX + 1):
        with pytest.raises(InvalidConfig, match="log_bytes is"):
            WorkerConfig(log_bytes=wrong)


def test_what_is_left_behind_by_a_run_is_heard_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    runs: list[LoggedRun] = []

    def noted(run: LoggedRun) -> None:
        runs.append(run)
        task_logs_for(run)

    monkeypatch.setattr(steps, "task_logs_for", noted)

    async def leaves() -> None:
        logger.info("it is there")
        released = asyncio.Event()

        async def later() -> None:
            await released.wait()
            logger.info("it is not")

        heard.append((asyncio.create_task(later()), released))

    async def another() -> None:
        task, released = heard.pop()
        released.set()
        await task
        logger.info("it is another")

    first, second = logs_of(leaves, another)
    assert first == ["INFO shop.mail: it is there"]
    assert second == ["INFO shop.mail: it is another"]
    assert [run.log and run.log.text().count(b"\n") for run in runs] == [1, 1]


def test_logging_is_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    """No handler is added, so `basicConfig` and the handler of last resort do what they did."""
    before = logging.getLogRecordFactory()
    handlers = list(logging.getLogger().handlers)

    def others(*args: Any, **options: Any) -> logging.LogRecord:
        record = before(*args, **options)
        record.shop = "theirs"
        return record

    with hearing():
        assert logging.getLogger().handlers == handlers
        with hearing():
            ours = logging.getLogRecordFactory()
            assert ours is not before
        assert logging.getLogRecordFactory() == ours
        record = logging.makeLogRecord({"msg": "%d", "args": (7,)})
        assert record.getMessage() == "7"
    assert logging.getLogRecordFactory() is before
    logging.setLogRecordFactory(others)
    try:
        with hearing():
            assert logging.getLogger().makeRecord("a", 20, "f", 1, "m", (), None).shop == "theirs"
        assert logging.getLogRecordFactory() is others
    finally:
        logging.setLogRecordFactory(before)
