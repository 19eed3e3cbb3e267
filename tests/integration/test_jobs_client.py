"""The client's jobs against a real server that works on them: every call of both faces."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest

from fairway import errors
from fairway.jobs.job import KEY_MAX
from tests.support.faces import FACES, client_of
from tests.support.jobs_served import jobs_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairway.client import Client

WAIT_S = 30.0


class Sum(msgspec.Struct):
    a: int
    b: int = 1
    nonce: str = ""


@pytest.fixture(scope="module", params=FACES)
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, face: str) -> Iterator[str]:
    with jobs_process(tmp_path_factory.mktemp("served")) as made:
        yield made


@pytest.fixture
def client(url: str, face: str) -> Iterator[Client]:
    with client_of(face, url) as made:
        yield made


def test_a_job_is_enqueued_and_its_result_awaited(client: Client) -> None:
    jobs = client.jobs
    made = jobs.enqueue("add", {"a": 1, "nonce": "c1"}, tenant="acme", priority=9)
    assert made.fresh
    assert jobs.wait(made.id, WAIT_S) == 2
    total: int = jobs.wait(made.id, type=int)
    assert total == 2
    job = jobs.get(made.id, wait_ms=1000)
    assert (job.status, job.result, job.state["a"], job.tenant) == ("done", 2, 1, "acme")
    assert jobs.wait(jobs.enqueue("add", Sum(4, nonce="struct")).id, WAIT_S) == 5
    with pytest.raises(msgspec.ValidationError):
        jobs.wait(made.id, type=str)


def test_many_are_enqueued_all_or_none(client: Client) -> None:
    jobs = client.jobs
    orders = [jobs.order("add", {"a": n, "nonce": "many"}, queue="math") for n in range(50)]
    made = jobs.enqueue_many(orders)
    assert [jobs.wait(one.id, WAIT_S) for one in made] == [*range(1, 51)]
    bad = [jobs.order("never"), jobs.order("add", {"a": None})]
    with pytest.raises(errors.InvalidRequest, match=r"jobs\[1\]: job 'add'.*`a`"):
        jobs.enqueue_many(bad)
    assert list(jobs.list(kind="never")) == []
    with pytest.raises(errors.InvalidRequest, match="nothing to enqueue"):
        jobs.enqueue_many([])


@pytest.mark.parametrize(
    ("args", "options", "said"),
    [
        ([1], {}, "Expected `object`, got `array`"),
        ({}, {"priority": 2000}, "priority"),
        ({}, {"at": datetime(2030, 1, 1)}, "time zone"),
        ({}, {"nonsense": 1}, "unknown field `nonsense`"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_sent(
    client: Client, args: Any, options: Any, said: str
) -> None:
    with pytest.raises(errors.InvalidRequest, match=said):
        client.jobs.order("elsewhere", args, **options)


def test_options_arrive(client: Client) -> None:
    jobs = client.jobs
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    made = jobs.enqueue(
        "elsewhere",
        {"x": 1},
        queue="far",
        at=at,
        key="far-1",
        window_s=3600,
        partition_key="p",
        max_attempts=3,
        version=2,
        step="begin",
        traceparent="00-a-b-01",
    )
    again = jobs.enqueue("elsewhere", key="far-1")
    assert (again.id, again.fresh) == (made.id, False)
    job = jobs.get(made.id)
    assert (job.status, job.due_at) == ("scheduled", int(at.timestamp() * 1000))
    assert (job.queue, job.key, job.partition_key) == ("far", "far-1", "p")
    assert (job.max_attempts, job.version, job.step) == (3, 2, "begin")
    assert job.traceparent == "00-a-b-01"
    later = jobs.get(jobs.enqueue("elsewhere", delay_s=60).id)
    assert later.status == "scheduled"


def test_a_failure_is_raised_and_the_job_tried_again(client: Client) -> None:
    jobs = client.jobs
    id = jobs.enqueue("fails_once", {"name": "client"}).id
    with pytest.raises(errors.JobFailed, match="client is not") as failed:
        jobs.wait(id, WAIT_S)
    assert (failed.value.id, failed.value.status) == (id, "failed")
    jobs.retry(id)
    assert jobs.wait(id, WAIT_S) == "client"
    with pytest.raises(errors.Conflict) as refused:
        jobs.retry(id)
    assert refused.value.code == "job_not_retryable"


def test_a_key_is_as_long_as_in_python(client: Client) -> None:
    jobs = client.jobs
    longest = "\N{PIG FACE}" * KEY_MAX  # twelve bytes each, in an address
    id = jobs.enqueue("Purchase", {"id": 3}, key=longest).id
    assert jobs.signal(longest, "payment", True)
    assert jobs.wait(id, WAIT_S) == 3
    with pytest.raises(errors.InvalidRequest, match="<= 500"):
        jobs.enqueue("Purchase", {"id": 4}, key=longest + "k")
    with pytest.raises(errors.InvalidRequest, match="1 to 500"):
        jobs.signal(longest + "k", "payment")


@pytest.mark.parametrize("timeout_s", [math.nan, math.inf, -1, "5"])
def test_a_wait_for_no_time_there_is_is_refused(client: Client, timeout_s: Any) -> None:
    with pytest.raises(errors.InvalidRequest, match="timeout_s"):
        client.jobs.wait(1, timeout_s)


def test_signals_and_cancels(client: Client) -> None:
    jobs = client.jobs
    by_id = jobs.enqueue("Purchase", {"id": 1}).id
    with pytest.raises(TimeoutError, match="still"):
        jobs.wait(by_id, 0.001)
    assert jobs.signal(by_id, "other", dedup="d")
    assert not jobs.signal(by_id, "other", dedup="d")
    assert jobs.signal(by_id, "payment", {"amount": 3})
    assert jobs.wait(by_id, WAIT_S) == 1
    with pytest.raises(errors.Conflict, match="done"):
        jobs.signal(by_id, "payment")
    by_key = jobs.enqueue("Purchase", {"id": 2}, key="shop/2 ?").id
    assert jobs.signal("shop/2 ?", "payment", True)
    assert jobs.wait(by_key, WAIT_S) == 2
    assert jobs.get(by_key).state == {"id": 2, "paid": True}
    doomed = jobs.enqueue("elsewhere").id
    assert jobs.cancel(doomed, reason="changed my mind").ended == [doomed]
    with pytest.raises(errors.JobFailed, match="changed my mind"):
        jobs.wait(doomed, WAIT_S)
    for ask in (jobs.get, jobs.cancel, jobs.retry, jobs.wait):
        with pytest.raises(errors.NotFound, match="999999999"):
            ask(999_999_999)


def test_jobs_are_listed_over_pages(client: Client) -> None:
    jobs = client.jobs
    made = jobs.enqueue_many(
        jobs.order("listed", {"n": n}, queue=f"list.{n % 2}") for n in range(7)
    )
    newest = [one.id for one in reversed(made)]
    assert [job.id for job in jobs.list(kind="listed", page_size=3)] == newest
    assert [job.id for job in jobs.list(queue="list.0")] == newest[::2]
    assert list(jobs.list(kind="listed", status="done")) == []


def test_queues_are_paused_resumed_and_limited(client: Client) -> None:
    jobs = client.jobs
    assert jobs.pause("still").paused
    jobs.enqueue("elsewhere", queue="still")
    assert (jobs.queue("still").paused, jobs.queue("still").ready) == (True, 1)
    assert not jobs.resume("still").paused
    limits = jobs.limit("still", concurrency=2, rate_per_s=1.5, burst=3).limits
    assert (limits.concurrency, limits.rate_per_s, limits.burst) == (2, 1.5, 3)
    assert jobs.limit("still").limits.concurrency is None
    assert jobs.limit("*").queue == "*"
    assert "still" in [queue.queue for queue in jobs.queues()]
    with pytest.raises(errors.NotFound):
        jobs.queue("nowhere")


def test_what_ended_is_forgotten_in_the_end(client: Client) -> None:
    id = client.jobs.enqueue("add", {"a": 1, "nonce": "pruned"}).id
    client.jobs.wait(id, WAIT_S)
    assert client.jobs.prune(3600) == 0
    assert client.jobs.prune(0) >= 1
    with pytest.raises(errors.NotFound):
        client.jobs.get(id)


# --- lost answers


def losing(sent: list[str]) -> Callable[[httpx.Request], httpx.Response]:
    """A server that takes every request and answers none, the second time excepted."""

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.url.path)
        if len(sent) == 1:
            raise httpx.ReadError("gone", request=request)
        return httpx.Response(200, json={"jobs": [{"id": 1, "fresh": False}]})

    return answer


def test_a_lost_answer_is_asked_for_again_only_under_a_key_that_stands(face: str) -> None:
    for options in ({}, {"key": "k"}, {"key": "k", "window_s": 1.0}):
        sent: list[str] = []
        with (
            client_of(face, "http://server", transport=httpx.MockTransport(losing(sent))) as client,
            pytest.raises(errors.OutcomeUnknown),
        ):
            client.jobs.enqueue("add", **options)  # type: ignore[arg-type]
        assert sent == ["/v0/jobs"]
    sent = []
    with client_of(face, "http://server", transport=httpx.MockTransport(losing(sent))) as client:
        assert client.jobs.enqueue("add", key="k", window_s=60).id == 1
    assert len(sent) == 2
