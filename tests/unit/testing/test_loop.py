"""Virtual time is exact, a seed decides everything, and waiting for ever is an error."""

from __future__ import annotations

import asyncio
import gc
import math
import random
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairway.runtime.blocking import BlockingPool
from fairway.testing import Deadlock, Livelock, NotSimulated, VirtualClock, VirtualLoop, loop, run

SECOND = 1_000_000_000
EXACT_NS = 14 * 24 * 3600 * SECOND


def here() -> VirtualLoop:
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualLoop)
    return running


# Time


def test_an_hour_passes_in_no_time() -> None:
    async def main() -> str:
        await asyncio.sleep(3600)
        assert here().now_ns == 3600 * SECOND
        assert here().time() == 3600.0
        return "done"

    before = time.monotonic()
    assert run(main) == "done"
    assert time.monotonic() - before < 60


def test_time_stands_still_while_callbacks_run() -> None:
    async def main() -> None:
        for _ in range(1000):
            await asyncio.sleep(0)
        assert here().now_ns == 0
        assert here().jumps == 0
        assert here().steps >= 1000

    run(main)


def test_floats_leave_no_drift() -> None:
    async def main() -> None:
        for tick in range(1, 1001):
            await asyncio.sleep(0.1)
            assert here().now_ns == tick * 100_000_000

    run(main)


@given(st.integers(0, EXACT_NS), st.integers(1, EXACT_NS))
@example(200_000_000, 100_000_000)  # 0.2 + 0.1 is more than 0.3 in floats
def test_deadlines_in_float_seconds_are_exact_to_the_nanosecond(now_ns: int, delay_ns: int) -> None:
    virtual = VirtualLoop()
    virtual.now_ns = now_ns
    fired: list[int] = []
    virtual.call_later(delay_ns / 1e9, lambda: fired.append(virtual.now_ns))
    virtual.call_later(delay_ns / 1e9, virtual.stop)
    virtual.run_forever()
    virtual.close()
    assert fired == [now_ns + delay_ns] or now_ns + delay_ns > EXACT_NS


@given(st.floats(0, 1e7), st.floats(0, 1e7), st.integers(0, 10**16))
def test_an_earlier_deadline_never_fires_later_and_none_fires_early(
    one: float, other: float, now_ns: int
) -> None:
    virtual = VirtualLoop()
    virtual.now_ns = now_ns
    fired: list[tuple[float, int]] = []

    def fire(delay: float) -> None:
        fired.append((delay, virtual.now_ns))

    for delay in sorted((one, other)):
        virtual.call_later(delay, fire, delay)
    virtual.call_later(1e7 + 1, virtual.stop)
    virtual.run_forever()
    virtual.close()
    assert [delay for delay, _ in fired] == sorted((one, other))
    for delay, at_ns in fired:
        noise_ns = 1e9 * 8 * math.ulp(now_ns / 1e9 + delay)
        assert at_ns - now_ns >= math.floor(delay * 1e9 - noise_ns)


@pytest.mark.parametrize("now_ns", [0, 300_000_000, 10**15, 10**17 + 1])
def test_waiting_for_a_moment_in_a_loop_always_arrives(now_ns: int) -> None:
    async def main() -> None:
        here().now_ns = now_ns
        deadline = math.nextafter(here().time(), math.inf)
        waits = 0
        while (left := deadline - here().time()) > 0:
            await asyncio.sleep(left)
            waits += 1
            assert waits < 1000

    run(main)


def test_a_sleep_of_less_than_a_nanosecond_takes_one() -> None:
    async def main() -> None:
        await asyncio.sleep(1e-12)
        assert here().now_ns == 1

    run(main)


def test_equal_deadlines_fire_in_the_order_they_were_set() -> None:
    fired: list[int] = []

    async def main() -> None:
        for number in range(100):
            here().call_at(1, fired.append, number)
        await asyncio.sleep(2)

    run(main)
    assert fired == list(range(100))


def test_a_deadline_in_the_past_fires_at_once() -> None:
    async def main() -> None:
        await asyncio.sleep(5)
        fired = asyncio.Event()
        here().call_at(1, fired.set)
        await fired.wait()
        assert here().now_ns == 5 * SECOND

    run(main)


