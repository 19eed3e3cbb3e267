"""A workflow: tasks, rules, a shared context, callbacks, pause and retry; on virtual time."""

from typing import Any

from fairway import Fairway
from fairway.jobs import rules
from fairway.jobs.flows import drawn
from fairway.testing import JobsUnderTest, run_jobs

app = Fairway(jobs="memory:")
disk_is_full = True

# --8<-- [start:declare]
etl = app.workflow("etl", timeout=3600)


@etl.task
async def extract(day: str) -> dict[str, Any]:
    return {"rows": len(day)}


@etl.task(after=extract)
async def clean(rows: int) -> dict[str, Any]:
    return {"rows": rows - 1}


@etl.task(after=clean, queue="warehouse", max_attempts=2, timeout=600)
def load(rows: int) -> dict[str, Any]:
    if disk_is_full:
        raise OSError("the disk is full")
    return {"loaded": rows}


# --8<-- [end:declare]


# --8<-- [start:rules]
@etl.task(after=extract, rule=rules.context("rows", "greater_than", 100))
async def sample(context: dict[str, Any]) -> None: ...


@etl.task(after=[load, sample], rule=rules.failed("load"))
async def page(context: dict[str, Any]) -> dict[str, Any]:
    return {"paged": True}


# --8<-- [end:rules]


# --8<-- [start:callbacks]
@etl.on_success
async def celebrate(context: dict[str, Any]) -> None:
    print("a run is done:", context["rows"], "rows")


@etl.on_failure
async def mourn(context: dict[str, Any]) -> None:
    print("a run failed:", context["error"])


# --8<-- [end:callbacks]


async def play(jobs: JobsUnderTest) -> None:
    # --8<-- [start:run]
    run = await etl.start({"day": "monday"}, key="monday")
    await etl.pause(run.id)  # tasks that run go on; nothing more starts
    await etl.resume(run.id)
    # --8<-- [end:run]
    await jobs.drain()
    await jobs.assert_done(run)
    # --8<-- [start:show]
    print(drawn(app.flows, await run.look()))
    print(await run.result())
    # --8<-- [end:show]


if __name__ == "__main__":
    run_jobs(app, play)
