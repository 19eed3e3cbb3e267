"""An app with a workflow for a `fairway serve` of its own, and how to start that."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairway import Fairway
from fairway.jobs import rules
from tests.support.server import server_process

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACE = "WORKFLOWS_APP_PLACE"


def shop(place: Path) -> Fairway:
    app = Fairway(place)
    flow = app.workflow("etl", cron="0 3 * * *", context={"day": "sunday"})

    @flow.task
    async def extract(day: str) -> dict[str, Any]:
        return {"rows": len(day)}

    fragile = app.workflow("fragile")

    @fragile.task
    async def prepare() -> dict[str, Any]:
        with (place / "prepared").open("a") as file:
            file.write("x")
        return {"prepared": True}

    @fragile.task(after=prepare, max_attempts=1)
    async def deliver() -> None:
        if not (place / "mended").exists():
            raise OSError("nobody is at home")

    @fragile.task(after=deliver)
    async def report() -> dict[str, Any]:
        return {"reported": True}

    @flow.task(after=extract, max_attempts=1)
    async def load(rows: int) -> None:
        if rows > 5:
            raise ValueError("too many rows")

    @flow.task(after=load, rule=rules.failed("load"))
    async def page() -> dict[str, Any]:
        return {"paged": True}

    return app


if PLACE in os.environ:
    app = shop(Path(os.environ[PLACE]))


@contextmanager
def workflows_process(place: Path) -> Iterator[str]:
    """The URL of a process that serves the app and works on its runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PLACE, str(place))
        with server_process(place, f"{__name__}:app") as process:
            yield f"http://127.0.0.1:{process.port}"
