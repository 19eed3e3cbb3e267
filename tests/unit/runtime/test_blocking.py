"""The pool bounds threads and waiters, and never loses count, whoever is cancelled when."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import TYPE_CHECKING

import pytest
import uvloop

from fairway.errors import Backpressure, Closing, InvalidConfig
from fairway.runtime.blocking import BlockingPool, BusyMeter
from fairway.runtime.turn import TURN
from fairway.testing import PowerLoss, VirtualLoop, run

if TYPE_CHECKING:
    from collections.abc import Callable

MS = 1_000_000


def virtual_loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


# On virtual time


def test_results_and_errors_come_back() -> None:
    async def main() -> None:
        async with BlockingPool(1) as pool:
            assert await pool.run(divmod, 7, 2) == (3, 1)
            with pytest.raises(ZeroDivisionError):
                await pool.run(divmod, 7, 0)
            with pytest.raises(RuntimeError, match="StopIteration"):
                await pool.run(next, iter(()))
            assert pool.statistics().completed == 3

    run(main, seed=1)


def test_at_most_threads_calls_run_at_once_in_order_of_arrival() -> None:
    begun: list[int] = []
    busy: list[int] = []

    async def main() -> None:
        pool = BlockingPool(3, queue_limit=100)

        def call(number: int) -> None:
            begun.append(number)
            busy.append(pool.statistics().busy)

        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(pool.run(call, number))
        await pool.aclose()

    run(main, seed=5, latency_ns=(MS, MS))
    assert sorted(begun) == list(range(50))
    assert max(busy) == 3
    # Three at a time may overtake each other, but nobody is passed by a call three places behind.
    assert all(abs(place - number) < 3 for place, number in enumerate(begun))


def test_a_full_queue_refuses_at_once_and_says_when_to_retry() -> None:
    async def main() -> None:
        pool = BlockingPool(2, queue_limit=3, name="disk")
        made: list[int] = []
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(pool.run(made.append, number))
            await asyncio.sleep(0)
            with pytest.raises(Backpressure) as early:
                await pool.run(made.append, 99)
        assert early.value.lane == "disk"
        assert early.value.depth == 3
        assert early.value.retry_after_ns >= MS  # nothing measured yet: a floor
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(pool.run(made.append, number))
            await asyncio.sleep(0)
            with pytest.raises(Backpressure) as late:
                await pool.run(made.append, 99)
        assert late.value.retry_after_ns == 20 * MS  # a call takes 40 ms and there are 2 threads
        assert made.count(99) == 0
        assert pool.statistics().refused == 2

    run(main, seed=1, latency_ns=(40 * MS, 40 * MS))


def test_no_queue_means_refusal_when_all_threads_are_busy() -> None:
    async def main() -> None:
        pool = BlockingPool(1, queue_limit=0)
        async with asyncio.TaskGroup() as group:
            group.create_task(pool.run(int))
            await asyncio.sleep(0)
            with pytest.raises(Backpressure):
                await pool.run(int)
        assert await pool.run(int) == 0

    run(main, seed=1)


def test_cancelling_a_running_call_keeps_its_thread_busy_until_it_ends() -> None:
    async def main() -> None:
        pool = BlockingPool(1)
        made: list[str] = []
        async with asyncio.TaskGroup() as group:
            first = group.create_task(pool.run(made.append, "first"))
            second = group.create_task(pool.run(made.append, "second"))
            await asyncio.sleep(0.001)
            first.cancel()
            await asyncio.sleep(0.001)
            assert first.cancelled()
            statistics = pool.statistics()
            assert (statistics.busy, statistics.waiting, statistics.abandoned) == (1, 1, 1)
            await second
        assert made == ["first", "second"]
        assert pool.statistics().completed == 2
        await pool.aclose()

    run(main, seed=1, latency_ns=(10 * MS, 10 * MS))


def test_an_abandoned_call_that_fails_troubles_nobody() -> None:
    async def main() -> None:
        pool = BlockingPool(1)
        task = asyncio.ensure_future(pool.run(divmod, 1, 0))
        await asyncio.sleep(0.001)
        task.cancel()
        await pool.aclose()
        assert task.cancelled()
        assert pool.statistics().completed == 1

    run(main, seed=1, latency_ns=(10 * MS, 10 * MS))


def test_cancelling_a_waiting_call_withdraws_it() -> None:
    async def main() -> None:
        pool = BlockingPool(1, queue_limit=1)
        made: list[str] = []
        async with asyncio.TaskGroup() as group:
            group.create_task(pool.run(made.append, "first"))
            waiting = group.create_task(pool.run(made.append, "second"))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.sleep(0)
            assert pool.statistics().waiting == 0
            await pool.run(made.append, "third")  # there is room again
        assert made == ["first", "third"]

    run(main, seed=1)


@pytest.mark.parametrize("just_before_the_pool_hears_of_it", [False, True])
def test_a_call_cancelled_as_its_turn_comes_is_not_made(
    just_before_the_pool_hears_of_it: bool,
) -> None:
    async def main() -> None:
        loop = virtual_loop()
        pool = BlockingPool(1)
        made: list[str] = []
        async with asyncio.TaskGroup() as group:
            group.create_task(pool.run(made.append, "first"))
            waiting = group.create_task(pool.run(made.append, "second"))
            # Timers of one instant fire in the order they were set, so this one comes before or
            # after the end of the first call, and either way before the pool has looked.
            if just_before_the_pool_hears_of_it:
                loop.call_at_ns(10 * MS - 1, loop.call_at_ns, 10 * MS, waiting.cancel)
            else:
                loop.call_at_ns(10 * MS, waiting.cancel)
        assert made == ["first"]
        assert pool.statistics().busy == pool.statistics().waiting == 0
        await pool.aclose()

    run(main, seed=1, latency_ns=(10 * MS, 10 * MS))


def test_closing_finishes_what_was_accepted_and_refuses_the_rest() -> None:
    async def main() -> None:
        pool = BlockingPool(1)
        made: list[int] = []
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(pool.run(made.append, number))
            await asyncio.sleep(0)
            closing = group.create_task(pool.aclose())
            await asyncio.sleep(0)
            with pytest.raises(Closing):
                await pool.run(made.append, 99)
            assert not closing.done()
        assert made == [0, 1, 2, 3, 4]
        await pool.aclose()  # again, harmless

    run(main, seed=1)


def test_a_loop_that_cannot_start_a_thread_fails_the_call_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        pool = BlockingPool(1)

        def no_thread(*args: object) -> None:
            raise RuntimeError("can't start new thread")

        for works in (False, True, False):
            with monkeypatch.context() as patch:
                if works:
                    assert await pool.run(int) == 0
                    continue
                patch.setattr(virtual_loop(), "run_in_executor", no_thread)
                with pytest.raises(RuntimeError, match="new thread"):
                    await pool.run(int)
        await pool.aclose()

    run(main, seed=1)


def test_power_loss_reaches_the_caller() -> None:
    def call() -> None:
        raise PowerLoss

    async def main() -> None:
        async with BlockingPool(1) as pool:
            await pool.run(call)

    with pytest.raises(PowerLoss):
        run(main, seed=1)


def test_busy_ratio_is_the_share_of_thread_time_over_the_window() -> None:
    async def main() -> None:
        pool = BlockingPool(2, window_ns=100 * MS)
        assert pool.statistics().busy_ratio == 0
        async with asyncio.TaskGroup() as group:
            group.create_task(pool.run(int))
            await asyncio.sleep(0.05)
            assert pool.statistics().busy_ratio == pytest.approx(0.25)  # 50 of 2 x 100 ms
            await asyncio.sleep(0.45)
            assert pool.statistics().busy_ratio == pytest.approx(0.5)
            assert pool.statistics().busy == 1
        await asyncio.sleep(0.5)
        assert pool.statistics().busy_ratio == 0

    run(main, seed=1, latency_ns=(1000 * MS, 1000 * MS))


def test_the_meter_prorates_the_window_before() -> None:
    meter = BusyMeter(1, 100, now_ns=0)
    meter.change(1, 0)
    meter.change(0, 100)
    assert meter.ratio(100) == 1.0
    assert meter.ratio(150) == 0.5
    assert meter.ratio(200) == 0.0
    meter.change(1, 1000)
    assert meter.ratio(1030) == 0.3
    assert meter.ratio(5000) == 1.0


@pytest.mark.parametrize(("threads", "limit", "window"), [(0, 1, 1), (1, -1, 1), (1, 1, 0)])
def test_impossible_sizes_are_refused(threads: int, limit: int, window: int) -> None:
    with pytest.raises(InvalidConfig):
        BlockingPool(threads, queue_limit=limit, window_ns=window)


# On real threads; events, never sleeps


LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


@LOOPS
def test_calls_run_in_at_most_that_many_real_threads(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    together = threading.Barrier(2, timeout=30)
    seen: set[str] = set()

    def call() -> None:
        seen.add(threading.current_thread().name)
        together.wait()  # passes only if two calls are inside at once

    async def main() -> None:
        async with BlockingPool(2, name="pair") as pool, asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(pool.run(call))
            await asyncio.sleep(0)
            assert pool.statistics().busy == 2
            assert pool.statistics().waiting == 18

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    assert len(seen) == 2
    assert all(name.startswith("pair") for name in seen)
    assert not any(thread.name in seen for thread in threading.enumerate())  # closed and joined


@LOOPS
def test_cancelled_real_call_goes_on_and_gives_its_slot_back(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        entered.set()
        assert leave.wait(30)
        left.set()

    async def main() -> None:
        pool = BlockingPool(1)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(pool.run(call))
            await asyncio.sleep(0)
            assert entered.wait(30)
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()
            assert pool.statistics().busy == 1
            second = group.create_task(pool.run(left.is_set))
            await asyncio.sleep(0)
            assert pool.statistics().waiting == 1
            leave.set()
            assert await second  # ran after the abandoned call had ended
        await pool.aclose()
        assert pool.statistics().completed == 2

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


def test_one_hand_over_to_the_loop_per_call() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        hand_over = loop.call_soon_threadsafe
        counted: list[None] = []

        def counting(*args: object, **options: object) -> asyncio.Handle:
            counted.append(None)
            return hand_over(*args, **options)  # type: ignore[arg-type]

        loop.call_soon_threadsafe = counting  # type: ignore[method-assign]
        async with BlockingPool(2) as pool, asyncio.TaskGroup() as group:
            for _ in range(100):
                group.create_task(pool.run(int))
        return len(counted)

    assert asyncio.run(main()) == 100


def test_nothing_of_a_call_that_has_ended_is_left_to_the_collector() -> None:
    """What was written is often much, and stays in memory for as long as nothing is collected."""

    class Written:
        pass

    async def main() -> None:
        released = threading.Event()
        async with BlockingPool(1) as pool:
            written = Written()
            kept = weakref.ref(written)
            writing = asyncio.ensure_future(pool.run(lambda _: released.wait(), written))
            await asyncio.sleep(0)
            assert pool.statistics().busy == 1
            released.set()
            assert await writing
            del written, writing
        assert kept() is None

    gc.disable()
    try:
        uvloop.run(main())
    finally:
        gc.enable()


def test_no_thread_exists_under_the_virtual_loop() -> None:
    before = threading.active_count()

    async def main() -> set[threading.Thread]:
        async with BlockingPool(4) as pool:
            threads = {await pool.run(threading.current_thread) for _ in range(20)}
            assert threading.active_count() == before
            return threads

    assert run(main, seed=1) == {threading.current_thread()}


def test_the_loop_pauses_for_a_thread_only_while_a_call_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paused: list[int] = []
    monkeypatch.setattr("fairway.runtime.blocking.pause_for_threads", lambda: paused.append(1))
    release = threading.Event()

    async def real() -> None:
        async with BlockingPool(1) as pool:
            assert pool.yield_to_threads(7) == 7 + TURN.thread_pause_every_ns
            assert not paused, "nobody to pause for"
            call = asyncio.ensure_future(pool.run(release.wait, 30))
            await asyncio.sleep(0)
            assert pool.yield_to_threads(0) > TURN.thread_pause_every_ns
            assert len(paused) == 1
            release.set()
            assert await call

    async def virtual() -> None:
        async with BlockingPool(1) as pool:
            call = asyncio.ensure_future(pool.run(release.is_set))
            await asyncio.sleep(0)
            assert pool.yield_to_threads(7) == 7 + TURN.thread_pause_every_ns
            await call

    asyncio.run(real())
    run(virtual, seed=1)
    assert len(paused) == 1, "on virtual time there is no thread"


def test_a_turn_ends_however_soon_the_calls_end_that_are_started_in_it() -> None:
    """Whoever hears of one starts the next, which is over before it returns."""
    heard = 0

    async def main() -> None:
        async with BlockingPool(1) as pool:

            def on_done(_: object, error: BaseException | None) -> None:
                nonlocal heard
                assert error is None
                heard += 1
                if heard < 100:
                    start()

            def start() -> None:
                pool.submit(on_done, int)
                while not pool.ended:
                    pass  # its thread is about to say so

            start()
            pool.collect()
            assert heard == 1
            turns = 0
            while heard < 100:
                await asyncio.sleep(0)
                turns += 1
            assert turns >= 40, "a few were heard of in each turn"

    asyncio.run(main())