def test_cancelled_timers_neither_fire_nor_pile_up_nor_move_time() -> None:
    async def main() -> None:
        kept = [here().call_at(5, lambda: None) for _ in range(10)]
        for _ in range(10_000):
            here().call_later(3600, pytest.fail).cancel()
        assert len(here()._timers) < 500
        await asyncio.sleep(10)
        assert here().now_ns == 10 * SECOND
        kept[0].cancel()  # long fired, so this is nothing to the loop
        assert here()._timers_cancelled <= len(here()._timers)
        for timer in [here().call_later(3600, pytest.fail) for _ in range(50)]:
            timer.cancel()

    run(main)


def test_a_timer_cancelled_by_another_of_the_same_instant_does_not_fire() -> None:
    async def main() -> None:
        first = here().call_at(1, lambda: second.cancel())
        second = here().call_at(1, pytest.fail)
        await asyncio.sleep(2)
        assert not first.cancelled()
        assert here()._timers_cancelled == 0

    run(main)


def test_the_wall_clock_jumps_and_the_other_goes_on() -> None:
    async def main() -> None:
        clock = here().clock
        assert isinstance(clock, VirtualClock)
        clock.shift_wall(-2 * SECOND)
        await asyncio.sleep(1)
        assert clock.wall_ns() == loop.WALL_START_NS - SECOND
        assert clock.now_ns() == SECOND

    run(main)


def test_the_wall_clock_starts_on_a_fixed_day() -> None:
    async def main() -> None:
        clock = here().clock
        assert isinstance(clock, VirtualClock)
        assert clock.wall_ns() == loop.WALL_START_NS
        other = VirtualClock(here(), wall_start_ns=0)
        await asyncio.sleep(1)
        assert other.wall_ns() == other.now_ns() == SECOND

    run(main)


# Ordinary asyncio code


def test_timeouts_task_groups_queues_and_locks_work() -> None:
    async def main() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
        got: list[tuple[int, float]] = []

        async def produce() -> None:
            for number in range(5):
                await queue.put(number)

        async def consume() -> None:
            for _ in range(5):
                await asyncio.sleep(1)
                got.append((await queue.get(), here().time()))

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            group.create_task(consume())
        assert got == [(number, number + 1.0) for number in range(5)]

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        assert here().time() == 35.0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(60), timeout=10)
        async with asyncio.Lock(), asyncio.timeout_at(50):
            await asyncio.sleep(4)
        assert here().time() == 49.0

    run(main)


def test_main_may_be_a_function_or_a_coroutine() -> None:
    async def main() -> int:
        return 7

    assert run(main) == run(main()) == 7


def test_tasks_left_over_are_cancelled_and_generators_closed() -> None:
    ended: list[str] = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("task")

    async def numbers() -> Any:
        try:
            yield 1
        finally:
            ended.append("generator")

    async def main() -> None:
        task = asyncio.ensure_future(background())
        async for _ in numbers():
            break
        await asyncio.sleep(1)
        assert not task.done()

    run(main)
    gc.collect()
    assert sorted(ended) == ["generator", "task"]


def test_call_soon_threadsafe_works() -> None:
    async def main() -> None:
        called = asyncio.Event()
        here().call_soon_threadsafe(called.set)
        await called.wait()

    run(main)


def test_a_closed_loop_takes_nothing_more() -> None:
    virtual = VirtualLoop()
    virtual.close()
    with pytest.raises(RuntimeError, match="closed"):
        virtual.call_later(1, print)
    with pytest.raises(RuntimeError, match="closed"):
        virtual.run_in_executor(None, print)


# What can never happen


def test_waiting_for_ever_is_a_deadlock_that_names_the_waiters() -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(stuck(), name="reader")

    with pytest.raises(Deadlock) as caught:
        run(main, seed=77)
    assert "seed 77" in str(caught.value)
    assert "reader waits in" in str(caught.value)
    assert "stuck" in str(caught.value)
    assert __file__ in str(caught.value)


def test_an_infinite_sleep_is_a_deadlock_too() -> None:
    async def main() -> None:
        await asyncio.sleep(math.inf)

    with pytest.raises(Deadlock):
        run(main)


