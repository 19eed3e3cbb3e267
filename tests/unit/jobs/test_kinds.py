"""Kinds of jobs: what their arguments may be, and what is said of those that do not fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from fairway.errors import InvalidConfig, InvalidRequest
from fairway.jobs.engine import Jobs, Kinds
from fairway.jobs.handles import JobFunction, Machine
from fairway.jobs.job import KEY_MAX, NewJob
from fairway.jobs.kinds import Kind, Options, Unique, function_kind, machine_kind, options_of
from fairway.jobs.stores.memory import MemoryStore
from fairway.testing import run


class Item(msgspec.Struct):
    sku: str
    count: int = 1


async def send(id: int, items: list[Item], note: str | None = None) -> None: ...


class Order(msgspec.Struct):
    id: int

    def start(self) -> None: ...


def kind_of(**options: Any) -> Kind:
    return function_kind(send, "send", 1, options_of(**options))


def job_function(store: MemoryStore, **options: Any) -> JobFunction[..., Any]:
    engine = Jobs(store, Kinds())
    return JobFunction(lambda: engine, kind_of(**options))


GOOD = {"id": 1, "items": [{"sku": "a"}]}
WRONG = [
    ({"items": []}, "job 'send': missing argument `id`"),
    ({**GOOD, "id": "one"}, "Expected `int`, got `str` - at `id`"),
    ({**GOOD, "items": [{"sku": 1}]}, "Expected `str`, got `int` - at `items[0].sku`"),
    ({**GOOD, "items": [{"sku": "a"}, {}]}, "missing argument `sku` - at `items[1]`"),
    ({**GOOD, "note": 7}, "at `note`"),
    ({**GOOD, "nota": "x"}, "unknown argument `nota`"),
]


@pytest.mark.parametrize(("values", "message"), WRONG)
def test_arguments_that_do_not_fit_are_refused_by_name_and_nothing_is_enqueued(
    values: dict[str, Any], message: str
) -> None:
    async def play() -> None:
        store = MemoryStore()
        await store.open()
        function = job_function(store)
        for enqueue in (
            lambda: function.enqueue(**values),
            lambda: function.enqueue_many([GOOD, values]),
        ):
            with pytest.raises(InvalidRequest) as refused:
                await enqueue()
            assert message in str(refused.value)
        with pytest.raises(InvalidRequest):
            function.order(**values)
        assert await store.queues() == []

    run(play)


def test_arguments_come_by_place_by_name_and_as_objects() -> None:
    kind = kind_of()

    @dataclass
    class Line:
        sku: str
        count: int

    expected = b'{"id":1,"items":[{"sku":"a","count":2}],"note":null}'
    assert kind.job({"id": 1, "items": [{"sku": "a", "count": 2}]}).state == expected
    assert kind.job({"id": 1, "items": [Line("a", 2)]}).state == expected
    (made,) = kind.jobs([{"id": 1, "items": [Line("a", 2)]}])
    assert made.state == expected
    function = job_function(MemoryStore())
    assert function.order(1, [Item("a", 2)]).job.state == expected
    with pytest.raises(InvalidRequest, match="takes 3 arguments, not 4"):
        function.order(1, [], None, 4)


def test_many_jobs_are_those_that_one_by_one_would_be() -> None:
    many = [{"id": number, "items": []} for number in range(4)]
    for options in (
        {},
        {"queue": "mail", "priority": 7, "max_attempts": 2},
        {"unique": "order-{id}"},
        {"partition_key": "p-{id}", "strict": True, "tenant": "t-{id}"},
        {"unique": Unique(window_ns=5)},
    ):
        kind = kind_of(**options)
        given = {"delay_ns": 3, "trace": "00-1"}
        assert list(kind.jobs(many, **given)) == [kind.job(one, **given) for one in many]
    assert list(kind_of().jobs([])) == []


def test_templates_are_filled_from_the_arguments() -> None:
    kind = kind_of(unique="order-{id}", partition_key="{note}", tenant="{items[0].sku}")
    job = kind.job({**GOOD, "note": "n"})
    assert (job.unique_key, job.partition_key, job.tenant) == ("send:order-1", "n", "a")
    with pytest.raises(InvalidConfig, match=r"'order-\{ident\}' of unique needs 'ident'"):
        kind_of(unique="order-{ident}")
    assert isinstance(kind.job(GOOD), NewJob)


@pytest.mark.parametrize("given", ["tenant", "partition_key", "unique_key"])
def test_names_that_not_every_store_takes_are_refused(given: str) -> None:
    """What is in an index of a database has an end there."""
    kind = kind_of()
    assert getattr(kind.job(GOOD, **{given: "k" * KEY_MAX}), given) == "k" * KEY_MAX
    with pytest.raises(InvalidRequest, match=f"'send': its {given} is longer than {KEY_MAX} char"):
        kind.job(GOOD, **{given: "k" * (KEY_MAX + 1)})


def test_a_job_that_is_unique_by_long_arguments_has_a_short_key() -> None:
    kind = kind_of(unique=Unique())
    long = {**GOOD, "note": "n" * 10_000}
    key = kind.job(long).unique_key
    assert key is not None
    assert len(key) <= KEY_MAX
    assert kind.job(long).unique_key == key
    assert kind.job({**long, "id": 2}).unique_key != key


def test_a_machine_starts_with_its_state_and_with_nothing_else() -> None:
    engine = Jobs(MemoryStore(), Kinds())
    machine: Machine[Order] = Machine(
        lambda: engine, machine_kind(Order, "order", 1, Options(), None)
    )
    assert machine.order(Order(7)).job.state == b'{"id":7}'
    with pytest.raises(InvalidRequest, match="starts with a Order, not with a Item"):
        machine.order(Item("a"))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="at `id`"):
        machine.order(Order("seven"))  # type: ignore[arg-type]


def any_number(*values: int) -> None: ...


def hidden(value: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: function_kind(any_number, "n", 1, Options()), "takes any number of values"),
        (lambda: function_kind(hidden, "n", 1, Options()), "name something unknown"),
        (lambda: machine_kind(int, "n", 1, Options(), None), "its class is a msgspec.Struct"),
        (lambda: machine_kind(Item, "n", 1, Options(), None), "has no steps"),
        (lambda: machine_kind(Order, "n", 1, Options(), "pay"), "no step 'pay' to begin with"),
        (lambda: Options(queue="*"), "`\\*` stands for all"),
        (lambda: Options(max_attempts=0), "at least 1"),
        (lambda: Options(priority=1001), "between -1000 and 1000"),
        (lambda: options_of(timeout=0), "a timeout is positive"),
    ],
)
def test_a_kind_that_cannot_work_is_refused_when_it_is_declared(declare: Any, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        declare()
