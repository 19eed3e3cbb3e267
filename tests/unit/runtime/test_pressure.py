"""The sampler asks every 100 ms, publishes the ladder and survives a broken signal."""

from __future__ import annotations

import asyncio

import pytest

from fairway.core.pressure import Ladder, PressureConfig
from fairway.errors import InvalidConfig
from fairway.runtime.clock import clock_of
from fairway.runtime.pressure import LOOP_LAG, PressureSampler, SamplingConfig
from fairway.testing import VirtualLoop, run

MS = 1_000_000


async def sample_for(sampler: PressureSampler, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await sampler.run()
    except TimeoutError:
        return


def test_signals_are_asked_at_a_steady_interval() -> None:
    asked: list[int] = []

    async def main() -> None:
        sampler = PressureSampler()
        clock = clock_of()

        def signal() -> float:
            asked.append(clock.now_ns())
            return 0.5

        sampler.add_signal("ingest", signal)
        assert sampler.ladder == Ladder()
        await sample_for(sampler, 1.05)
        assert sampler.samples == 10
        assert sampler.ladder.cause == "ingest"
        assert 0.49 < sampler.pressure < 0.5

    run(main, seed=1)
    assert asked == [n * 100 * MS for n in range(1, 11)]


def test_listeners_hear_each_sample_and_the_ladder_climbs_and_comes_down() -> None:
    ladders: list[Ladder] = []

    async def main() -> None:
        sampler = PressureSampler()
        load = {"level": 1.0, "full": True}
        sampler.add_signal("ingest", lambda: load["level"])
        sampler.add_ingest("log", lambda: bool(load["full"]))
        sampler.listen(ladders.append)
        await sample_for(sampler, 2.05)
        assert sampler.ladder.defer
        assert sampler.ladder.refuse
        sampler.remove_ingest("log")
        sampler.sample()
        assert not sampler.ladder.refuse
        sampler.remove_signal("ingest")
        sampler.remove_signal("ingest")
        await sample_for(sampler, 3)
        assert sampler.ladder.pressure < 0.01
        assert not sampler.ladder.defer

    run(main, seed=1)
    assert len(ladders) == 20 + 1 + 29  # the last deadline and the timeout fall together


def test_a_broken_signal_counts_as_saturated_and_is_named() -> None:
    async def main() -> None:
        sampler = PressureSampler(ladder_config=PressureConfig(rise=1.0, fall=1.0))
        sampler.add_signal("fine", lambda: 0.1)
        sampler.add_signal("broken", lambda: 1 / 0)
        sampler.add_ingest("odd", lambda: bool(1 / 0))
        ladder = sampler.sample()
        assert ladder.pressure == 1.0
        assert ladder.cause == "broken"
        assert not ladder.refuse
        assert sampler.broken == {"broken", "odd"}

    run(main, seed=1)


def test_names_of_signals_are_taken_once() -> None:
    sampler = PressureSampler()
    sampler.add_signal("ingest", lambda: 0.0)
    for name in ("ingest", LOOP_LAG):
        with pytest.raises(InvalidConfig):
            sampler.add_signal(name, lambda: 0.0)
    with pytest.raises(InvalidConfig):
        SamplingConfig(period_ns=0)


def test_a_blocked_loop_is_pressure_and_missed_samples_are_skipped() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        sampler = PressureSampler(
            ladder_config=PressureConfig(rise=1.0, fall=1.0),
            config=SamplingConfig(lag_full_ns=500 * MS),
        )

        def block() -> None:
            loop.now_ns += 270 * MS  # as if a callback had run for this long

        loop.call_at(0.15, block)
        ladders: list[tuple[int, Ladder]] = []
        sampler.listen(lambda ladder: ladders.append((loop.now_ns // MS, ladder)))
        await sample_for(sampler, 0.75)
        assert [at for at, _ in ladders] == [100, 420, 500, 600, 700]
        late = ladders[1][1]
        assert late.cause == LOOP_LAG
        assert late.pressure == pytest.approx(220 / 500)
        assert ladders[2][1].pressure == 0

    run(main, seed=1)


def test_a_failing_listener_ends_the_service() -> None:
    def listener(ladder: Ladder) -> None:
        raise OSError("ours")

    async def main() -> None:
        sampler = PressureSampler()
        sampler.listen(listener)
        await sampler.run()

    with pytest.raises(OSError, match="ours"):
        run(main, seed=1)
