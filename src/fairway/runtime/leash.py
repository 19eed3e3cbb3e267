"""What ends a process of ours when we are gone, or have been still for too long.

A process that runs a call for us must not outlive what entitles us to the call: if we are killed,
or stopped for longer than our lease, somebody else makes the same call. So it holds one end of a
pipe. The end of the pipe shows that we are gone; a message in it says until when the call may go
on. A thread of the process waits for either, and ends its whole group.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import threading
from typing import Final

from fairway.runtime.clock import SYSTEM_CLOCK

LONG_MS: Final = 60_000.0
"""More than `poll` must ever be asked for at once."""
_UNTIL: Final = struct.Struct("!q")


class Leash:
    """Our end. `renew` may be called on any thread."""

    def __init__(self) -> None:
        self.theirs, self._ours = os.pipe()
        os.set_blocking(self._ours, False)
        self._lock = threading.Lock()
        self._closed = False

    def renew(self, until_ns: int) -> None:
        """The call may go on until then, by the clock of the machine."""
        with self._lock:  # or the number could be another file's by now
            if not self._closed:
                # Full if it reads nothing: then it has heard enough, or will hear nothing any more.
                with contextlib.suppress(BlockingIOError, BrokenPipeError):
                    os.write(self._ours, _UNTIL.pack(until_ns))

    def handed_over(self) -> None:
        """The process has its end."""
        os.close(self.theirs)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._ours)


class Leashed:
    """The end of the process: a thread that watches for as long as it lives."""

    def __init__(self, leash: int) -> None:
        self._leash = leash
        self._until_ns = 0
        self._renewed_ns = 0
        self._lock = threading.Lock()
        self._heard, self._calling = os.pipe()
        threading.Thread(target=self._watch, name="leash", daemon=True).start()

    def begin(self, until_ns: int) -> None:
        """A call begins, and may go on until then; 0 for as long as we are there."""
        with self._lock:  # it may have been renewed while it was on its way
            self._until_ns = max(until_ns, self._renewed_ns) if until_ns else 0
        if until_ns:
            os.write(self._calling, b".")  # so that the thread looks at its clock anew

    def end(self) -> None:
        """The call is over: nothing has to be ended in time."""
        with self._lock:
            self._until_ns = 0

    def _watch(self) -> None:
        poll = select.poll()
        for each in (self._leash, self._heard):
            poll.register(each, select.POLLIN | select.POLLHUP)
        while True:
            until_ns = self._until_ns
            left_ns = until_ns - SYSTEM_CLOCK.now_ns()
            if until_ns and left_ns <= 0:
                break
            wait_ms = min(left_ns / 1e6, LONG_MS) if until_ns else None
            ready = {file for file, _ in poll.poll(wait_ms)}
            if self._heard in ready:
                os.read(self._heard, 4096)
            if self._leash in ready:
                message = os.read(self._leash, _UNTIL.size)
                if len(message) < _UNTIL.size:
                    break
                with self._lock:
                    self._renewed_ns = max(self._renewed_ns, *_UNTIL.unpack(message))
                    if self._until_ns:
                        self._until_ns = max(self._until_ns, self._renewed_ns)
        end_group()


def end_group() -> None:
    """End this process and all that it started, without a word: nobody is there to hear it."""
    os.killpg(0, signal.SIGKILL)
