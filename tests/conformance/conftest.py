"""Fixtures of the conformance suite: every test that takes `backend` runs over all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.backends import BACKENDS, Backend
from tests.support.postgres import Unavailable, postgres_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fairway.storage.wal import Wal


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    try:
        made = BACKENDS[request.param](tmp_path)
    except Unavailable as reason:
        pytest.skip(f"{request.param}: {reason}")
    yield made
    made.close()


@pytest.fixture
def wal(backend: Backend) -> Wal:
    """An open log on a new, empty store."""
    made = backend.fresh()
    assert made.open() == {}
    return made


@pytest.fixture(scope="session")
def postgres() -> str:
    """Where the shared PostgreSQL listens."""
    try:
        return postgres_url()
    except Unavailable as reason:
        pytest.skip(f"postgres: {reason}")
