"""Whose jobs a command is about, as the connection that looks it up says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from fairway.errors import Unavailable
from fairway.jobs.job import NO_TENANT, Fate, NewJob, Settlement, line_of
from fairway.jobs.store import Want
from fairway.jobs.stores.sqlite import SqliteStore
from fairway.jobs.stores.sqlite.tenants import TenantReader

if TYPE_CHECKING:
    from pathlib import Path


def test_tenants_are_found_by_id_and_by_unique_key(tmp_path: Path) -> None:
    place = tmp_path / "jobs.db"

    async def filled() -> list[int]:
        store = SqliteStore(place)
        await store.open()
        jobs = [
            NewJob(kind="k", tenant="a"),
            NewJob(kind="k", tenant="b", queue="other", priority=900),
            NewJob(kind="k", tenant='"c"\n', unique_key="12"),
            NewJob(kind="k", unique_key='u"\n'),
        ]
        ids = [one.id for one in await store.enqueue(jobs)]
        # Set aside, a job is in a line of another number.
        worker = await store.register("w", 60_000_000_000)
        out = await store.exchange(worker, 1, wants=[Want(line_of(jobs[0]), 1)])
        aside = [Settlement(claim=out.claims[0], fate=Fate.RELEASE, skill="s")]
        await store.exchange(worker, 2, aside)
        await store.aclose()
        return ids

    ids = asyncio.run(filled())
    reader = TenantReader(str(place))
    targets = [*ids, "12", 'u"\n', 99, -1, "nobody", 2**63 - 1]
    tenants = ["a", "b", '"c"\n', "", '"c"\n', "", *[NO_TENANT] * 4]
    assert reader.tenants(targets) == tenants
    assert reader.tenants([]) == []
    reader.close()


def test_a_file_that_cannot_be_read_is_told_of(tmp_path: Path) -> None:
    reader = TenantReader(str(tmp_path / "jobs.db"))
    with pytest.raises(Unavailable):
        reader.tenants([1])
    reader.close()
