"""Warm processes for calls that must be stoppable: a timeout or a cancel ends the whole process.

Each process is a session of its own, so ending it ends whatever it started as well. It is started
with a fresh interpreter, imports what the call needs once, and takes one call after another over a
pipe. A process that died, by itself or by us, is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import struct
import sys
from typing import TYPE_CHECKING, Any

from fairway.errors import CallFailed, Closing, ProcessDied
from fairway.runtime.usercode import run_coroutine
from fairway.runtime.words import traced

if TYPE_CHECKING:
    from collections.abc import Callable

_HEAD = struct.Struct("!I")


class Processes:
    """At most `most` processes, each running one call at a time.

    A call is a function that can be imported by name, and arguments and a result that can be
    pickled. Cancelling the caller kills the process group of its call.
    """

    def __init__(self, most: int) -> None:
        self._slots = asyncio.Semaphore(most)
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._closed = False

    async def run(
        self, function: Callable[..., Any], *args: Any, limit_s: float | None = None
    ) -> Any:
        """Call `function(*args)` in a process. Raises `CallFailed` or `ProcessDied`.

        A call that takes longer than `limit_s` is ended with its process: `TimeoutError`. The wait
        for a process, and for a new one to start, is not the call's time.
        """
        if self._closed:
            raise Closing("the processes are closed")
        message = pickle.dumps((function, args))
        async with self._slots:
            process = await self._take()
            self._busy.add(process)
            try:
                async with asyncio.timeout(limit_s):
                    answer = await process.call(message)
            except BaseException:
                await process.kill()
                raise
            finally:
                self._busy.discard(process)
            self._idle.append(process)
        good, value = pickle.loads(answer)
        if not good:
            raise CallFailed(value)
        return value

    async def aclose(self) -> None:
        """Kill every process. Calls under way fail."""
        self._closed = True
        for process in (*self._idle, *self._busy):
            await process.kill()
        self._idle.clear()

    async def _take(self) -> _Process:
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
            await process.kill()
        return await _Process.start()


class _Process:
    """One interpreter that waits for calls."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child

    @classmethod
    async def start(cls) -> _Process:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            f"import sys; sys.path[:] = {sys.path!r};"
            " from fairway.runtime.processes import serve_calls; serve_calls()",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        process = cls(child)
        try:
            await process.wait_started()
        except BaseException:
            await process.kill()
            raise
        return process

    @property
    def alive(self) -> bool:
        return self._child.returncode is None

    async def wait_started(self) -> None:
        """Until it takes calls."""
        await self._answer()

    async def call(self, message: bytes) -> bytes:
        assert self._child.stdin is not None
        with contextlib.suppress(ConnectionError):  # how it ended is told by the answer
            self._child.stdin.write(_HEAD.pack(len(message)) + message)
            await self._child.stdin.drain()
        return await self._answer()

    async def _answer(self) -> bytes:
        stdout = self._child.stdout
        assert stdout is not None
        try:
            (size,) = _HEAD.unpack(await stdout.readexactly(_HEAD.size))
            return await stdout.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError, OSError) as error:
            code = await self._child.wait()
            how = _signal_name(-code) if code < 0 else f"exit status {code}"
            raise ProcessDied(f"the process of the call ended with {how}") from error

    async def kill(self) -> None:
        """End the process and all it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        if self._child.stdin is not None:
            self._child.stdin.close()
        await self._child.wait()


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def serve_calls() -> None:
    """What runs in the process: calls from standard input, answers to standard output."""
    calls = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    # What the call prints must not mix with the answers, and it must not read the calls.
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    answers.write(_HEAD.pack(0))  # it takes calls from here on
    answers.flush()
    while head := calls.read(_HEAD.size):
        (size,) = _HEAD.unpack(head)
        answer = _answer(calls.read(size))
        answers.write(_HEAD.pack(len(answer)) + answer)
        answers.flush()


def _answer(message: bytes) -> bytes:
    try:
        function, args = pickle.loads(message)
        value = function(*args)
        if asyncio.iscoroutine(value):
            value = run_coroutine(value)
        return pickle.dumps((True, value))
    except BaseException as error:
        return pickle.dumps((False, traced(error)))
