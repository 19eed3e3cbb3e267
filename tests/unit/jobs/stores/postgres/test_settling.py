"""Which settlements of an exchange may be settled in one go."""

from __future__ import annotations

import pytest

from fairway.jobs.job import Claim, Fate, NewJob, Settlement

pytest.importorskip("asyncpg")

from fairway.jobs.stores.postgres.settling import together


def settlement(id: int, token: int = 1, *, unique_key: str | None = None) -> Settlement:
    claim = Claim(
        id=id,
        token=token,
        kind="k",
        version=1,
        step="run",
        state=b"{}",
        attempt=1,
        crashes=0,
        max_attempts=1,
        queue="q",
        tenant="",
        priority=0,
        partition_key=None,
        parent=None,
        trace=None,
        timed_out=False,
        cancelling=None,
    )
    children = (NewJob(kind="c", unique_key=unique_key),) if unique_key is not None else ()
    return Settlement(claim=claim, fate=Fate.SPAWN, children=children)


def ids(settlements: list[Settlement]) -> list[list[int]]:
    return [[one.claim.id for one in part] for part in together(settlements)]


def test_all_of_different_jobs_go_together() -> None:
    assert ids([settlement(id) for id in (3, 1, 2)]) == [[3, 1, 2]]


def test_two_claims_of_a_job_are_settled_one_after_the_other_and_nobody_overtakes() -> None:
    several = [settlement(id, token) for token, id in enumerate((1, 2, 1, 3, 2, 2))]
    assert ids(several) == [[1, 2], [1, 3, 2], [2]]


def test_with_a_child_that_may_be_there_already_each_goes_alone() -> None:
    assert ids([settlement(1), settlement(2, unique_key="u"), settlement(3)]) == [[1], [2], [3]]
