"""Nodes that wait or burn: async, in a thread, in a process; timeouts, and what the watchdog says.

A node with `isolation="process"` is imported by the other process: so it is a function of a
module, and what starts the app stands below `if __name__ == "__main__"`.
"""

import asyncio
import logging
import tempfile
import time

from fairway import Fairway, Graph, Source, retry

# --8<-- [start:declare]
numbers = Source("numbers", int)
slow = Graph("slow", when=numbers, inputs="sequential", on_error=retry(1, base_s=0.01))


@slow.node(timeout_s=2.0)
async def fetched(numbers: int) -> int:
    """Waits: the event loop does other things meanwhile."""
    await asyncio.sleep(0.01)
    return numbers


@slow.node(blocking=True, timeout_s=5.0)
def read(fetched: int) -> int:
    """A library that blocks: in a thread, of which there are eight."""
    time.sleep(0.01)
    return fetched


@slow.node(isolation="process", timeout_s=10.0)
def computed(read: int) -> int:
    """Burns: in a process of its own, which the timeout ends for good."""
    return sum(range(read * 1000))


# --8<-- [end:declare]

hanging = Graph("hanging", when=Source("numbers", int), on_error=retry(1, base_s=0.01))


# --8<-- [start:timeout]
@hanging.node(timeout_s=0.05)
async def hangs(numbers: int) -> int:
    await asyncio.Event().wait()
    return numbers


# --8<-- [end:timeout]

greedy = Graph("greedy", when=Source("numbers", int))


@greedy.node
def greedy_node(numbers: int) -> int:
    time.sleep(1.0)  # on the event loop, where everybody waits
    return numbers


async def main(directory: str) -> None:
    logging.getLogger("fairway.graphs").setLevel(logging.CRITICAL)  # it warns, as it should
    async with Fairway(directory) as app:
        for graph in (slow, hanging, greedy):
            await app.graphs.load(graph)
        firing = await slow.ask("numbers", 10)
        assert firing is not None
        assert firing.output == sum(range(10_000))
        # --8<-- [start:letters]
        await hanging.push("numbers", 1)
        await hanging.settled()
        (letter,) = hanging.dead_letters
        print(letter.reason)
        # --8<-- [end:letters]
        greedy.push_nowait("numbers", 1)
        # --8<-- [start:stalls]
        for stall in app.graphs.stalls:
            print(stall)
        # --8<-- [end:stalls]
        assert app.graphs.stalls


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))
