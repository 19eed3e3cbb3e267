"""The one lifecycle: opened, then admission ends, what was accepted is finished, all is closed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from fairway.runtime.lifecycle import Lifecycle
from fairway.testing import PowerLoss, run

Trace = list[str]


class Recorded(Lifecycle):
    """Writes down what happens to it; fails where it is told to."""

    def __init__(
        self,
        name: str,
        trace: Trace,
        *,
        drain: float = 0,
        fail_after: float | None = None,
        fail_in: str = "",
        error: BaseException | None = None,
    ) -> None:
        self.name = name
        self._trace = trace
        self._drain = drain
        self._fail_after = fail_after
        self._fail_in = fail_in
        self._error = error or OSError(f"{name} broke")

    async def open(self) -> None:
        self.spawn(self._serve(), f"{self.name}-service")
        await asyncio.sleep(0)
        self._check("open")
        self._trace.append(f"{self.name} opened")

    def stop_admitting(self) -> None:
        self._trace.append(f"{self.name} admits nothing")
        self._check("stop_admitting")

    async def drain(self) -> None:
        await asyncio.sleep(self._drain)
        self._check("drain")
        self._trace.append(f"{self.name} drained, cut short: {self.cut_short}")

    async def aclose(self) -> None:
        self._check("aclose")
        self._trace.append(f"{self.name} closed")

    async def _serve(self) -> None:
        try:
            if self._fail_after is not None:
                await asyncio.sleep(self._fail_after)
                raise self._error
            await asyncio.Event().wait()
        finally:
            self._trace.append(f"{self.name} service ended")

    def _check(self, step: str) -> None:
        if step == self._fail_in:
            raise self._error


def live(*those: Recorded, last: float = 10) -> None:
    """Enter them one in the other for so long, on virtual time."""

    async def main() -> None:
        try:
            async with AsyncExitStack() as stack:
                for each in those:
                    await stack.enter_async_context(each)
                await asyncio.sleep(last)
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}, "a task was left behind"

    run(main, seed=1)


def test_the_steps_come_in_order_and_what_stands_on_another_ends_first() -> None:
    trace: Trace = []
    live(Recorded("log", trace, drain=1), Recorded("topics", trace, drain=5))
    assert trace == [
        "log opened",
        "topics opened",
        "topics admits nothing",
        "topics drained, cut short: False",
        "topics service ended",
        "topics closed",
        "log admits nothing",
        "log drained, cut short: False",
        "log service ended",
        "log closed",
    ]


LEAVING = ["admits nothing", "drained, cut short: False", "service ended", "closed"]


@pytest.mark.parametrize(
    ("step", "missing"),
    [
        ("stop_admitting", None),  # which fails after it has written down that it came
        ("drain", "drained, cut short: False"),
        ("aclose", "closed"),
    ],
)
def test_a_step_that_fails_keeps_no_later_one_from_happening(
    step: str, missing: str | None
) -> None:
    trace: Trace = []
    with pytest.raises(OSError, match="topics broke"):
        live(Recorded("log", trace), Recorded("topics", trace, fail_in=step))
    assert trace == [
        "log opened",
        "topics opened",
        *(f"topics {each}" for each in LEAVING if each != missing),
        "log admits nothing",
        "log drained, cut short: True",
        "log service ended",
        "log closed",
    ]


def test_of_two_steps_that_fail_the_later_one_tells_of_the_earlier() -> None:
    class Twice(Lifecycle):
        def stop_admitting(self) -> None:
            raise OSError("the first")

        async def drain(self) -> None:
            raise OSError("the second")

    async def main() -> None:
        with pytest.raises(OSError, match="the second") as caught:
            async with Twice():
                pass
        assert str(caught.value.__context__) == "the first"

    run(main, seed=1)


def test_one_that_does_not_open_leaves_no_service_behind_and_is_closed() -> None:
    trace: Trace = []
    with pytest.raises(OSError, match="topics broke"):
        live(Recorded("log", trace), Recorded("topics", trace, fail_in="open"))
    assert trace[1:3] == ["topics service ended", "topics closed"]
    assert trace[-1] == "log closed"


def test_a_service_that_cannot_begin_is_why_it_does_not_open() -> None:
    class Listening(Lifecycle):
        async def open(self) -> None:
            self.spawn(self._listen(), "listening")
            await asyncio.Event().wait()

        async def _listen(self) -> None:
            raise OSError("the port is taken")

    async def main() -> None:
        with pytest.raises(OSError, match="the port is taken"):
            await Listening().__aenter__()

    run(main, seed=1)


def test_a_service_that_fails_ends_whoever_entered_and_its_error_leaves() -> None:
    trace: Trace = []
    with pytest.raises(ExceptionGroup) as caught:
        live(Recorded("log", trace), Recorded("topics", trace, fail_after=3), last=1000)
    assert caught.group_contains(OSError, match="topics broke")
    assert trace[-1] == "log closed"
    assert "topics drained, cut short: True" in trace


def test_a_service_that_fails_during_the_drain_is_not_waited_for() -> None:
    trace: Trace = []
    with pytest.raises(ExceptionGroup) as caught:
        live(Recorded("topics", trace, drain=1000, fail_after=13))
    assert caught.group_contains(OSError, match="topics broke")
    assert not any("drained" in each for each in trace)
    assert trace[-1] == "topics closed"


def test_a_cancellation_during_the_drain_ends_at_once_and_closes() -> None:
    trace: Trace = []

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2), Recorded("topics", trace, drain=1000):
                pass
        assert asyncio.get_running_loop().time() == 2

    run(main, seed=1)
    assert trace[-2:] == ["topics service ended", "topics closed"]


def test_power_loss_is_no_ordinary_failure() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        live(Recorded("topics", [], fail_after=1, error=PowerLoss()))
    assert caught.group_contains(PowerLoss)


def test_a_chore_may_end_by_itself() -> None:
    done: Trace = []

    class Chores(Lifecycle):
        async def chore(self) -> None:
            done.append("once")

    async def main() -> None:
        async with Chores() as chores:
            await chores.spawn(chores.chore(), "chore")
            assert not chores._tasks

    run(main, seed=1)
    assert done == ["once"]
