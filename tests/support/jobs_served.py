"""The app of `jobs_app` for a `fairway serve` of its own, and how to start that."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.jobs_app import jobs_app
from tests.support.server import server_process

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACE = "JOBS_APP_PLACE"

if PLACE in os.environ:
    app = jobs_app(Path(os.environ[PLACE]))


@contextmanager
def jobs_process(place: Path) -> Iterator[str]:
    """The URL of a process that serves the app and works on its jobs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PLACE, str(place))
        with server_process(place, f"{__name__}:app") as process:
            yield f"http://127.0.0.1:{process.port}"