def test_a_background_ticker_that_outlives_nobody_is_no_deadlock() -> None:
    async def tick() -> None:
        while True:  # noqa: ASYNC110  (polling is the subject)
            await asyncio.sleep(1)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100), asyncio.TaskGroup() as group:
                group.create_task(tick())

    run(main)


def test_a_ticker_hides_a_deadlock_and_a_time_limit_finds_it() -> None:
    async def tick() -> None:
        while True:  # noqa: ASYNC110  (polling is the subject)
            await asyncio.sleep(1)

    async def main(patience: float) -> None:
        ticking = asyncio.ensure_future(tick())
        await asyncio.sleep(patience)
        await asyncio.Event().wait()
        ticking.cancel()

    with pytest.raises(Deadlock, match="time limit is reached at 60000000000 ns"):
        run(main(10), limit_ns=60 * SECOND)
    with pytest.raises(Deadlock, match="nothing is scheduled"):
        run(asyncio.sleep(math.inf), limit_ns=60 * SECOND)
    run(asyncio.sleep(60), limit_ns=60 * SECOND)


def test_polling_without_time_is_a_livelock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SPIN_LIMIT", 1000)

    async def main() -> None:
        for _ in range(10):  # each instant has the whole limit
            for _ in range(900):
                await asyncio.sleep(0)
            await asyncio.sleep(1)
        while True:  # noqa: ASYNC110  (polling is the subject)
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match="10000000000 ns"):
        run(main)


@pytest.mark.parametrize("name", loop._NOT_SIMULATED)
def test_there_is_no_network(name: str) -> None:
    async def main() -> None:
        await getattr(here(), name)("x", 1)

    with pytest.raises(NotSimulated, match=name):
        run(main)


def test_streams_and_processes_fail_clearly() -> None:
    async def connect() -> None:
        await asyncio.open_connection("localhost", 1)

    async def spawn() -> None:
        await asyncio.create_subprocess_exec("true")

    for main in (connect, spawn):
        with pytest.raises(NotSimulated):
            run(main)


# Blocking calls


def test_a_blocking_call_happens_between_two_delays() -> None:
    moments: list[int] = []

    async def main() -> None:
        for _ in range(200):
            start = here().now_ns
            called = await here().run_in_executor(None, lambda: here_from_a_thread().now_ns)
            assert start <= called <= here().now_ns
            assert 1000 <= here().now_ns - start <= 2000
            moments.append(called - start)
        assert here().calls == 200

    virtual: list[VirtualLoop] = []

    def here_from_a_thread() -> VirtualLoop:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return virtual[0]

    async def begin() -> None:
        virtual.append(here())
        await main()

    run(begin, seed=3, latency_ns=(1000, 2000))
    assert len(set(moments)) > 100


def test_to_thread_starts_no_thread() -> None:
    async def main() -> threading.Thread:
        return await asyncio.to_thread(threading.current_thread)

    assert run(main) is threading.current_thread()


def test_errors_of_a_call_arrive_where_it_is_awaited() -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await here().run_in_executor(None, divmod, 1, 0)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await here().run_in_executor(None, next, iter(()))

    run(main)


def test_a_call_cancelled_before_it_began_is_withdrawn_and_later_only_its_outcome_is_lost() -> None:
    made: list[str] = []

    async def main() -> None:
        early = here().run_in_executor(None, made.append, "early")
        early.cancel()
        begun = asyncio.Event()
        late = here().run_in_executor(None, lambda: (made.append("late"), begun.set()))
        await begun.wait()
        late.cancel()
        await asyncio.sleep(1)
        assert late.cancelled()

    run(main, seed=1, latency_ns=(10_000_000, 10_000_000))
    assert made == ["late"]


def test_a_device_inside_a_call_can_make_it_last_longer() -> None:
    async def main() -> None:
        virtual = here()
        await virtual.run_in_executor(None, virtual.spend_ns, 5 * SECOND)
        assert virtual.now_ns == 5 * SECOND
        with pytest.raises(RuntimeError, match="inside a blocking call"):
            virtual.spend_ns(1)

    run(main, latency_ns=(0, 0))


def test_latency_must_be_a_range() -> None:
    with pytest.raises(ValueError, match="latency_ns"):
        VirtualLoop(latency_ns=(2, 1))


# Seeds


