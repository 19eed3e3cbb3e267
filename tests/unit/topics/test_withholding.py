"""What waits on the governor's orders is not late, and does not keep the pressure up."""

from __future__ import annotations

import asyncio

from fairway.core.priority import WEIGHTS, Band
from fairway.core.ready import Ready
from fairway.runtime.pressure import PressureSampler
from fairway.testing import run
from fairway.topics.withholding import Withholding
from fairway.wire.topics import TopicPatch
from tests.support.topics import PLAIN, Notes, new, topics_on


def test_a_band_remembers_how_long_it_got_no_turns() -> None:
    ready: Ready[str, Band] = Ready(WEIGHTS)
    withheld = Withholding(ready)
    withheld.only({Band.B0, Band.B1}, 100)
    withheld.only({Band.B0}, 130)
    withheld.only({Band.B0, Band.B1}, 150)
    assert (withheld.held_ns(Band.B0, 160), withheld.held_ns(Band.B1, 160)) == (60, 40)
    withheld.only(set(), 170)
    assert (withheld.held_ns(Band.B0, 999), withheld.held_ns(Band.B1, 999)) == (70, 50)
    assert withheld.held_ns(Band.B4, 999) == 0


def test_what_is_withheld_gets_no_turns_and_does_not_count() -> None:
    ready: Ready[str, Band] = Ready(WEIGHTS)
    withheld = Withholding(ready)
    ready.mark("low", Band.B0, 1)
    ready.mark("high", Band.B4, 1)
    withheld.only({Band.B0}, 2)
    assert (withheld.depth(), Band.B0 in withheld, ready.take()) == (1, True, "high")
    assert (withheld.depth(), ready.take()) == (0, None)
    withheld.only(set(), 3)
    assert (withheld.depth(), Band.B0 in withheld, ready.take()) == (1, False, "low")


def test_pressure_goes_when_its_cause_is_gone_though_the_load_goes_on() -> None:
    """The window in which frames are gathered, and the wait of a band that is withheld, are longer
    than the delay that counts as full pressure: they must not count as such."""

    async def main() -> None:
        sampler = PressureSampler()
        spike = [0.0]
        sampler.add_signal("spike", lambda: spike[0])
        async with topics_on(sampler=sampler) as topics:
            await topics.put("middle", TopicPatch())
            await topics.put("low", TopicPatch(priority=-1000))
            for name in ("middle", "low"):
                topics.watch(topics.get(name), PLAIN, Notes(), 0)

            async def load(name: str, every_s: float) -> None:
                while True:
                    await topics.append(name, new(1))
                    await asyncio.sleep(every_s)

            async with asyncio.TaskGroup() as group:
                loads = [
                    group.create_task(load("middle", 0.005)),
                    group.create_task(load("low", 1)),
                ]
                await asyncio.sleep(2)
                spike[0] = 1.0
                await asyncio.sleep(2)
                assert sampler.ladder.defer
                spike[0] = 0.0
                await asyncio.sleep(5)
                ladder = sampler.ladder
                assert (ladder.defer, ladder.coalesce_window_ns) == (False, 0), ladder
                for one in loads:
                    one.cancel()

    run(main, seed=1, quiet=True, limit_ns=10**12)


def test_topics_that_are_withheld_are_no_depth_that_keeps_them_withheld() -> None:
    async def main() -> None:
        sampler = PressureSampler()
        spike = [0.0]
        sampler.add_signal("spike", lambda: spike[0])
        async with topics_on(sampler=sampler) as topics:
            names = [f"low-{number}" for number in range(300)]
            for name in names:
                await topics.put(name, TopicPatch(priority=-1000))
                topics.watch(topics.get(name), PLAIN, Notes(), 0)
            spike[0] = 1.0
            await asyncio.sleep(2)
            assert sampler.ladder.defer
            for name in names:
                await topics.append(name, new(1))
            spike[0] = 0.0
            await asyncio.sleep(3)  # they would leave B0 by their age after 10
            assert not sampler.ladder.defer

    run(main, seed=1, quiet=True, limit_ns=10**12)
