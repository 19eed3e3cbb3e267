"""Jobs and workflows that start by the clock, on virtual time."""

from datetime import UTC, datetime
from typing import Any

from fairway import Fairway
from fairway.jobs.cron import Cron
from fairway.jobs.schedule import Catchup, CatchupConfig
from fairway.testing import JobsUnderTest, run_jobs

app = Fairway(jobs="memory:")
told: list[str] = []

# --8<-- [start:declare]
nightly = app.workflow("nightly", cron="30 2 * * *", zone="Europe/Berlin", context={"full": True})


@nightly.task
async def extract(full: bool, scheduled_at_ms: int) -> None:
    told.append(f"nightly for {datetime.fromtimestamp(scheduled_at_ms / 1000, UTC):%H:%M} UTC")


@app.job
async def ping(host: str) -> None:
    told.append(f"ping {host}")


app.schedule("ping-db", ping, every_s=6 * 3600, values={"host": "db"})
# --8<-- [end:declare]


# --8<-- [start:catchup]
@app.job
async def bill() -> None: ...


app.schedule("bills", bill, cron="@monthly", catchup="run_all")
app.schedule(
    "bills-at-most-3",
    bill,
    cron="@monthly",
    catchup=CatchupConfig(policy=Catchup.RUN_ALL, runs_max=3),
)
# --8<-- [end:catchup]


# --8<-- [start:trigger]
inbox = ["a.csv", "a.csv", "b.csv"]
importing = app.workflow("importing")


@importing.task
async def load(file: str) -> None:
    told.append(f"loads {file}")


@app.trigger(importing, every_s=3600)
def new_file() -> dict[str, Any] | None:
    return {"file": inbox.pop(0)} if inbox else None  # None: nothing to start


# --8<-- [end:trigger]


def look_at_clocks() -> None:
    # --8<-- [start:dst]
    def times(expression: str, day: datetime, count: int) -> list[str]:
        cron = Cron.parse(expression, "Europe/Berlin")
        start_ns = int(day.timestamp()) * 1_000_000_000
        found = cron.between(start_ns, start_ns + 86_400 * 1_000_000_000, count)
        return [f"{datetime.fromtimestamp(at_ns / 1e9, cron.tz):%H:%M%z}" for at_ns in found]

    spring = datetime(2026, 3, 28, 23, tzinfo=UTC)  # 02:00 becomes 03:00 that night
    autumn = datetime(2026, 10, 24, 22, tzinfo=UTC)  # 03:00 becomes 02:00
    print(times("30 2 * * *", spring, 9), times("30 2 * * *", autumn, 9))
    print(times("30 * * * *", spring, 3), times("30 * * * *", autumn, 4))
    # --8<-- [end:dst]


async def play(jobs: JobsUnderTest) -> None:
    await jobs.advance(24.5 * 3600)
    assert told.count("ping db") >= 4, told
    assert sum(one.startswith("nightly") for one in told) == 1, told
    assert "loads a.csv" in told
    assert "loads b.csv" in told


if __name__ == "__main__":
    look_at_clocks()
    run_jobs(app, play)
