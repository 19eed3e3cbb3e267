"""What a run of a job logs: the end of it is kept with its attempt.

Records are heard of where they are made, by the record factory of `logging`. A handler would not
do: one at the root turns `basicConfig` and the handler of last resort off, and with them what users
see. A context variable says which run a record belongs to, so tasks that a step starts are heard,
and so is `asyncio.to_thread`; threads that it starts otherwise are not. A record counts if
the level of its logger lets it through; filters and handlers have no part in it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from fairway.jobs.attempts import kept_log
from fairway.runtime.usercode import reraise_interrupt
from fairway.runtime.words import traced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_writing = threading.RLock()  # entered again by a signal handler that logs
_keys = count(1)
_runs: dict[int, LoggedRun] = {}
# The key of the run and not the run: what a context holds lives as long as its task, and that many
# more objects alive cost the garbage collector more than all the rest of this.
_run: ContextVar[int] = ContextVar("fairway_run", default=0)


class LoggedRun(Protocol):
    """A run whose log is kept, as soon as it logs anything: most log nothing."""

    log: RunLog | None
    log_bytes: int
    """How much is kept of it."""
    log_key: int
    """What stands for it while it runs; no key is given twice."""


class RunLog:
    """The end of what one run logs, in lines. Threads of the run add to it."""

    def __init__(self, most: int) -> None:
        """`most` bytes are kept."""
        self._most = most
        self._lines: deque[bytes] = deque()
        self._size = 0

    def add(self, line: str) -> None:
        encoded = line.encode(errors="backslashreplace")
        encoded = kept_log(encoded + b"\n", self._most) or b""
        with _writing:
            self._lines.append(encoded)
            self._size += len(encoded)
            while self._size > self._most:
                self._size -= len(self._lines.popleft())

    def text(self) -> bytes:
        """What is kept of it, in UTF-8."""
        with _writing:
            return b"".join(self._lines)


def task_logs_for(run: LoggedRun) -> None:
    """What the current task logs from here on, and those that it starts, is of this run, until it
    is over."""
    run.log_key = key = next(_keys)
    _runs[key] = run
    _run.set(key)


def run_is_over(run: LoggedRun) -> None:
    """What it has left behind and logs on is heard no more."""
    _runs.pop(run.log_key, None)


@contextmanager
def logging_for(run: LoggedRun) -> Iterator[None]:
    """What is logged inside is of this run, in a thread that others use before and after."""
    token = _run.set(run.log_key)
    try:
        yield
    finally:
        _run.reset(token)


class _Hearing:
    """Listens to all records that are made, as long as somebody wants them."""

    def __init__(self) -> None:
        self._wanted = 0
        self._before: Callable[..., logging.LogRecord] | None = None

    def begin(self) -> None:
        self._wanted += 1
        if self._wanted == 1:
            self._before = logging.getLogRecordFactory()
            logging.setLogRecordFactory(self.make)

    def end(self) -> None:
        self._wanted -= 1
        # Whoever put a factory of their own around ours goes on to call it: it hears nothing then.
        if not self._wanted and logging.getLogRecordFactory() == self.make:
            assert self._before is not None, "it was put there by us"
            logging.setLogRecordFactory(self._before)

    def make(self, *args: Any, **options: Any) -> logging.LogRecord:
        assert self._before is not None, "it was put there by us"
        record = self._before(*args, **options)
        run = _runs.get(_run.get())
        if run is not None:
            line = _line(record)
            with _writing:
                if run.log is None:
                    run.log = RunLog(run.log_bytes)
            run.log.add(line)
        return record


_hearing = _Hearing()


@contextmanager
def hearing() -> Iterator[None]:
    """Inside, what runs log is heard."""
    with _writing:
        _hearing.begin()
    try:
        yield
    finally:
        with _writing:
            _hearing.end()


def _line(record: logging.LogRecord) -> str:
    """A record as it is kept. What it says is asked of user code, which may raise anything."""
    at = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    head = f"{at}Z {record.levelname} {record.name}:"
    try:
        text = f"{head} {record.getMessage()}"
        error = record.exc_info[1] if record.exc_info else None
        return text if error is None else f"{text}\n{traced(error)}"
    except BaseException as error:
        reraise_interrupt(error)
        return f"{head} (a record that cannot be formatted)"
