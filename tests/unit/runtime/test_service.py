"""Services run together, end in order, and one failure ends them all without leaving a mess."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from fairway.runtime.service import Service, StopSwitch, serve, stop_on_signals
from fairway.testing import Deadlock, PowerLoss, run

Trace = list[str]


class Recorded:
    """A service that writes down what happens to it."""

    def __init__(
        self,
        name: str,
        trace: Trace,
        *,
        drain: float = 0,
        fail_after: float | None = None,
        end_after: float | None = None,
        fail_in: str = "",
    ) -> None:
        self.name = name
        self._trace = trace
        self._drain = drain
        self._fail_after = fail_after
        self._end_after = end_after
        self._fail_in = fail_in

    async def run(self) -> None:
        self._trace.append(f"{self.name} runs")
        try:
            if self._end_after is not None:
                await asyncio.sleep(self._end_after)
                return
            if self._fail_after is not None:
                await asyncio.sleep(self._fail_after)
                raise OSError(f"{self.name} broke")
            await asyncio.Event().wait()
        finally:
            self._trace.append(f"{self.name} ends")

    async def drain(self) -> None:
        self._trace.append(f"{self.name} drains")
        await asyncio.sleep(self._drain)
        self._check("drain")
        self._trace.append(f"{self.name} drained")

    async def aclose(self) -> None:
        self._check("aclose")
        self._trace.append(f"{self.name} closed")

    def _check(self, step: str) -> None:
        if step == self._fail_in:
            raise OSError(f"{self.name} broke in {step}")


class Bare:
    """As little as a service can be."""

    async def run(self) -> None:
        await asyncio.Event().wait()


def serve_until(
    *services: Service, press_at: tuple[float, ...] = (1,), expect_end: float | None = None
) -> None:
    """Serve on virtual time, pressing the switch at these times."""

    async def main() -> None:
        stop = StopSwitch()
        loop = asyncio.get_running_loop()
        for at in press_at:
            loop.call_at(at, stop.press)
        try:
            await serve(*services, stop=stop)
        finally:
            assert expect_end is None or loop.time() == expect_end
            assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main, seed=1)


def test_a_stop_takes_services_one_by_one_in_reverse_order() -> None:
    trace: Trace = []
    serve_until(Recorded("store", trace, drain=1), Recorded("door", trace, drain=5), expect_end=7)
    assert trace == [
        *("store runs", "door runs"),
        *("door drains", "door drained", "door ends", "door closed"),
        *("store drains", "store drained", "store ends", "store closed"),
    ]


def test_drain_and_close_are_optional() -> None:
    serve_until(Bare(), Bare(), expect_end=1)


def test_no_services_only_wait_for_the_stop() -> None:
    serve_until(expect_end=1)


def test_a_failing_service_takes_the_group_down_and_the_others_are_drained() -> None:
    trace: Trace = []
    with pytest.raises(ExceptionGroup) as caught:
        serve_until(
            Recorded("store", trace, drain=1),
            Recorded("broken", trace, fail_after=3),
            Recorded("door", trace, drain=2),
            press_at=(),
            expect_end=6,
        )
    (error,) = caught.value.exceptions
    assert isinstance(error, OSError)
    assert error.__notes__ == ["in service broken"]
    assert trace[3:] == [
        "broken ends",
        *("door drains", "door drained", "door ends", "door closed"),
        "broken closed",  # it cannot drain, nobody is there to do the work
        *("store drains", "store drained", "store ends", "store closed"),
    ]


def test_a_service_that_ends_unasked_has_failed() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        serve_until(Recorded("brief", [], end_after=2), press_at=(), expect_end=2)
    assert caught.group_contains(RuntimeError, match="service brief ended although nobody")


def test_a_service_may_end_by_itself_once_asked_to() -> None:
    serve_until(Recorded("slow", [], drain=5, end_after=3), expect_end=6)


def test_a_service_that_fails_while_it_drains_is_not_waited_for() -> None:
    trace: Trace = []
    with pytest.raises(ExceptionGroup) as caught:
        serve_until(
            Recorded("store", trace),
            Recorded("door", trace, drain=1000, fail_after=3),
            expect_end=3,
        )
    assert caught.group_contains(OSError, match="door broke")
    assert "door drained" not in trace
    assert trace[-1] == "store closed"


def test_errors_in_drain_and_close_are_told_and_stop_nothing() -> None:
    trace: Trace = []
    with pytest.raises(ExceptionGroup) as caught:
        serve_until(
            Recorded("store", trace),
            Recorded("middle", trace, fail_in="aclose"),
            Recorded("door", trace, fail_in="drain"),
        )
    assert [str(error) for error in caught.value.exceptions] == [
        "door broke in drain",
        "middle broke in aclose",
    ]
    assert "door closed" in trace
    assert trace[-1] == "store closed"


def test_a_second_press_ends_at_once() -> None:
    trace: Trace = []
    serve_until(
        Recorded("store", trace),
        Recorded("door", trace, drain=1000),
        press_at=(1, 5),
        expect_end=5,
    )
    assert trace == ["store runs", "door runs", "door drains", "store ends", "door ends"]


def test_a_press_during_the_stop_that_a_failure_caused_ends_at_once() -> None:
    trace: Trace = []
    with pytest.raises(ExceptionGroup):
        serve_until(
            Recorded("store", trace, drain=1000),
            Recorded("broken", trace, fail_after=3),
            press_at=(5,),
            expect_end=5,
        )


def test_cancelling_serve_ends_at_once() -> None:
    trace: Trace = []

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await serve(Recorded("store", trace, drain=1000), stop=StopSwitch())
        assert asyncio.get_running_loop().time() == 2

    run(main, seed=1)
    assert trace == ["store runs", "store ends"]


def test_power_loss_is_no_ordinary_failure() -> None:
    trace: Trace = []

    class Doomed:
        async def run(self) -> None:
            await asyncio.sleep(1)
            raise PowerLoss

    with pytest.raises(BaseExceptionGroup) as caught:
        serve_until(Recorded("store", trace, drain=1), Doomed(), press_at=())
    assert caught.group_contains(PowerLoss)
    assert trace == ["store runs", "store ends"]


def test_services_that_nobody_stops_are_a_deadlock_in_a_test() -> None:
    with pytest.raises(Deadlock, match=r"door waits in Recorded\.run"):
        serve_until(Recorded("door", []), press_at=())


def test_the_switch_can_be_awaited() -> None:
    async def main() -> None:
        stop = StopSwitch()
        assert not stop.pressed
        stop.press()
        await stop.wait_pressed()
        assert stop.pressed
        assert not stop.insisted
        stop.press()
        await stop.wait_insisted()
        assert stop.insisted
        stop.press()  # and a third is harmless

    run(main, seed=1)


# Signals are real, so these run on a real loop; nothing in them waits for a time.


def test_the_first_signal_drains() -> None:
    trace: Trace = []

    async def main() -> None:
        stop = StopSwitch()
        with stop_on_signals(stop):
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
            await serve(Recorded("door", trace), stop=stop)

    before = signal.getsignal(signal.SIGTERM)
    asyncio.run(main())
    assert trace == ["door runs", "door drains", "door drained", "door ends", "door closed"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_second_signal_ends_at_once_and_the_third_has_its_usual_effect() -> None:
    class Stuck:
        async def run(self) -> None:
            await asyncio.Event().wait()

        async def drain(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()

    async def main() -> None:
        stop = StopSwitch()
        with stop_on_signals(stop, (signal.SIGINT, signal.SIGUSR1)):
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGUSR1)
            await serve(Stuck(), stop=stop)
            assert stop.insisted
            assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
            assert not asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    asyncio.run(main())
