"""The fair writer on virtual time: what is grouped, refused, acknowledged and failed, exactly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from fairway.core.lanes import LaneLimits
from fairway.errors import (
    Backpressure,
    Closing,
    Corrupt,
    FairwayError,
    Fenced,
    InvalidConfig,
    InvalidOperation,
    OutcomeUnknown,
    WriteFailed,
)
from fairway.runtime.completion import resolve, settle
from fairway.runtime.telemetry import Telemetry
from fairway.runtime.turn import TURN
from fairway.storage.log import UPKEEP_S, Log
from fairway.storage.wal import DELETE, INT_MAX, Entry, HardState, Operation
from fairway.storage.wals.memory import MemoryWal
from fairway.storage.writer import Durability, WriterConfig
from fairway.testing import run
from fairway.testing.loop import LATENCY_NS

if TYPE_CHECKING:
    from fairway.runtime.completion import OnDone
    from fairway.storage.statistics import WriterStatistics


def end_services(*names: str) -> None:
    """Cancel services of the log, as nobody would who wants it to go on."""
    for task in asyncio.all_tasks():
        if task.get_name() in names:
            task.cancel()


class RecordingWal(MemoryWal):
    """The memory store, which also remembers each group: (sync, {partition: keys})."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.groups: list[tuple[bool, dict[int, list[int]]]] = []
        self.answers: list[Any] = []  # what the next writes do instead: a value or an exception

    def write(self, group: Any, *, sync: bool) -> Any:
        keys = {p: [e.key for o in ops for e in o.entries] for p, ops in group.items()}
        self.groups.append((sync, keys))
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            if answer is not None:
                return answer(group)
        return super().write(group, sync=sync)


Body = Callable[[Log, RecordingWal], Coroutine[Any, Any, None]]


def on_log(
    body: Body,
    *,
    wal: RecordingWal | None = None,
    latency_ns: tuple[int, int] = LATENCY_NS,
    **config: Any,
) -> RecordingWal:
    """Run `body` with a log on virtual time, close it, and return the store."""
    store = wal if wal is not None else RecordingWal()

    async def main() -> None:
        async with Log(store, writer=WriterConfig(**config)) as log:
            await body(log, store)

    run(main, quiet=True, latency_ns=latency_ns)
    return store


def written(log: Log) -> WriterStatistics:
    return log.statistics()[0]


async def under_way(log: Log) -> None:
    """Return once the worker has taken everything that waited."""
    while written(log).waiting:  # noqa: ASYNC110  (it is only a few turns away)
        await asyncio.sleep(0)


def test_one_group_serves_every_partition_that_waited() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        first = log.append(1, b"a")
        await under_way(log)  # the rest comes while it is being written
        others = [log.append(partition, b"b") for partition in (1, 2, 3, 2)]
        assert await first == 1
        assert [await other for other in others] == [2, 1, 1, 2]

    wal = on_log(body)
    assert [group for _, group in wal.groups] == [{1: [1]}, {1: [2], 2: [1, 2], 3: [1]}]


def test_a_group_keeps_its_limits() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        waiters = [log.append(partition, b"x" * 100) for partition in range(5) for _ in range(7)]
        for waiter in waiters:
            await waiter

    wal = on_log(body, max_group_partitions=2, max_batch=3)
    assert all(len(group) <= 2 for _, group in wal.groups)
    assert all(len(keys) <= 3 for _, group in wal.groups for keys in group.values())
    rotation = [partition for _, group in wal.groups for partition in group][:5]
    assert rotation == [0, 1, 2, 3, 4], "each partition has its turn before any has a second"

    wal = on_log(body, max_batch_bytes=400)
    assert max(len(keys) for _, group in wal.groups for keys in group.values()) == 2

    wal = on_log(body, max_group_bytes=600)
    assert max(sum(map(len, group.values())) for _, group in wal.groups) <= 4


def test_an_operation_larger_than_a_batch_goes_alone_and_whole() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        entries = tuple(Entry(key, b"x" * 500) for key in range(1, 11))
        waiters = [log.append(0, b"a"), log.submit(0, Operation(()))]
        waiters += [log.submit(1, Operation(entries)), log.append(1, b"b")]
        assert [await waiter for waiter in waiters] == [1, 1, 10, 11]

    wal = on_log(body, max_batch_bytes=300, max_group_bytes=1000)
    assert [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] in [g[1] for _, g in wal.groups if 1 in g]


def test_a_group_syncs_only_if_a_member_asks() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        await log.append(1, b"a", durability=Durability.DISK)
        assert wal.groups[-1][0] is False
        quick = log.append(1, b"b", durability=Durability.MEMORY)
        assert quick.done()
        assert quick.result() == 2
        await log.append(1, b"c", durability=Durability.FSYNC)
        assert wal.groups[-1] == (True, {1: [2, 3]})
        await log.submit(2, Operation(hard_state=HardState(1, "me")), durability=Durability.DISK)
        before = wal.syncs
        await log.submit(2, Operation(hard_state=HardState(2, "me")), durability=Durability.DISK)
        assert wal.syncs == before + 1, "hard state is always synced"

    on_log(body)


def test_different_kinds_of_operation_travel_in_order_and_together() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        held = log.append(8, b"hold the worker")
        await under_way(log)
        waiters = [
            log.append(1, b"a"),
            log.append(1, b"b"),
            log.submit(1, Operation((Entry(2, b"B", 5),), truncate_after=1)),
            log.submit(1, Operation(compact_before=2, meta={"name": b"value"})),
            log.submit(1, Operation(hard_state=HardState(7, "me"))),
            log.append(1, b"c"),
        ]
        await held
        assert [await waiter for waiter in waiters] == [1, 2, 2, 2, 2, 3]
        assert len(wal.groups) == 2, "one write for the whole run"
        assert await log.read(1) == [Entry(2, b"B", 5), Entry(3, b"c")]
        assert await log.meta(1, "name") == b"value"
        assert await log.hard_state(1) == HardState(7, "me")
        assert await log.term_at(1, 2) == 5

    on_log(body)


