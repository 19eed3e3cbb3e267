"""Watch a log: snapshots for a person, series for a monitoring system.

Run it with `python examples/observe_log.py`.
"""

import asyncio
import tempfile

from fairway import Log, wal_at
from fairway.runtime.telemetry import Distribution, Series, Telemetry


# --8<-- [start:statistics]
def describe(log: Log) -> str:
    writer, reader = log.statistics()
    deepest = max(writer.depths, key=lambda partition: writer.depths[partition], default=None)
    return (
        f"{writer.entries} entries in {writer.groups} groups,"
        f" {writer.syncs_per_entry:.4f} syncs per entry,"
        f" {writer.depth} waiting, deepest lane {deepest},"
        f" {writer.refused} refused, {writer.failed} failed, {reader.reads} reads"
    )


# --8<-- [end:statistics]


# --8<-- [start:telemetry]
def render(series: Series) -> str:
    """One line for each series; an exporter would write its own format here."""
    if isinstance(series.value, Distribution):
        median = quantile(series.value, 0.5)
        return f"{series.name:30} {series.value.count:8} values, half of them up to {median:,}"
    return f"{series.name:30} {series.value:8}"


def quantile(values: Distribution, share: float) -> float:
    """An upper bound: the bound of the bucket in which the share is reached."""
    left = share * values.count
    for bound, count in zip((*values.bounds, float("inf")), values.counts, strict=True):
        left -= count
        if left <= 0:
            return bound
    return float("inf")


# --8<-- [end:telemetry]


# --8<-- [start:verify]
async def count_entries(log: Log) -> int:
    return sum([entries async for _, entries in log.verify()])


# --8<-- [end:verify]


async def main(directory: str) -> None:
    telemetry = Telemetry()
    async with Log(wal_at(directory), telemetry=telemetry) as log:
        accepted = [log.append(number % 20, b"hello") for number in range(2000)]
        print(describe(log))
        for each in accepted:
            await each
        await log.read(7)
        print(describe(log))
        for series in telemetry.snapshot():
            print(render(series))
        assert await count_entries(log) == 2000


with tempfile.TemporaryDirectory() as directory:
    asyncio.run(main(directory))
