"""Warm processes for calls that must be stoppable: a timeout or a cancel ends the whole process.

Each process is a session of its own, so ending it ends whatever it started as well. It is started
with a fresh interpreter, imports what the call needs once, and takes one call after another over a
pipe. A process that died, by itself or by us, is replaced, and so is one in which a call failed:
nobody knows what state it left there. None outlives us (`leash`).
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
from fairway.runtime.leash import Leash, Leashed, end_group
from fairway.runtime.usercode import run_coroutine
from fairway.runtime.words import traced

if TYPE_CHECKING:
    from collections.abc import Callable

_HEAD = struct.Struct("!I")
_DONE, _DETAILED, _FAILED, _NOT_REACHED = "done", "detailed", "failed", "not reached"
_CALL = struct.Struct("!Iq")  # how long it is, and until when it may take


class NotReached(Exception):
    """What stands before user code failed: what an earlier call did to the process, perhaps."""


class FailedCall(Exception):
    """The call has failed with more details than an error holds: they are its result."""

    def __init__(self, details: object) -> None:
        super().__init__(details)
        self.details = details


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
        self,
        function: Callable[..., Any],
        *args: Any,
        limit_s: float | None = None,
        until: Callable[[], int] = lambda: 0,
    ) -> Any:
        """Call `function(*args)` in a process. Raises `CallFailed` or `ProcessDied`.

        A call that takes longer than `limit_s` is ended with its process: `TimeoutError`. The wait
        for a process, and for a new one to start, is not the call's time. `until` returns when the
        call must be over unless `renew` is called, by the clock of the machine; 0 if it need not.
        """
        if self._closed:
            raise Closing("the processes are closed")
        message = pickle.dumps((function, args))
        async with self._slots:
            process = await self._take()
            end, value = await self._call(process, message, limit_s, until())
            if end == _NOT_REACHED and process.calls > 1:  # not the fault of this one, perhaps
                process = await _Process.start()
                end, value = await self._call(process, message, limit_s, until())
        if end not in (_DONE, _DETAILED):
            raise CallFailed(value)
        return value

    async def _call(
        self, process: _Process, message: bytes, limit_s: float | None, until_ns: int
    ) -> tuple[str, Any]:
        """How a call ended, and its result or error. The process is kept only if that is good."""
        self._busy.add(process)
        try:
            async with asyncio.timeout(limit_s):
                answer = await process.call(message, until_ns)
            end, value = pickle.loads(answer)
        except BaseException:
            await process.kill()
            raise
        finally:
            self._busy.discard(process)
        if end == _DONE:
            self._idle.append(process)
        else:
            await process.kill()
        return end, value

    def renew(self, until_ns: int) -> None:
        """Calls under way that must be over in time may go on until then. On any thread."""
        for process in tuple(self._busy):
            process.leash.renew(until_ns)

    @property
    def busy(self) -> int:
        """How many run a call."""
        return len(self._busy)

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

    def __init__(self, child: asyncio.subprocess.Process, leash: Leash) -> None:
        self._child = child
        self.calls = 0
        self.leash = leash

    @classmethod
    async def start(cls) -> _Process:
        leash = Leash()
        try:
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                f"import sys; sys.path[:] = {sys.path!r};"
                f" from fairway.runtime.processes import serve_calls; serve_calls({leash.theirs})",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
                pass_fds=(leash.theirs,),
            )
        except BaseException:
            leash.close()
            raise
        finally:
            leash.handed_over()
        process = cls(child, leash)
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

    async def call(self, message: bytes, until_ns: int) -> bytes:
        assert self._child.stdin is not None
        self.calls += 1
        with contextlib.suppress(ConnectionError):  # the answer shows how it ended
            self._child.stdin.write(_CALL.pack(len(message), until_ns) + message)
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
        self.leash.close()
        await self._child.wait()


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def serve_calls(leash: int) -> None:
    """What runs in the process: calls from standard input, answers to standard output."""
    os.set_inheritable(leash, False)  # what it starts itself has no use for it
    leashed = Leashed(leash)
    calls = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    # What the call prints must not mix with the answers, and it must not read the calls.
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)

    def send(answer: bytes) -> None:
        try:
            answers.write(_HEAD.pack(len(answer)) + answer)
            answers.flush()
        except BrokenPipeError:  # seen here before the leash is
            end_group()

    send(b"")  # it takes calls from here on
    while head := calls.read(_CALL.size):
        size, until_ns = _CALL.unpack(head)
        message = calls.read(size)
        leashed.begin(until_ns)
        answer = _answer(message)
        leashed.end()
        send(answer)


def _answer(message: bytes) -> bytes:
    try:
        try:
            function, args = pickle.loads(message)
        except BaseException as error:
            return pickle.dumps((_NOT_REACHED, traced(error)))
        value = function(*args)
        if asyncio.iscoroutine(value):
            value = run_coroutine(value)
        return pickle.dumps((_DONE, value))
    except FailedCall as failed:
        return pickle.dumps((_DETAILED, failed.details))
    except NotReached as error:
        return pickle.dumps((_NOT_REACHED, traced(error.__cause__ or error)))
    except BaseException as error:
        return pickle.dumps((_FAILED, traced(error)))