def test_plain_appends_of_a_partition_reach_the_store_as_one_operation() -> None:
    written: list[list[int]] = []

    class Counting(RecordingWal):
        def write(self, group: Any, *, sync: bool) -> Any:
            written.append([len(operation.entries) for operation in group.get(1, [])])
            return super().write(group, sync=sync)

    async def body(log: Log, wal: RecordingWal) -> None:
        held = log.append(8, b"hold the worker")
        await under_way(log)
        waiters = [log.append(1, b"a"), log.submit(1, Operation((Entry(5, b"b"),)))]
        waiters += [log.submit(1, Operation(meta={"name": b"value"})), log.append(1, b"c")]
        await held
        assert [await waiter for waiter in waiters] == [1, 5, 5, 6]
        assert written == [[], [2, 0, 1]]
        assert await log.read(1) == [Entry(1, b"a"), Entry(5, b"b"), Entry(6, b"c")]
        assert log.statistics()[0].operations == 5
        assert log.statistics()[0].entries == 4

    on_log(body, wal=Counting())


def test_linger_gathers_company_and_can_be_moved_at_run_time() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        async def one(partition: int) -> None:
            await asyncio.sleep(partition / 1000)
            await log.append(partition, b"x")

        async def five() -> int:
            before = len(wal.groups)
            async with asyncio.TaskGroup() as tasks:
                for partition in range(5):
                    tasks.create_task(one(partition))
            return len(wal.groups) - before

        alone = await five()
        log.linger_ns = 10_000_000
        assert log.linger_ns == 10_000_000
        assert await five() == 1 < alone

    on_log(body)


def test_a_full_lane_refuses_at_once_and_nothing_was_accepted() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        waiters = [log.append(1, b"x") for _ in range(4)]
        with pytest.raises(Backpressure) as refused:
            log.append(1, b"refused")
        assert refused.value.depth == 4
        assert refused.value.limit == "4 items"
        assert refused.value.lane == "writer/1"
        assert refused.value.retry_after_ns > 0
        finishing = Operation((Entry(5, b"commit"),))
        waiters.append(log.submit(1, finishing, finishing=True))
        waiters.append(log.append(2, b"another lane"))
        for waiter in waiters:
            await waiter
        assert [entry.payload for entry in await log.read(1)] == [b"x"] * 4 + [b"commit"]
        assert log.statistics()[0].refused == 1

    on_log(body, lane=LaneLimits(items=4), reserve_items=1)


def test_a_full_lane_stays_within_its_bytes() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        waiters = [log.append(1, b"x" * 50_000) for _ in range(39)]
        with pytest.raises(Backpressure, match="2000000 bytes"):
            log.append(1, b"x" * 50_000)
        assert log.statistics()[0].size <= 2_000_000
        for waiter in waiters:
            await waiter
        assert log.statistics()[0].size == 0

    on_log(body, lane=LaneLimits(size=2_000_000))


@pytest.mark.parametrize(
    ("operation", "complaint"),
    [
        (Operation((Entry(1, b"again"),)), "keys must rise: 1 does not follow 3"),
        (Operation((Entry(5, b""), Entry(5, b""))), "keys must rise: 5 does not follow 5"),
        (Operation((Entry(4, b"", -1),)), "term -1 is out of range"),
        (Operation((Entry(4, "text"),)), "a payload is bytes, not str"),  # type: ignore[arg-type]
        (Operation((Entry(INT_MAX + 1, b""),)), "does not follow"),
        (Operation(compact_before=9), "cannot compact before 9: the last key is 3"),
        (Operation(truncate_after=-1), "cannot truncate after -1"),
        (Operation((Entry(4, b""),), delete=True), "a delete stands alone"),
        (Operation((Entry(4, b"x" * 2_000_000),)), "never fits a lane"),
    ],
)
def test_a_wrong_operation_is_refused_and_changes_nothing(
    operation: Operation, complaint: str
) -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        for _ in range(3):
            await log.append(1, b"x")
        with pytest.raises(InvalidOperation, match=complaint):
            log.submit(1, operation)
        assert await log.append(1, b"next") == 4
        assert len(await log.read(1)) == 4

    on_log(body, lane=LaneLimits(size=1_500_000))


def test_wrong_partitions_and_payloads_are_refused() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        await log.append(1, b"x")
        for partition in (-1, INT_MAX + 1, "1", 1.5, 1.0, True):
            with pytest.raises(InvalidOperation, match="not a number in range"):
                log.append(partition, b"")  # type: ignore[arg-type]
        with pytest.raises(InvalidOperation, match="bytes, not str"):
            log.append(1, "text")  # type: ignore[arg-type]
        with pytest.raises(InvalidOperation, match="out of range"):
            log.append(1, b"", term=-1)
        assert log.partitions() == [1]
        assert len(await log.read(1)) == 1

    on_log(body)


def test_what_was_queued_behind_a_failure_fails_with_it_and_then_the_lane_goes_on() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        wal.answers = [lambda group: dict.fromkeys(group, WriteFailed("no space"))]
        first = log.append(1, b"a")
        await under_way(log)
        behind, other = log.append(1, b"b"), log.append(2, b"other")
        with pytest.raises(WriteFailed, match="no space"):
            await first
        with pytest.raises(WriteFailed, match=r"an earlier operation .* failed"):
            await behind
        assert await other == 1
        assert await log.append(1, b"c") == 1, "the failed keys are free again"
        assert [entry.payload for entry in await log.read(1)] == [b"c"]
        assert log.statistics()[0].failed == 2

    on_log(body)


