"""What every graph here computes: three small functions after another, and the events for them.

The peers' drivers have the same ones written out, since they run in environments without us.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tick:
    symbol: str
    bid: float
    ask: float


def mid(ticks: Tick) -> float:
    return (ticks.bid + ticks.ask) / 2


def edge(mid: float) -> float:
    return mid - 100.0


def buys(edge: float) -> bool:
    return edge > 0.0


def ticks(number: int) -> list[Tick]:
    """Events made beforehand: to make one is not what is measured."""
    made = [Tick("ACME", 99.0 + at % 7, 100.0 + at % 5) for at in range(1_000)]
    return [made[at % 1_000] for at in range(number)]