async def _crowd(trace: list[object]) -> None:
    """Workers that race for a pool, a lock and a queue; writes down everything they see."""
    virtual = here()
    pool = BlockingPool(3)
    lock = asyncio.Lock()

    async def worker(number: int) -> None:
        for turn in range(5):
            await pool.run(trace.append, ("call", number, turn, virtual.now_ns))
            async with lock:
                trace.append(("lock", number, turn, virtual.now_ns))
                await asyncio.sleep(virtual.random.random() / 1000)

    async def victim(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            task = asyncio.current_task()
            trace.append(("cancelled", number, task.get_name() if task else None))

    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(worker(number))
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(30):
                group.create_task(victim(number))
            await asyncio.sleep(0)
            raise OSError("end")
    except* OSError:
        pass
    trace.append((virtual.now_ns, virtual.steps, virtual.jumps, virtual.calls))


def crowd(seed: int, *, shuffle: bool = False) -> list[object]:
    trace: list[object] = []
    ballast = [object() for _ in range(random.randrange(1000))]  # so that addresses differ
    run(_crowd(trace), seed=seed, shuffle=shuffle, quiet=True)
    del ballast
    return trace


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_same_seed_gives_the_same_run_event_for_event(shuffle: bool) -> None:
    for seed in range(10):
        assert crowd(seed, shuffle=shuffle) == crowd(seed, shuffle=shuffle)


def test_the_same_seed_gives_the_same_run_in_another_process() -> None:
    script = (
        f"import sys, hashlib; sys.path[:0] = {sys.path!r}\n"
        "import importlib.util as u\n"
        f"spec = u.spec_from_file_location('twin', {__file__!r})\n"
        "twin = u.module_from_spec(spec); spec.loader.exec_module(twin)\n"
        "print(hashlib.sha256(repr(twin.crowd(5)).encode()).hexdigest())\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        for _ in range(3)
    }
    assert len(digests) == 1


def test_different_seeds_interleave_differently() -> None:
    orders = {
        tuple(event[:3] for event in crowd(seed)[:-1] if isinstance(event, tuple))
        for seed in range(30)
    }
    assert len(orders) == 30


def test_shuffling_permutes_timers_of_one_instant_and_nothing_else() -> None:
    def order(seed: int, *, shuffle: bool) -> tuple[list[int], list[int], list[int]]:
        timers: list[int] = []
        soon: list[int] = []
        latencies: list[int] = []

        async def main() -> None:
            for number in range(20):
                here().call_at(1, timers.append, number)
                here().call_soon(soon.append, number)
            await asyncio.sleep(2)
            for _ in range(5):
                await here().run_in_executor(None, int)
                latencies.append(here().now_ns)

        run(main, seed=seed, shuffle=shuffle, quiet=True)
        return timers, soon, latencies

    plain, shuffled = order(1, shuffle=False), order(1, shuffle=True)
    assert plain[0] == list(range(20)) != shuffled[0]
    assert sorted(shuffled[0]) == list(range(20))
    assert plain[1] == shuffled[1] == list(range(20))  # call_soon keeps asyncio's promise
    assert plain[2] == shuffled[2]
    assert order(2, shuffle=True)[0] != shuffled[0]


def test_a_fresh_seed_is_drawn_and_printed_before_anything_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def main() -> tuple[int, str]:
        return here().seed, capsys.readouterr().err

    seeds = set()
    for _ in range(3):
        seed, printed = run(main)
        assert printed == f"fairway.testing: seed {seed}\n"
        seeds.add(seed)
    assert len(seeds) == 3
    assert run(main, seed=5, quiet=True) == (5, "")


def test_a_failure_carries_its_seed() -> None:
    async def main() -> None:
        raise OSError("broke")

    with pytest.raises(OSError, match="broke") as caught:
        run(main, seed=99)
    assert "seed=99" in caught.value.__notes__[0]


def test_the_tests_own_random_source_is_seeded_and_apart() -> None:
    async def main(draws: int) -> tuple[float, int]:
        drawn = [here().random.random() for _ in range(draws)]
        await here().run_in_executor(None, int)
        return drawn[0], here().now_ns

    assert run(main(1), seed=4) == run(main(5), seed=4)
    assert run(main(1), seed=4) != run(main(1), seed=5)