def test_a_failed_partition_does_not_fail_its_neighbours() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        held = log.append(8, b"hold the worker")
        await under_way(log)
        wal.answers = [None]
        wal.fail_shard(1, write=OSError("bad sector"))
        bad, good = log.append(1, b"x"), log.append(2, b"y")
        await held
        with pytest.raises(WriteFailed):
            await bad
        assert await good == 1
        assert wal.groups[-1][1] == {1: [1], 2: [1]}, "both were in one group"

    on_log(body, wal=RecordingWal(shards=2), workers=1)


def test_a_raising_store_leaves_doubt_and_a_living_worker() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        def write_then_raise(group: Any) -> Any:
            MemoryWal.write(wal, group, sync=True)
            raise RuntimeError("the cable was pulled")

        wal.answers = [write_then_raise, RuntimeError("again")]
        with pytest.raises(OutcomeUnknown, match="the cable was pulled") as doubt:
            await log.append(1, b"written all the same")
        assert isinstance(doubt.value.__cause__, RuntimeError)
        with pytest.raises(OutcomeUnknown, match="again"):
            await log.append(1, b"not written")
        assert await log.append(1, b"next") == 2, "the store was asked where the partition ends"
        assert [e.payload for e in await log.read(1)] == [b"written all the same", b"next"]

    on_log(body)


def test_a_failure_is_told_after_the_successes_before_it() -> None:
    told: list[str] = []

    async def body(log: Log, wal: RecordingWal) -> None:
        wal.answers = [None, lambda group: dict.fromkeys(group, WriteFailed("no space"))]
        for number in range(200):  # more than are told in one turn of the loop
            waiter = log.append(1, b"x")
            waiter.add_done_callback(
                lambda done, number=number: told.append("failed" if done.exception() else "done")
            )
        await under_way(log)
        behind = log.append(1, b"y")
        with pytest.raises(WriteFailed):
            await behind
        assert told == ["done"] * 100 + ["failed"] * 100

    on_log(body, max_batch=100, latency_ns=(0, 0))


def test_a_partition_that_cannot_be_looked_at_again_is_closed_until_it_can() -> None:
    class Blind(RecordingWal):
        sees = False

        def tail(self, partition: int) -> Any:
            if not self.sees:
                raise OSError("gone")
            return super().tail(partition)

    wal = Blind()

    async def body(log: Log, _: RecordingWal) -> None:
        assert await log.append(1, b"a") == 1
        wal.answers = [RuntimeError("lost")]
        with pytest.raises(OutcomeUnknown):
            await log.append(1, b"b")
        for _ in range(3):
            with pytest.raises(WriteFailed, match=r"in doubt.*looking again failed: gone"):
                log.append(1, b"c")
            with pytest.raises(WriteFailed, match="in doubt"):
                log.last_key(1)  # what was known before is no answer
            await asyncio.sleep(UPKEEP_S)
        assert await log.append(2, b"d") == 1
        wal.sees = True
        await asyncio.sleep(2 * UPKEEP_S)
        assert await log.append(1, b"c") == wal.tail(1).last_key
        assert log.partitions() == [1, 2]

    on_log(body, wal=wal)


def test_an_error_with_more_than_a_message_is_told_whole() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        cause = Corrupt("acknowledged data is gone", place="db", partition=1)
        wal.answers = [lambda group: dict.fromkeys(group, cause)]
        first, second = log.append(1, b"a"), log.append(1, b"b")
        for waiter in (first, second):
            with pytest.raises(Corrupt, match="acknowledged data is gone") as told:
                await waiter
            assert (told.value.place, told.value.partition) == ("db", 1)
            assert told.value is not cause
        assert await log.append(2, b"c") == 1

    on_log(body)


def test_a_fenced_owner_is_told_so() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        wal.answers = [lambda group: dict.fromkeys(group, Fenced("epoch 2 took over"))]
        with pytest.raises(Fenced, match="epoch 2 took over"):
            await log.append(1, b"a")

    on_log(body)


def test_what_only_memory_acknowledged_and_then_failed_is_counted() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        wal.answers = [lambda group: dict.fromkeys(group, WriteFailed("no space"))]
        assert log.append(1, b"gone", durability=Durability.MEMORY).result() == 1
        assert await log.append(2, b"another group") == 1
        assert log.statistics()[0].lost == 1

    on_log(body, max_group_partitions=1)


def test_what_is_urgent_does_not_wait_for_company() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        slow = log.append(1, b"a")
        await slow
        assert loop.time() - begin >= 1, "this one lingered"
        begin = loop.time()
        company = log.append(1, b"b")
        urgent = loop.create_future()
        log.submit_for(resolve(urgent), 2, Operation((Entry(1, b"c"),)), urgent=True)
        assert await urgent == 1
        assert loop.time() - begin < 0.1
        assert await company == 2
        assert wal.groups[-1][1] == {1: [2], 2: [1]}, "who waited goes along"

    on_log(body, linger_ns=1_000_000_000)


def test_cancelling_a_waiter_withdraws_nothing() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        waiter = log.append(1, b"still written")
        assert waiter.cancel()
        assert await log.append(1, b"next") == 2
        assert [e.payload for e in await log.read(1)] == [b"still written", b"next"]

    on_log(body)


def test_leaving_completes_everything_accepted_whatever_the_backlog() -> None:
    waiters: list[asyncio.Future[int]] = []

    async def body(log: Log, wal: RecordingWal) -> None:
        waiters.extend(log.append(p, b"x") for p in range(8) for _ in range(2000))

    wal = on_log(body, max_batch=16, max_group_partitions=2)
    assert [waiter.result() for waiter in waiters] == [k for _ in range(8) for k in range(1, 2001)]
    assert sum(len(keys) for _, g in wal.groups for keys in g.values()) == 16_000


