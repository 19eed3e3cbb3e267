"""A topic handle is the same in the process that owns the log and in one that asks a server."""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from fairway.app import Fairway
from fairway.client import AsyncClient, ServerTopics
from fairway.errors import BadRecord, Forbidden, InvalidRequest, NotFound
from fairway.topics.handle import Lost, Read, Record, TopicHandle, TopicWatch
from fairway.wire.topics import TopicPatch
from tests.support.server import run, serving, shared_site, until
from tests.support.topics import unchecked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from fairway.topics.engine import Topics
    from tests.support.server import Site

    Topic: TypeAlias = Callable[..., TopicHandle[int]]
    InEachWay: TypeAlias = Callable[[Callable[[Topic], Awaitable[None]]], None]


@dataclass
class App:
    topics: Any
    remote_topics: ServerTopics | None = None


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with shared_site(tmp_path_factory.mktemp("handles")) as made:
        yield made


@pytest.fixture(params=["embedded", "remote"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(site: Site) -> Topics:
    return site.served.app.topics


@pytest.fixture
def in_each_way(site: Site, way: str) -> InEachWay:
    """Run a scenario that is given a maker of handles, whose topics are of this way alone."""

    def with_handles(body: Callable[[Topic], Awaitable[None]]) -> None:
        async def scenario() -> None:
            async with AsyncClient(f"http://127.0.0.1:{site.served.server.port}") as client:
                if way == "embedded":
                    app = App(site.served.app.topics)
                else:
                    app = App(None, ServerTopics(client))
                await body(
                    lambda name, **config: TopicHandle(
                        app, f"{way}.{name}", int, TopicPatch(**config)
                    )
                )

        site.run(scenario())

    return with_handles


@pytest.mark.parametrize(
    "wrong",
    [{"x": math.nan}, [1.0, None, (-math.inf,)], math.inf],
    ids=["nan", "nested", "inf"],
)
def test_what_json_has_no_number_for_is_refused_and_nothing_is_appended(
    in_each_way: InEachWay, wrong: Any
) -> None:
    async def body(topic: Topic) -> None:
        numbers = topic("numbers")
        for values, meta in [((1, wrong), None), ((1,), {"m": wrong})]:
            with pytest.raises(InvalidRequest, match="JSON has no number"):
                await numbers.append(*values, meta=meta)
        with pytest.raises(InvalidRequest, match=r"JSON has no number|a tag is a text"):
            await numbers.append(1, tag=wrong)
        await topic("nulls").append(7, meta={"none": None, "n": 1.5})
        assert (await topic("nulls").read()).records[-1].meta == {"none": None, "n": 1.5}
        assert (await numbers.read()).records == []

    in_each_way(body)


def told(found: Record[int] | Lost) -> int | Lost:
    return found.data if isinstance(found, Record) else found


async def first(count: int, watch: TopicWatch[int]) -> list[int | Lost]:
    """What a watch gives first: the data of records, and losses as they are."""
    found: list[int | Lost] = []
    async with aclosing(watch) as items:
        async for item in items:
            found.append(told(item))
            if len(found) == count:
                break
    return found


async def data(topic: TopicHandle[int], **options: Any) -> list[int]:
    return [record.data for record in (await topic.read(**options)).records]


# --- a topic that is not there


@pytest.mark.parametrize("config", [{}, {"cap_records": 7}], ids=str)
@pytest.mark.parametrize("use", ["append", "read", "watch"])
def test_a_topic_is_made_by_its_first_use(
    in_each_way: InEachWay, engine: Topics, use: str, config: dict[str, int]
) -> None:
    async def body(topic: Topic) -> None:
        fresh = topic(f"first-{use}-{len(config)}", **config)
        if use == "read":
            page = await fresh.read()
            assert page == Read([], None, 0, True, engine.get(fresh.name).epoch)
        elif use == "watch":
            async with aclosing(fresh.watch()) as items, asyncio.TaskGroup() as group:
                watched = group.create_task(anext(items))
                await until(lambda: engine.find(fresh.name))
                await fresh.append(1)
                assert told(await watched) == 1
        else:
            await fresh.append(1)
        assert engine.get(fresh.name).config.cap_records == config.get("cap_records", 0)

    in_each_way(body)


def test_deleting_from_a_topic_that_is_not_there_makes_none(
    in_each_way: InEachWay, engine: Topics
) -> None:
    async def body(topic: Topic) -> None:
        with pytest.raises(NotFound):
            await topic("never").delete(before_seq=1)
        assert engine.find(topic("never").name) is None

    in_each_way(body)


def test_an_append_makes_no_topic_that_may_not_be_made_so(
    in_each_way: InEachWay, engine: Topics
) -> None:
    async def body(topic: Topic) -> None:
        firm = topic("firm", auto_create=False)
        with pytest.raises(NotFound):
            await firm.append(1)
        await firm.read()
        await firm.append(1)
        assert await data(firm) == [1]

    in_each_way(body)


KEYS = """
[[key]]
name = "writer"
secret = "writer-secret"
scopes = ["read", "write"]
"""


def test_a_key_that_may_only_read_and_write_uses_the_topics_that_are_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        keys = tmp_path / "keys.toml"
        keys.write_text(KEYS)
        async with (
            serving(tmp_path / "data", keys_file=keys) as served,
            AsyncClient(f"http://127.0.0.1:{served.server.port}", key="writer-secret") as client,
        ):
            app = App(None, ServerTopics(client))
            plain: TopicHandle[int] = TopicHandle(app, "plain", int, TopicPatch())
            await plain.append(1, 2)
            assert await data(plain) == [1, 2]

            capped: TopicHandle[int] = TopicHandle(app, "capped", int, TopicPatch(cap_records=1))
            for use in (capped.append(1), capped.read(), first(1, capped.watch())):
                with pytest.raises(NotFound) as caught:
                    await use
                assert isinstance(caught.value.__cause__, Forbidden)
            assert served.app.topics.find("capped") is None

            await served.app.topics.put("capped", TopicPatch(cap_records=1))
            await capped.append(1, 2)
            assert await data(capped) == [2]
            assert await first(2, capped.watch()) == [Lost(1, 1, "cap"), 2]

    run(scenario())


# --- tags


STARRED = [
    ("orders.1", [1]),
    ("orders.*", [1, 2, 3]),
    (("tag", "Glob", "orders.*"), [1, 2, 3]),
    (("tag", "Eq", "orders.*"), [3]),
]


@pytest.mark.parametrize(("match", "meant"), STARRED, ids=str)
def test_a_match_that_ends_in_a_star_is_a_prefix(
    in_each_way: InEachWay, match: Any, meant: list[int]
) -> None:
    async def body(topic: Topic) -> None:
        tagged = topic(f"tagged-{STARRED.index((match, meant))}")
        for number, tag in enumerate(("orders.1", "orders.2", "orders.*", "other"), 1):
            await tagged.append(number, tag=tag)
        assert await data(tagged, match=match) == meant
        assert await first(len(meant), tagged.watch(match=match)) == meant
        assert await tagged.delete(match=match) == len(meant)
        left = [one for one in (1, 2, 3, 4) if one not in meant]
        assert await data(tagged) == left
        if left:
            assert await tagged.delete(seq=left[0]) == 1
            assert await tagged.delete(seq=left[0]) == 0
            assert await data(tagged) == left[1:]

    in_each_way(body)


@pytest.mark.parametrize("match", ["*a*", ("tag", "Glob", "a")], ids=str)
def test_a_match_has_one_star_at_its_end(in_each_way: InEachWay, match: Any) -> None:
    async def body(topic: Topic) -> None:
        tagged = topic("starred")
        await tagged.append(1)
        with pytest.raises(InvalidRequest):
            await tagged.read(match=match)
        with pytest.raises(InvalidRequest):
            await first(1, tagged.watch(match=match))
        with pytest.raises(InvalidRequest):
            await tagged.delete(match=match)

    in_each_way(body)


def test_a_router_that_an_app_declares_reads_its_filter_the_same_way(tmp_path: Path) -> None:
    async def scenario() -> None:
        app = Fairway(tmp_path / "data")
        app.route("all", "ours", filter="orders.*")
        async with app:
            every, ours = app.topic("all", int), app.topic("ours", int)
            await every.append(1, tag="orders.1")
            await every.append(2, tag="other")
            await every.append(3, tag="orders.3")
            assert await first(2, ours.watch()) == [1, 3]

    run(scenario())


# --- what is asked wrongly


WRONG: list[dict[str, Any]] = [
    {"from_seq": -1},
    {"from_seq": 2**63},
    {"from_seq": 1.5},
    {"match": ("tag", "Like", "x")},
    {"match": 5},
    {"node": ["one", "two"]},
    {"epoch": -1},
]


@pytest.mark.parametrize("wrong", [*WRONG, {"limit": -1}, {"wait_s": -1}], ids=str)
def test_a_read_that_makes_no_sense_is_refused(
    in_each_way: InEachWay, wrong: dict[str, Any]
) -> None:
    async def body(topic: Topic) -> None:
        asked = topic("asked")
        await asked.append(1)
        with pytest.raises(InvalidRequest):
            await asked.read(**wrong)

    in_each_way(body)


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_watch_that_makes_no_sense_is_refused(
    in_each_way: InEachWay, wrong: dict[str, Any]
) -> None:
    async def body(topic: Topic) -> None:
        asked = topic("asked")
        await asked.append(1)
        with pytest.raises(InvalidRequest):
            await first(1, asked.watch(**wrong))

    in_each_way(body)


@pytest.mark.parametrize("wrong", [{"before_seq": -1}, {"match": 5}, {}], ids=str)
def test_a_deletion_that_makes_no_sense_is_refused(
    in_each_way: InEachWay, wrong: dict[str, Any]
) -> None:
    async def body(topic: Topic) -> None:
        asked = topic("asked")
        await asked.append(1)
        with pytest.raises(InvalidRequest):
            await asked.delete(**wrong)

    in_each_way(body)


@pytest.mark.parametrize(("limit", "given"), [(0, 256), (1, 1), (1000, 1000), (10**9, 1000)])
def test_a_limit_is_brought_into_its_range(in_each_way: InEachWay, limit: int, given: int) -> None:
    async def body(topic: Topic) -> None:
        long = topic(f"long-{limit}")
        await long.append(*range(1100))
        page = await long.read(limit=limit)
        assert (len(page.records), page.next_seq, page.caught_up) == (given, given, False)

    in_each_way(body)


# --- what does not fit its type


def test_a_record_that_does_not_fit_is_told_and_readers_go_on_behind_it(
    in_each_way: InEachWay,
) -> None:
    async def body(topic: Topic) -> None:
        mixed: Any = topic("mixed")
        await mixed.append(1, "two", 3, {"id": 4}, 5)
        page = await mixed.read()
        assert [record.data for record in page.records] == [1, 3, 5]
        assert [(one.topic, one.seq, one.data) for one in page.bad] == [
            (mixed.name, 2, b'"two"'),
            (mixed.name, 4, b'{"id":4}'),
        ]
        assert (page.next_seq, page.caught_up) == (5, True)
        async with mixed.watch() as watch:
            assert (await anext(watch)).data == 1
            with pytest.raises(BadRecord, match=rf"{mixed.name} 2: Expected `int`, got `str`"):
                await anext(watch)
            found: list[Any] = []
            try:
                async for record in watch:
                    found.append(record.data)
            except BadRecord as error:
                found.append(error.seq)
            assert (found, (await anext(watch)).data) == ([3, 4], 5)
        bad: list[int] = []

        async def tell(one: BadRecord) -> None:
            bad.append(one.seq)

        assert await first(3, mixed.watch(on_bad_record=tell)) == [1, 3, 5]
        assert bad == [2, 4]

    in_each_way(body)


def test_a_number_in_meta_that_fits_no_double_is_refused_and_nothing_is_appended(
    in_each_way: InEachWay,
) -> None:
    async def body(topic: Topic) -> None:
        numbers = topic("meta-numbers")
        await numbers.append(1, meta={"k": 2**64})
        with pytest.raises(InvalidRequest, match=r"records\[0\]\.meta\.k"):
            await numbers.append(2, meta={"k": [10**400]})
        assert [one.meta for one in (await numbers.read()).records] == [{"k": 2**64}]

    in_each_way(body)


@pytest.mark.parametrize("number", [b"1e999", b"1" * 5_000], ids=["1e999", "5,000 digits"])
def test_a_record_whose_meta_cannot_be_read_is_told_and_readers_go_on_behind_it(
    in_each_way: InEachWay, engine: Topics, number: bytes
) -> None:
    async def body(topic: Topic) -> None:
        old = topic(f"old-{len(number)}")
        raw = b'[{"data":1},{"data":2,"meta":{"k":%b}},{"data":3,"meta":{"k":4}}]' % number
        await engine.append(old.name, unchecked(raw))
        page = await old.read()
        assert [(one.data, one.meta) for one in page.records] == [(1, None), (3, {"k": 4})]
        assert [(one.topic, one.seq, one.data) for one in page.bad] == [(old.name, 2, b"2")]
        assert (page.next_seq, page.caught_up) == (3, True)
        bad: list[BadRecord] = []
        assert await first(2, old.watch(on_bad_record=bad.append)) == [1, 3]
        assert [one.seq for one in bad] == [2]
        async with old.watch() as watch:
            assert told(await anext(watch)) == 1
            with pytest.raises(BadRecord, match=rf"{old.name} 2: meta: .*out of range"):
                await anext(watch)
            assert told(await anext(watch)) == 3

    in_each_way(body)


# --- what is lost


def test_a_watch_tells_what_is_lost_in_its_place(in_each_way: InEachWay) -> None:
    async def body(topic: Topic) -> None:
        capped = topic("capped", cap_records=2)
        await capped.append(1, 2, 3, 4, 5)
        assert (await capped.read()).lost == Lost(1, 3, "cap")
        assert await first(3, capped.watch()) == [Lost(1, 3, "cap"), 4, 5]
        assert await first(3, capped.watch(99)) == [Lost(1, 3, "recreated"), 4, 5]

    in_each_way(body)


def test_a_watch_tells_a_loss_before_anything_follows_it(
    in_each_way: InEachWay, engine: Topics
) -> None:
    async def body(topic: Topic) -> None:
        anew = topic("anew")
        await anew.append(1, 2, 3)
        await engine.delete(anew.name)
        await engine.create(anew.name)
        assert await first(1, anew.watch(3)) == [Lost(1, 0, "recreated")]

    in_each_way(body)


@pytest.mark.parametrize("cap", [0, 2])
def test_a_place_says_of_which_incarnation_it_is(
    in_each_way: InEachWay, engine: Topics, cap: int
) -> None:
    async def body(topic: Topic) -> None:
        anew = topic(f"incarnations-{cap}")
        await anew.append(1, 2)
        before = await anew.read()
        assert [record.epoch for record in before.records] == [before.epoch] * 2

        await engine.delete(anew.name)
        await engine.create(anew.name, TopicPatch(cap_records=cap))
        await anew.append(3, 4, 5)
        gone = Lost(1, 1 if cap else 0, "recreated")
        left = [4, 5] if cap else [3, 4, 5]
        assert await data(anew, from_seq=2) == [5], "a seq alone is of whatever is there"
        after = await anew.read(2, epoch=before.epoch)
        assert after.lost == gone
        assert [record.data for record in after.records] == left
        assert after.epoch == engine.get(anew.name).epoch != before.epoch
        for match in (None, ("tag", "Eq", "none*")):
            found = await first(1, anew.watch(2, epoch=before.epoch, match=match))
            assert found == [gone]
        watched = await first(1 + len(left), anew.watch(2, epoch=before.epoch))
        assert watched == [gone, *left]

        assert (await anew.read(2, epoch=after.epoch)).lost is None
        assert await first(1, anew.watch(2, epoch=after.epoch)) == [5]
        with pytest.raises(InvalidRequest):
            await anew.read(4, epoch=after.epoch)
        assert await first(1, anew.watch(4, epoch=after.epoch)) == [gone]

    in_each_way(body)
