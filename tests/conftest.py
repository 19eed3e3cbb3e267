"""Campaigns: long tests that run a share in `make test` and in full in `make test-all`.

Each campaign draws a fresh seed, prints it before it starts, and reports how often each fault and
interleaving occurred. `--seed N` replays one, `--full` asks for the whole count.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

TALLIES: list[tuple[str, int, Counter[str]]] = []


@dataclass
class Campaign:
    """What a long test is told about this run: its seed, its share, and where to count events."""

    name: str
    seed: int
    full: bool
    tally: Counter[str] = field(default_factory=Counter)

    def rounds(self, *, share: int, full: int) -> int:
        """How many rounds to run: the share in `make test`, the full count in `make test-all`."""
        return full if self.full else share

    def random(self, salt: object = "") -> random.Random:
        """A random source that depends on nothing but the seed and `salt`."""
        return random.Random(f"{self.seed}/{salt}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run long campaigns in full")
    parser.addoption("--seed", type=int, default=None, help="replay a campaign with this seed")


def pytest_configure(config: pytest.Config) -> None:
    # Whoever starts us in the background may have SIGINT ignored, and so would our children.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Built on the default profile, since under CI hypothesis picks one that repeats the same
    # examples for ever. How fast the machine is decides nothing: no deadlines, no complaints.
    for name, examples in (("fairway", 100), ("fairway-full", 1_000)):
        settings.register_profile(
            name,
            parent=settings.get_profile("default"),
            max_examples=examples,
            deadline=None,
            derandomize=False,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow],
        )
    settings.load_profile("fairway-full" if config.getoption("--full") else "fairway")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with long tests come first, or one of them would keep everybody waiting at the end.

    Long are campaigns and what may take more time than other tests; then come files of many tests.
    """
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("::")[0], []).append(item)

    def first(of: list[pytest.Item]) -> tuple[bool, int]:
        return (not any(map(_is_long, of)), -len(of))

    items[:] = [item for of in sorted(tests.values(), key=first) for item in of]


def _is_long(item: pytest.Item) -> bool:
    names: list[str] = getattr(item, "fixturenames", [])
    return "campaign" in names or item.get_closest_marker("timeout") is not None


@pytest.fixture
def campaign(request: pytest.FixtureRequest) -> Campaign:
    seed = request.config.getoption("--seed")
    if seed is None:
        seed = random.SystemRandom().randrange(2**32)
    name = request.node.nodeid
    print(f"campaign {name} --seed {seed}")  # shown with a failure: the seed comes first
    made = Campaign(name, seed, bool(request.config.getoption("--full")))
    TALLIES.append((name, seed, made.tally))
    return made


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that runs a part of the tests hands what its campaigns counted to the one above."""
    told = getattr(session.config, "workeroutput", None)
    if told is not None:
        told["tallies"] = [(name, seed, dict(tally)) for name, seed, tally in TALLIES]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for name, seed, tally in getattr(node, "workeroutput", {}).get("tallies", ()):
        TALLIES.append((name, seed, Counter(tally)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not TALLIES:
        return
    terminalreporter.section("campaigns: seed and how often each event occurred")
    for name, seed, tally in TALLIES:
        counts = "  ".join(f"{event} {count:,}" for event, count in sorted(tally.items()))
        terminalreporter.write_line(f"{name}  seed {seed}  {counts}")