def test_a_closed_log_refuses() -> None:
    async def main() -> None:
        log = Log(MemoryWal())
        with pytest.raises(Closing, match="not open"):
            log.append(1, b"early")
        async with log:
            await log.append(1, b"x")
        with pytest.raises(Closing, match="closed"):
            log.append(1, b"late")
        with pytest.raises(Closing):
            await log.read(1)

    run(main, quiet=True)


def test_an_abrupt_end_tells_every_caller() -> None:
    told: dict[str, list[str]] = {}

    async def main() -> None:
        async with Log(MemoryWal(), writer=WriterConfig(max_batch=1)) as log:
            waiters = [log.append(1, b"x") for _ in range(5)]
            await asyncio.sleep(0)
            end_services("log-writer", "log-reader", "log-upkeep")
            await asyncio.sleep(0.01)
            told["names"] = [type(waiter.exception()).__name__ for waiter in waiters]
            with pytest.raises(Closing):
                log.append(1, b"late")

    run(main, quiet=True)
    assert told["names"][0] == "OutcomeUnknown"
    assert set(told["names"][1:]) <= {"WriteFailed", "Closing"}


def test_a_deleted_partition_is_gone_at_once_and_its_number_free_once_swept() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        for _ in range(2500):
            waiter = log.append(1, b"x")
        await waiter
        await log.append(2, b"stays")
        await log.delete(1)
        assert await log.read(1) == []
        assert log.partitions() == [2]
        with pytest.raises(InvalidOperation, match="being deleted"):
            log.append(1, b"too early")
        await asyncio.sleep(1)  # virtual: the upkeep sweeps in chunks
        assert await log.append(1, b"anew") == 1
        assert log.partitions() == [1, 2]
        assert [e.payload for e in await log.read(1)] == [b"anew"]

    on_log(body)


def test_a_delete_that_fails_leaves_the_partition() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        await log.append(1, b"x")
        wal.answers = [lambda group: dict.fromkeys(group, WriteFailed("no space"))]
        with pytest.raises(WriteFailed):
            await log.submit(1, DELETE)
        assert log.partitions() == [1]
        assert await log.append(1, b"y") == 2

    on_log(body)


def test_statistics_and_telemetry_tell_the_same() -> None:
    telemetry = Telemetry()

    async def main() -> None:
        async with Log(MemoryWal(), telemetry=telemetry) as log:
            waiters = [log.append(p, b"x") for p in range(4) for _ in range(3)]
            seen = log.statistics()[0]
            assert seen.depths == dict.fromkeys(range(4), (3, 3 * 97))
            for waiter in waiters:
                await waiter
            await log.read(1)
            writer, reader = log.statistics()
            assert (writer.groups, writer.operations, writer.entries) == (1, 12, 12)
            assert (writer.syncs, writer.depth) == (1, 0)
            assert writer.syncs_per_entry == 1 / 12
            assert writer.group_operations.count == writer.write_ns.count == 1
            assert (reader.turns, reader.reads, reader.refused) == (1, 1, 0)
            series = {one.name: one.value for one in telemetry.snapshot()}
            assert series["fairway_log_entries"] == 12
            assert series["fairway_log_syncs"] == 1
            assert series["fairway_log_depth"] == 0
            assert series["fairway_log_reads"] == 1

    run(main, quiet=True)


@pytest.mark.parametrize(
    "config",
    [
        {"max_batch": 0},
        {"max_group_partitions": 0},
        {"linger_ns": -1},
        {"workers": 0},
        {"max_batch_bytes": 100, "lane": LaneLimits(size=50)},
        {"total": LaneLimits(size=1000)},
    ],
)
def test_a_config_that_cannot_work_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        WriterConfig(**config)


def test_a_slow_sync_leaves_the_event_loop_turning() -> None:
    """On a real loop and a real thread: the sync ends only when the loop has turned 1,000 times."""
    synced = threading.Event()

    async def main() -> int:
        turns = 0
        async with Log(MemoryWal(sync=lambda: assert_set(synced))) as log:
            waiter = log.append(1, b"x")
            while turns < 1000:
                await asyncio.sleep(0)
                turns += 1
                assert not waiter.done(), "acknowledged before its sync"
            synced.set()
            assert await waiter == 1
        return turns

    def assert_set(event: threading.Event) -> None:
        assert event.wait(30)

    assert asyncio.run(main()) == 1000


