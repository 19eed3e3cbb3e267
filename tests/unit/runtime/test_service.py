"""How a process is asked to stop: a switch, and the signals that use it."""

from __future__ import annotations

import asyncio
import os
import signal

from fairway.runtime.service import StopSwitch, stop_on_signals
from fairway.testing import run


def test_the_switch_can_be_awaited() -> None:
    async def main() -> None:
        stop = StopSwitch()
        assert not stop.requested
        stop.request_stop()
        await stop.wait_requested()
        assert stop.requested
        assert not stop.forced
        stop.request_stop()
        await stop.wait_forced()
        assert stop.forced
        stop.request_stop()  # and a third is harmless

    run(main, seed=1)


# Signals are real, so these run on a real loop; nothing in them waits for a time.


def test_the_first_signal_asks_for_a_stop_and_the_handlers_are_put_back() -> None:
    async def main() -> None:
        stop = StopSwitch()
        with stop_on_signals(stop):
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
            await stop.wait_requested()
            assert not stop.forced

    before = signal.getsignal(signal.SIGTERM)
    asyncio.run(main())
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_second_signal_forces_the_stop_and_the_third_has_its_usual_effect() -> None:
    async def main() -> None:
        stop = StopSwitch()
        with stop_on_signals(stop, (signal.SIGINT, signal.SIGUSR1)):
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGUSR1)
            await stop.wait_requested()
            os.kill(os.getpid(), signal.SIGINT)
            await stop.wait_forced()
            assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
            assert not asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    asyncio.run(main())
