"""Nodes that must not run on the loop: in threads, in processes; and one that should not have."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

from fairway import Fairway, FiringFailed, Graph
from tests.support import graph_nodes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


def run(
    place: Path, function: Any, play: Callable[[Fairway, Graph], Awaitable[None]], **options: Any
) -> None:
    async def main() -> None:
        app = Fairway(place)
        graph = app.graph("nodes", when=app.source("number", int), on_error="dead_letter")
        graph.add(function, name="node", **options)
        async with app:
            await play(app, graph)

    asyncio.run(main())


async def failure(graph: Graph) -> str:
    try:
        await graph.ask("number", 1)
    except FiringFailed as failed:
        return str(failed)
    raise AssertionError("it did not fail")


def test_a_node_runs_in_a_warm_process(tmp_path: Path) -> None:
    async def play(app: Fairway, graph: Graph) -> None:
        found = [await graph.ask("number", number) for number in (1, 2)]
        (one, first), (two, second) = [each.output for each in found if each is not None]
        assert (one, two) == (2, 4)
        assert first == second != os.getpid()

    run(tmp_path, graph_nodes.doubled, play, isolation="process")


def test_a_process_that_dies_fails_the_firing_and_is_replaced(tmp_path: Path) -> None:
    async def play(app: Fairway, graph: Graph) -> None:
        for _ in range(2):
            assert "exit status 7" in await failure(graph)
        assert len(graph.dead_letters) == 2

    run(tmp_path, graph_nodes.dying, play, isolation="process")


def test_a_process_that_hangs_is_killed_when_its_time_is_up(tmp_path: Path) -> None:
    async def play(app: Fairway, graph: Graph) -> None:
        assert "it took longer than 0.5 s" in await failure(graph)
        warm = app.graphs._node_runner._warm
        assert warm is not None
        assert not warm._busy

    run(tmp_path, graph_nodes.hanging, play, isolation="process", timeout_s=0.5)


def test_a_blocking_node_runs_in_a_thread_and_the_loop_goes_on(tmp_path: Path) -> None:
    started = asyncio.Event()
    go = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    def slow(number: int) -> bool:
        loops[0].call_soon_threadsafe(started.set)
        return go.wait(30)

    async def play(app: Fairway, graph: Graph) -> None:
        loops.append(asyncio.get_running_loop())
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(graph.ask("number", 1))
            await started.wait()  # the loop runs while the node waits for it
            go.set()
        firing = asked.result()
        assert firing is not None
        assert firing.output is True

    run(tmp_path, slow, play, blocking=True)


def test_the_watchdog_names_a_node_that_blocks_the_loop(tmp_path: Path) -> None:
    async def play(app: Fairway, graph: Graph) -> None:
        await graph.ask("number", 1)
        (told,) = app.graphs.stalls
        assert "by node 'node' of graph 'nodes'" in told
        assert "blocking=True" in told

    run(tmp_path, graph_nodes.blocking, play)