def test_a_crowd_that_appends_pauses_for_the_thread_that_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a real loop and a real thread, which has the first append until the last is accepted."""
    pauses = 0
    accepted = threading.Event()

    def pause() -> None:
        nonlocal pauses
        pauses += 1

    def hold() -> None:
        assert accepted.wait(30)

    async def main(count: int) -> int:
        async with Log(MemoryWal(sync=hold)) as log:
            waiters = [log.append(1, b"x")]
            await under_way(log)
            waiters += [log.append(1, b"x") for _ in range(count)]
            paused = pauses
            accepted.set()
            await asyncio.gather(*waiters)
        return paused

    monkeypatch.setattr("fairway.runtime.blocking.pause_for_threads", pause)
    assert asyncio.run(main(TURN.offers_per_pause - 1)) == 0, "not for a few"
    accepted.clear()
    assert asyncio.run(main(4000)) > 0


def test_what_is_urgent_is_told_with_its_group_and_the_rest_in_turns() -> None:
    notified: list[int | None] = []

    def on_done(key: int | None, error: BaseException | None) -> None:
        assert error is None
        notified.append(key)

    async def body(log: Log, wal: RecordingWal) -> None:
        log.acks_per_turn = 8
        log.append(8, b"hold the worker")
        await under_way(log)
        others = [log.append(100 + number, b"x") for number in range(40)]
        for number in range(8):  # as many as may be; those of the others come first
            operation = Operation((Entry(number + 1, b"y"),))
            log.submit_for(on_done, 2, operation, urgent=True)
        assert written(log).urgent_waits
        await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        assert notified == list(range(1, 9)), "all of them before most of the others"
        assert not all(waiter.done() for waiter in others)
        assert not written(log).urgent_waits
        await asyncio.gather(*others)

    on_log(body)


def test_what_is_urgent_presses_until_it_is_written() -> None:
    """Also what leaves the last key where it was."""

    async def body(log: Log, wal: RecordingWal) -> None:
        loop = asyncio.get_running_loop()
        first, second = loop.create_future(), loop.create_future()
        log.submit_for(resolve(first), 2, Operation(meta={"a": b"1"}), urgent=True)
        await under_way(log)
        log.submit_for(resolve(second), 2, Operation(meta={"b": b"2"}), urgent=True)
        await first
        assert not second.done()
        assert written(log).urgent_waits
        await second
        assert not written(log).urgent_waits

    on_log(body)


def test_an_urgent_write_that_fails_presses_no_more() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        wal.answers = [OSError("no")]
        urgent: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        log.submit_for(resolve(urgent), 2, Operation((Entry(1, b"y"),)), urgent=True)
        with pytest.raises(OutcomeUnknown):
            await urgent
        assert not written(log).urgent_waits

    on_log(body)


def test_what_the_store_has_done_is_heard_of_in_the_same_turn_if_something_urgent_waits() -> None:
    """On a real loop and a real thread; the loop does not turn while it waits."""

    async def main(urgent: bool) -> bool:
        async with Log(MemoryWal()) as log:
            log.expedite()
            waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            log.submit_for(resolve(waiter), 1, Operation((Entry(1, b"y"),)), urgent=urgent)
            await under_way(log)
            while not log.pool.ended:
                pass  # its thread is about to say so
            assert not waiter.done()
            log.expedite()
            heard = waiter.done()
            await waiter
        log.expedite()  # closed: nothing to hear of
        return heard

    assert asyncio.run(main(urgent=True))
    assert not asyncio.run(main(urgent=False)), "better to wait for company"


@pytest.mark.parametrize(("waiting", "heard"), [(TURN.group_enough_bytes, True), (1000, False)])
def test_what_the_store_has_done_is_heard_of_in_the_same_turn_if_enough_waits(
    waiting: int, heard: bool
) -> None:
    """On a real loop and a real thread; the loop does not turn while it waits."""

    async def main() -> None:
        async with Log(MemoryWal()) as log:
            first = log.append(1, b"x")
            await under_way(log)
            while not log.pool.ended:
                pass  # its thread is about to say so
            second = log.append(2, b"y" * waiting)
            log.expedite()
            assert first.done() is heard
            assert groups_under_way(log), "of either"
            await asyncio.gather(first, second)

    asyncio.run(main())


def test_what_another_worker_writes_is_no_company_at_hand() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        large = log.append(1, b"x" * TURN.group_enough_bytes)
        assert written(log).enough_waits
        await under_way(log)
        small = log.append(2, b"y")
        assert not written(log).enough_waits
        await asyncio.gather(large, small)

    on_log(body, workers=2)


def test_a_turn_pauses_for_the_thread_that_writes_while_something_urgent_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a real loop and a real thread, which has the write until it may go on."""
    pauses: list[int] = []
    may_go_on = threading.Event()

    def hold() -> None:
        assert may_go_on.wait(30)

    async def main(urgent: bool) -> None:
        async with Log(MemoryWal(sync=hold)) as log:
            waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            log.submit_for(resolve(waiter), 1, Operation((Entry(1, b"y"),)), urgent=urgent)
            await under_way(log)
            log.expedite()
            log.expedite()  # at once again, which is too soon if this machine is awake
            may_go_on.set()
            await waiter

    monkeypatch.setattr("fairway.runtime.blocking.pause_for_threads", lambda: pauses.append(1))
    asyncio.run(main(urgent=False))
    assert not pauses
    may_go_on.clear()
    asyncio.run(main(urgent=True))
    assert 1 <= len(pauses) <= 2


class Client:
    """Whoever hears of a write and asks for the next one at once, as most clients do."""

    def __init__(self, log: Log, partition: int, times: int) -> None:
        self.last: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._log = log
        self._partition = partition
        self._times = times

    def on_done(self, key: int | None, error: BaseException | None) -> None:
        if key is None or key == self._times:
            settle(self.last, key, error)
        else:
            self.ask(key + 1)

    def ask(self, key: int) -> None:
        self._log.submit_for(self.on_done, self._partition, Operation((Entry(key, b"x"),)))


def groups_under_way(log: Log) -> int:
    return len(written(log).under_way)


def test_a_group_waits_for_those_who_are_still_being_notified() -> None:
    """They are notified a few in each turn, and come again: one group, not several small ones."""

    async def body(log: Log, wal: RecordingWal) -> None:
        log.acks_per_turn = 8
        clients = [Client(log, partition, 4) for partition in range(50)]
        for client in clients:
            client.ask(1)
        await asyncio.gather(*(client.last for client in clients))

    wal = on_log(body)
    assert [len(group) for _, group in wal.groups] == [50] * 4


@pytest.mark.parametrize("last", [b"y", b"y" * TURN.group_enough_bytes])
def test_a_group_waits_for_nobody_once_it_has_enough(last: bytes) -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        log.acks_per_turn = 1
        told = [log.append(partition, b"x") for partition in range(30)]
        await told[0]
        for _ in range(4):
            log.append(50, b"y")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not groups_under_way(log)
        log.append(50, last)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert groups_under_way(log)
        assert not told[-1].done()
        await asyncio.gather(*told)

    on_log(body, max_batch=5 if last == b"y" else 256)


