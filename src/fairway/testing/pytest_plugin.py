"""Fixtures for pytest: put `pytest_plugins = ["fairway.testing.pytest_plugin"]` in a conftest.

    def test_pricing(graph_kit):
        async def play(kit):
            await kit.push(pricing, "quotes", Quote(99, 101))
            await kit.expect(pricing, 100.0)

        graph_kit(pricing, play)

Each test gets a fresh seed, which pytest shows with a failure. `FAIRWAY_SEED=7 pytest` plays that
one again; so does `pytest --fairway-seed 7`, if the conftest is the one at the root.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Protocol

import pytest

from fairway.settings import seed_of
from fairway.testing.graphs import run_graph

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairway.app import Fairway
    from fairway.graphs.graph import Graph
    from fairway.testing.graphs import GraphsUnderTest

SEED = "--fairway-seed"


class PlayGraph(Protocol):
    """Plays with a graph, or the graphs of an app, on virtual time."""

    def __call__(
        self, graph_or_app: Graph | Fairway, play: Callable[[GraphsUnderTest], Awaitable[None]], /
    ) -> None: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(SEED, type=int, default=None, help="the seed of every test with fairway_seed")


@pytest.fixture
def fairway_seed(request: pytest.FixtureRequest) -> int:
    """A fresh seed, or the one that the command line or the environment asks for."""
    seed = seed_of(request.config.getoption(SEED, default=None))
    if seed is None:
        seed = random.SystemRandom().randrange(2**32)
    print(f"fairway: play this again with FAIRWAY_SEED={seed}")
    return seed


@pytest.fixture
def graph_kit(fairway_seed: int) -> PlayGraph:
    """`run_graph` with a fresh seed."""

    def play_graph(
        graph_or_app: Graph | Fairway, play: Callable[[GraphsUnderTest], Awaitable[None]], /
    ) -> None:
        run_graph(graph_or_app, play, seed=fairway_seed)

    return play_graph
