"""Push events through three stages of RxPY: `reactivex_graph.py EVENTS`, in its own environment.

`on_next` of a subject is a plain call that returns when the subscriber was called, through closures
made once: no state is kept at a stage, nothing is counted, and an error ends the subscription.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version

from reactivex import operators as ops
from reactivex.subject import Subject

WARM_UP = 10_000
TIMED = 20_000


@dataclass(slots=True)
class Tick:
    symbol: str
    bid: float
    ask: float


def mid(tick: Tick) -> float:
    return (tick.bid + tick.ask) / 2


def edge(mid: float) -> float:
    return mid - 100.0


def buys(edge: float) -> bool:
    return edge > 0.0


def main(events: int) -> None:
    seen = 0

    def count(_: bool) -> None:
        nonlocal seen
        seen += 1

    ticks = [Tick("ACME", 99.0 + at % 7, 100.0 + at % 5) for at in range(1_000)]
    source: Subject[Tick] = Subject()
    source.pipe(ops.map(mid), ops.map(edge), ops.map(buys)).subscribe(count)
    emit = source.on_next

    def push(batch: list[Tick]) -> None:
        nonlocal seen
        seen = 0
        for pushed, tick in enumerate(batch, 1):
            emit(tick)
            if seen != pushed:
                raise RuntimeError(f"{seen} results of {pushed} events")

    push([ticks[at % len(ticks)] for at in range(WARM_UP)])
    batch = [ticks[at % len(ticks)] for at in range(events)]
    begin = time.perf_counter()
    push(batch)
    seconds = time.perf_counter() - begin

    now = time.perf_counter_ns
    times_ns = []
    for at in range(TIMED):
        begin_ns = now()
        emit(ticks[at % len(ticks)])
        times_ns.append(now() - begin_ns)
    times_ns.sort()
    print(
        json.dumps(
            {
                "peer": "reactivex",
                "events": events,
                "seconds": seconds,
                "events_per_s": events / seconds,
                "p50_us": times_ns[TIMED // 2] / 1e3,
                "p99_us": times_ns[TIMED * 99 // 100] / 1e3,
                "version": version("reactivex"),
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