@pytest.mark.parametrize(("waiting", "meanwhile"), [(TURN.group_enough_bytes, [2]), (1000, [1])])
def test_the_store_goes_on_while_callers_are_told_if_enough_bytes_wait(
    waiting: int, meanwhile: list[int]
) -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        seen: list[int] = []
        first: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def on_done(key: int | None, error: BaseException | None) -> None:
            seen.extend(key for group in written(log).under_way for key in group)
            settle(first, key, error)

        log.submit_for(on_done, 1, Operation.appending(1, b"x", 0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert groups_under_way(log)
        second = log.append(2, b"y" * waiting)
        await asyncio.gather(first, second)
        assert seen == meanwhile

    on_log(body)


@pytest.mark.parametrize(
    ("expedited", "count"), [(True, 1), (False, 1), (False, TURN.urgent_writes_per_window + 1)]
)
def test_what_is_urgent_waits_neither_for_those_nor_for_the_next_turn(
    expedited: bool, count: int
) -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        log.acks_per_turn = 1
        crowd = [log.append(partition, b"x") for partition in range(40)]
        await crowd[0]
        other = log.append(50, b"waits with it")
        await asyncio.sleep(0)
        urgent = [asyncio.get_running_loop().create_future() for _ in range(count)]
        for key, waiter in enumerate(urgent, 1):
            log.submit_for(resolve(waiter), 60, Operation((Entry(key, b"y"),)), urgent=True)
        assert not groups_under_way(log), "it waits for those who are being told"
        if expedited:
            log.expedite()
        else:
            await asyncio.sleep(0)
        assert groups_under_way(log)
        assert not crowd[-1].done()
        await asyncio.gather(other, *urgent, *crowd)

    wal = on_log(body)
    assert wal.groups[1][1] == {50: [1], 60: list(range(1, count + 1))}


def test_the_group_of_something_urgent_follows_in_the_turn_that_hears_of_the_one_before() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        seen: list[int] = []
        loop = asyncio.get_running_loop()

        def on_done(
            first: asyncio.Future[int], key: int | None, error: BaseException | None
        ) -> None:
            loop.call_soon(lambda: seen.append(groups_under_way(log)))
            settle(first, key, error)

        for urgent in (True, False):
            first, second = loop.create_future(), loop.create_future()
            operation = Operation.appending(2 - urgent, b"x", 0)
            log.submit_for(partial(on_done, first), 1, operation)
            await under_way(log)
            log.submit_for(resolve(second), 2, operation, urgent=urgent)
            await asyncio.gather(first, second)
        assert seen == [1, 0], "others wait a turn for company"

    on_log(body)


def test_a_group_with_something_urgent_follows_at_once_however_long_others_linger() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for count in (
            TURN.urgent_writes_per_window,
            TURN.urgent_writes_per_window + 1,
        ):  # few, and so many that none is expedited
            first = loop.create_future()
            log.submit_for(resolve(first), 1, Operation((Entry(count, b"y"),)), urgent=True)
            await under_way(log)
            urgent = [loop.create_future() for _ in range(count)]
            for partition, waiter in enumerate(urgent):
                operation = Operation((Entry(count, b"y"),))
                log.submit_for(resolve(waiter), 100 + partition, operation, urgent=True)
            await asyncio.gather(first, *urgent)
        assert loop.time() - begin < 0.1, "the time of four writes"
        begin = loop.time()
        await log.append(1, b"x")
        assert loop.time() - begin >= 1, "the others linger"

    on_log(body, linger_ns=1_000_000_000)


def test_where_much_is_urgent_nothing_is_expedited() -> None:
    """Then large groups are worth more; and it is over when a while has passed with little."""

    async def body(log: Log, wal: RecordingWal) -> None:
        loop = asyncio.get_running_loop()
        key = 0

        def submit() -> asyncio.Future[int]:
            nonlocal key
            key += 1
            waiter: asyncio.Future[int] = loop.create_future()
            log.submit_for(resolve(waiter), 2, Operation((Entry(key, b"y"),)), urgent=True)
            return waiter

        waiters = [submit() for _ in range(TURN.urgent_writes_per_window)]
        assert written(log).urgent_waits
        waiters.append(submit())
        assert not written(log).urgent_waits
        await asyncio.gather(*waiters)
        await asyncio.sleep(TURN.urgent_window_ns / 1e9)
        waiter = submit()
        assert not written(log).urgent_waits, "there were many in the window before"
        await waiter
        await asyncio.sleep(TURN.urgent_window_ns / 1e9)
        waiter = submit()
        assert written(log).urgent_waits
        await waiter
        await asyncio.gather(*(submit() for _ in range(TURN.urgent_writes_per_window + 1)))
        await asyncio.sleep(2 * TURN.urgent_window_ns / 1e9)
        waiter = submit()
        assert written(log).urgent_waits, "that was long ago"
        await waiter

    on_log(body, latency_ns=(1000, 1000))


class Presser:
    """Whoever makes another request begin when it is notified, which expedites writes."""

    def __init__(self, log: Log, notified: list[int | None], at: int) -> None:
        self.future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._log = log
        self._notified = notified
        self._at = at

    def on_done(self, key: int | None, error: BaseException | None) -> None:
        self._notified.append(key)
        settle(self.future, key, error)
        if key == self._at:
            until_ended(self._log)
            self._log.expedite()


def until_ended(log: Log) -> None:
    """Let this turn of a real loop last until the store has answered."""
    while not log.pool.ended:
        pass


@pytest.mark.parametrize("per_turn", [None, 3])
def test_no_group_is_notified_in_the_middle_of_another(per_turn: int | None) -> None:
    """On a real loop and real threads; the next group goes ahead while this one is notified."""

    async def main() -> list[int | None]:
        notified: list[int | None] = []
        async with Log(MemoryWal(), writer=WriterConfig(max_batch=4)) as log:
            log.acks_per_turn = per_turn
            pressers = [Presser(log, notified, at=1) for _ in range(12)]
            for key, presser in enumerate(pressers, 1):
                operation = Operation.appending(key, b"x", 0)
                log.submit_for(presser.on_done, 1, operation, urgent=key % 4 == 0)
            await asyncio.gather(*(presser.future for presser in pressers))
        return notified

    assert asyncio.run(main()) == list(range(1, 13))


def test_a_group_that_fails_while_others_are_told_stops_nobody() -> None:
    """On a real loop and a real thread. The second group of a partition fails, and the store has
    said so while callers of its first are being told, one of whom expedites writes."""
    may_fail = threading.Event()

    class Failing(MemoryWal):
        groups = 0

        def write(self, group: Any, *, sync: bool) -> Any:
            self.groups += 1
            if self.groups == 2:
                assert may_fail.wait(30)
                return {1: WriteFailed("disk full")}
            return super().write(group, sync=sync)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with Log(Failing()) as log:
            log.acks_per_turn = 4
            notified: list[int | None] = []
            pressers = [Presser(log, notified, at=10) for _ in range(40)]
            first = [presser.future for presser in pressers]
            for key, presser in enumerate(pressers, 1):
                log.submit_for(presser.on_done, 1, Operation.appending(key, b"x", 0))
            await first[0]
            second, urgent, more = (loop.create_future() for _ in range(3))
            log.submit_for(resolve(second), 1, Operation.appending(41, b"x", 0))
            log.submit_for(resolve(urgent), 2, Operation.appending(1, b"x", 0), urgent=True)
            log.expedite()
            log.submit_for(resolve(more), 3, Operation.appending(1, b"x", 0), urgent=True)
            may_fail.set()
            with pytest.raises(WriteFailed):
                await second
            await asyncio.gather(urgent, more, *first)
            assert notified == list(range(1, 41))
            assert await log.append(4, b"x") == 1

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize("behind", [1, TURN.group_enough_bytes])
def test_a_fault_while_callers_are_told_ends_the_log_and_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    waiters: list[asyncio.Future[int]] = []

    async def body(log: Log, wal: RecordingWal) -> None:
        writer = log._writer
        assert writer is not None
        monkeypatch.setattr(writer, "_complete", lambda part: 1 / 0)
        first = log.append(1, b"x")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = log.append(2, b"y" * behind)
        waiters.extend((first, second))
        await asyncio.wait(waiters)

    with pytest.raises(ExceptionGroup) as raised:
        on_log(body)
    assert raised.group_contains(ZeroDivisionError)
    told = [type(waiter.exception()) for waiter in waiters if waiter.done()]
    assert told == [OutcomeUnknown, Closing if behind == 1 else OutcomeUnknown]


def test_a_pool_that_takes_nothing_fails_everybody_one_group_after_the_other() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        loop = asyncio.get_running_loop()
        await log.append(1, b"x")

        def refuse(*args: Any) -> None:
            raise Closing("the pool is closing")

        submit, log.pool.submit = log.pool.submit, refuse  # type: ignore[method-assign]
        waiters = [loop.create_future() for _ in range(3000)]
        for number, waiter in enumerate(waiters):
            operation = Operation.appending(1, b"x", 0)
            log.submit_for(resolve(waiter), 100 + number, operation, urgent=number == 2999)
        told = await asyncio.gather(*waiters, return_exceptions=True)
        assert all(isinstance(one, FairwayError) for one in told)
        log.pool.submit = submit  # type: ignore[method-assign]

    on_log(body, max_group_partitions=1)


def test_nothing_is_written_once_the_writer_has_ended() -> None:
    """Not even for a caller who expedites writes when it hears that its write was abandoned."""

    async def body(log: Log, wal: RecordingWal) -> None:
        await log.append(1, b"x")

        def abandoned(key: int | None, error: BaseException | None) -> None:
            assert isinstance(error, Closing | OutcomeUnknown)
            log.expedite()

        end_services("log-writer")
        for partition in range(100, 300):
            log.submit_for(abandoned, partition, Operation.appending(1, b"x", 0))
        log.submit_for(abandoned, 400, Operation.appending(1, b"x", 0), urgent=True)
        await asyncio.sleep(1)
        assert len(wal.groups) == 1

    on_log(body, workers=2)


def test_who_waits_when_the_log_ends_hears_of_it_after_those_before() -> None:
    """Also where callers are told a few at a time, and some are still to be told."""

    async def body(log: Log, wal: RecordingWal) -> None:
        log.acks_per_turn = 1
        told: list[tuple[int, bool]] = []
        waiters = [log.append(1, b"x") for _ in range(6)]
        await waiters[0]
        waiters.append(log.append(1, b"too late"))
        for number, waiter in enumerate(waiters):
            waiter.add_done_callback(
                lambda done, number=number: told.append((number, done.exception() is None))
            )
        end_services("log-writer")
        await asyncio.wait(waiters)
        assert told == [*((number, True) for number in range(6)), (6, False)]

    on_log(body)


def test_a_group_that_the_pool_refuses_is_told_after_the_one_that_is_being_told() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        told: list[tuple[int, bool]] = []
        waiters = [log.append(1, b"x") for _ in range(8)]
        for number, waiter in enumerate(waiters, 1):
            waiter.add_done_callback(
                lambda done, number=number: told.append((number, done.exception() is None))
            )
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert groups_under_way(log)

        def refuse(*args: Any) -> None:
            raise Closing("the pool is closing")

        submit, log.pool.submit = log.pool.submit, refuse  # type: ignore[method-assign]
        await asyncio.wait(waiters)
        log.pool.submit = submit  # type: ignore[method-assign]
        assert told == [(number, number <= 4) for number in range(1, 9)]
        await asyncio.sleep(2 * UPKEEP_S)  # then the store is asked
        assert log.last_key(1) == 4

    on_log(body, max_batch=4)


class Heard:
    """Each time that a caller was notified, by name."""

    def __init__(self) -> None:
        self.of: dict[str, list[object]] = {}

    def on_done(self, name: str) -> OnDone[int]:
        self.of[name] = []
        return partial(self._note, name)

    def _note(self, name: str, key: int | None, error: BaseException | None) -> None:
        assert (key is None) is (error is not None)
        self.of[name].append(key if error is None else type(error))


@pytest.mark.parametrize("per_turn", [None, 1])
def test_a_caller_is_notified_once_that_its_write_is_done(per_turn: int | None) -> None:
    heard = Heard()

    async def body(log: Log, wal: RecordingWal) -> None:
        log.acks_per_turn = per_turn
        log.submit_for(heard.on_done("synced"), 1, Operation.appending(1, b"a", 0))
        assert heard.of["synced"] == [], "not before the call has returned"
        operation = Operation.appending(2, b"b", 0)
        log.submit_for(heard.on_done("memory"), 1, operation, durability=Durability.MEMORY)
        assert heard.of["memory"] == [2], "within the call, by its contract"
        log.submit_for(heard.on_done("urgent"), 1, Operation.appending(3, b"c", 0), urgent=True)
        await asyncio.sleep(1)
        assert heard.of == {"synced": [1], "memory": [2], "urgent": [3]}
        log.submit_for(heard.on_done("at close"), 1, Operation.appending(4, b"d", 0))

    on_log(body)
    assert heard.of == {"synced": [1], "memory": [2], "urgent": [3], "at close": [4]}


@pytest.mark.parametrize("answer", [OSError("no"), {1: WriteFailed("disk full")}])
def test_a_caller_is_notified_once_that_its_write_failed(answer: Any) -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        heard = Heard()
        wal.answers = [answer if isinstance(answer, Exception) else lambda group: answer]
        log.submit_for(heard.on_done("failed"), 1, Operation.appending(1, b"a", 0))
        await under_way(log)
        log.submit_for(heard.on_done("behind"), 1, Operation.appending(2, b"b", 0))
        await asyncio.sleep(1)
        kind = OutcomeUnknown if isinstance(answer, Exception) else WriteFailed
        assert heard.of == {"failed": [kind], "behind": [WriteFailed]}

    on_log(body)


def test_a_caller_is_notified_once_that_its_write_was_interrupted_or_abandoned() -> None:
    """The store answers afterwards, and nobody hears of that."""
    heard = Heard()

    async def body(log: Log, wal: RecordingWal) -> None:
        log.submit_for(heard.on_done("interrupted"), 1, Operation.appending(1, b"a", 0))
        await under_way(log)
        log.submit_for(heard.on_done("behind"), 1, Operation.appending(2, b"b", 0))
        log.submit_for(heard.on_done("abandoned"), 2, Operation.appending(1, b"c", 0))
        end_services("log-writer")
        await asyncio.sleep(1)

    on_log(body)
    assert heard.of == {
        "interrupted": [OutcomeUnknown],
        "behind": [WriteFailed],
        "abandoned": [Closing],
    }


@pytest.mark.parametrize("behind", [1, TURN.group_enough_bytes])
def test_a_caller_is_notified_once_if_the_log_fails_while_callers_are_notified(
    monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    heard = Heard()

    async def body(log: Log, wal: RecordingWal) -> None:
        writer = log._writer
        assert writer is not None
        complete = writer._complete

        def failing(part: Any) -> None:
            if part.key == 2:
                raise ZeroDivisionError
            complete(part)

        monkeypatch.setattr(writer, "_complete", failing)
        log.submit_for(heard.on_done("before"), 1, Operation.appending(1, b"a", 0))
        log.submit_for(heard.on_done("at"), 2, Operation.appending(1, b"b", 0))
        log.submit_for(heard.on_done("after"), 3, Operation.appending(1, b"c", 0))
        await under_way(log)
        log.append(4, b"y" * behind)
        await asyncio.sleep(1)

    with pytest.raises(ExceptionGroup) as raised:
        on_log(body)
    assert raised.group_contains(ZeroDivisionError)
    assert heard.of == {"before": [1], "at": [OutcomeUnknown], "after": [OutcomeUnknown]}


def test_each_caller_has_an_error_of_its_own() -> None:
    async def body(log: Log, wal: RecordingWal) -> None:
        failed = WriteFailed("disk full")
        wal.answers = [lambda group: dict.fromkeys(group, failed)]
        errors: list[BaseException | None] = []
        for key in (1, 2):
            operation = Operation.appending(key, b"a", 0)
            log.submit_for(lambda _, error: errors.append(error), 1, operation)
        await asyncio.sleep(1)
        assert [str(error) for error in errors] == ["disk full"] * 2
        assert len({id(error) for error in (failed, *errors)}) == 3

    on_log(body)


@pytest.mark.parametrize("per_turn", [None, 1])
def test_a_callback_that_fails_is_logged_and_keeps_nobody_from_being_notified(
    caplog: pytest.LogCaptureFixture, per_turn: int | None
) -> None:
    def broken(key: int | None, error: BaseException | None) -> None:
        raise ZeroDivisionError

    async def body(log: Log, wal: RecordingWal) -> None:
        log.acks_per_turn = per_turn
        log.submit_for(broken, 1, Operation.appending(1, b"a", 0))
        others = [log.append(1, b"b"), log.append(2, b"c")]
        assert await asyncio.gather(*others) == [2, 1]
        wal.answers = [lambda group: dict.fromkeys(group, WriteFailed("disk full"))]
        log.submit_for(broken, 1, Operation.appending(3, b"a", 0))
        with pytest.raises(WriteFailed):
            await log.append(1, b"b")

    on_log(body)
    assert caplog.text.count("a callback failed") == 2
