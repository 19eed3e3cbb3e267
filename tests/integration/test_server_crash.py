"""kill -9 of a real server under load, again and again, with writers and consumers that come back.

For every consumer: delivered + tombstoned + deleted on request = every acknowledged seq. A consumer
knows nothing but the id or the cursor it was last given. The moment of the kill follows from the
number of acknowledgements, not from a clock.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from fairway.runtime.boot import boot_id
from tests.support.server import Api, Ended, ServerProcess, free_port, run, server_process, until

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from tests.conftest import Campaign

CONFIGS: dict[str, dict[str, Any]] = {
    "k.fsync": {},
    "k.disk": {"durability": "disk"},
    "k.memory": {"durability": "memory"},
    "k.capped": {"cap_records": 40},
    "k.cut": {},
}
REASONS: dict[str, set[str]] = {
    "k.fsync": set(),
    # Seqs that were reserved and never given out, where nobody knows that only the process died.
    "k.disk": {"crash"} if boot_id() is None else set(),
    "k.memory": {"crash"},
    "k.capped": {"cap"},
    "k.cut": set(),
}
"""What may be told to be lost, and why."""
WHOLE = ("k.fsync", "k.disk")
"""Topics of which nothing may be missing: their class survives the death of the process."""
CUT_OFF = (OSError, asyncio.IncompleteReadError, Ended)


class Ledger:
    """What was acknowledged, asked for and seen, over all lives of the server."""

    def __init__(self, tally: Counter[str]) -> None:
        self.tally = tally
        self.acked: dict[str, dict[int, str]] = {topic: {} for topic in CONFIGS}
        self.deleted_upto = 0
        self.values: dict[tuple[str, int], str] = {}
        self.open: dict[int, dict[str, Any]] = {}
        """By writer: the append whose answer never came."""
        self.written = 0

    def saw(self, topic: str, record: dict[str, Any]) -> None:
        known = self.values.setdefault((topic, record["$seq"]), record["data"])
        assert known == record["data"], f"{topic}: seq {record['$seq']} was given out twice"


class Consumer:
    """Somebody who must account for every seq."""

    def __init__(self, name: str, ledger: Ledger) -> None:
        self.name = name
        self.ledger = ledger
        self.delivered: dict[str, list[int]] = {topic: [] for topic in CONFIGS}
        self.lost: dict[str, list[tuple[int, int, str]]] = {topic: [] for topic in CONFIGS}
        self.caught_up: dict[str, int] = {}

    def take(self, topic: str, records: list[dict[str, Any]]) -> None:
        for record in records:
            self.ledger.saw(topic, record)
            self._move(topic, record["$seq"])
            self.delivered[topic].append(record["$seq"])
        self.ledger.tally["delivered"] += len(records)

    def lose(self, topic: str, facts: dict[str, Any]) -> None:
        self._move(topic, facts["gap_from"])
        self.lost[topic].append((facts["gap_from"], facts["gap_to"], facts["reason"]))
        self.ledger.tally[f"tombstones_{facts['reason']}"] += 1

    def _move(self, topic: str, seq: int) -> None:
        """Whatever comes is behind what came before: nothing twice, nothing out of order."""
        last = max([*self.delivered[topic][-1:], *(gap[1] for gap in self.lost[topic][-1:])] or [0])
        assert seq > last, f"{self.name} got {seq} of {topic} after {last}"

    def check(self, topic: str) -> None:
        seen = set(self.delivered[topic])
        tombstoned = {seq for first, last, _ in self.lost[topic] for seq in range(first, last + 1)}
        assert not seen & tombstoned, f"{self.name}: {topic}: delivered and told to be lost"
        deleted = self.ledger.deleted_upto if topic == "k.cut" else 0
        missing = {
            seq
            for seq in self.ledger.acked[topic]
            if seq not in seen and seq not in tombstoned and seq > deleted
        }
        assert not missing, f"{self.name}: {topic}: acknowledged and never heard of: {missing}"
        if topic in WHOLE:
            assert set(self.ledger.acked[topic]) <= seen, f"{self.name}: {topic}"
        reasons = {reason for _, _, reason in self.lost[topic]}
        assert reasons <= REASONS[topic], f"{self.name}: {topic}: {reasons}"
        for seq, value in self.ledger.acked[topic].items():
            if seq in seen:
                assert self.ledger.values[topic, seq] == value


class Single(Consumer):
    """An EventSource on one topic."""

    def __init__(self, topic: str, ledger: Ledger) -> None:
        super().__init__(f"watch of {topic}", ledger)
        self.topic = topic
        self.last_id: str | None = None

    async def run(self, api: Api) -> None:
        headers = {"last-event-id": self.last_id} if self.last_id is not None else {}
        stream = await api.watch(self.topic, headers=headers)
        while True:
            event = await stream.next()
            self.last_id = event.id
            self.note(event.name, event.data)

    def note(self, name: str, data: dict[str, Any]) -> None:
        if name == "record":
            self.take(data["topic"], data["records"])
        elif name == "tombstone":
            self.lose(data["topic"], data)
        elif name == "caught-up":
            self.caught_up[data["topic"]] = data["head_seq"]
        else:
            raise AssertionError(f"{name}: {data}")


class Several(Single):
    """One session on all topics, which survives the server that it was made on."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__("every topic", ledger)
        self.path: str | None = None

    async def run(self, api: Api) -> None:
        if self.path is None:
            self.path = await api.session(topics={topic: {} for topic in CONFIGS})
        headers = {"last-event-id": self.last_id} if self.last_id is not None else {}
        stream = await api.stream(self.path, headers=headers)
        while True:
            event = await stream.next()
            self.last_id = event.id
            self.note(event.name, event.data)


class Poller(Consumer):
    """Long polls from its own cursor."""

    def __init__(self, topic: str, ledger: Ledger) -> None:
        super().__init__(f"polls of {topic}", ledger)
        self.topic = topic
        self.cursor = 0

    async def run(self, api: Api) -> None:
        while True:
            page = await api.diff(self.topic, self.cursor, wait_ms=1000, limit=50)
            if page["tombstone"] is not None:
                self.lose(self.topic, page["tombstone"])
            self.take(self.topic, page["records"])
            self.cursor = page["next_from_seq"]
            if page["caught_up"]:
                self.caught_up[self.topic] = page["head_seq"]


async def until_cut_off(work: Any) -> None:
    try:
        await work
    except CUT_OFF:
        return


async def write(api: Api, number: int, ledger: Ledger, rng: random.Random) -> None:
    """Append with keys; what was under way when the server died is sent again, under its key."""
    while True:
        pending = ledger.open.get(number)
        if pending is None:
            ledger.written += 1
            base = f"{number}.{ledger.written}"
            count = rng.choice((1, 1, 1, 5))
            pending = {
                "topic": rng.choice(list(CONFIGS)),
                "records": [{"data": f"{base}.{at}"} for at in range(count)],
                "idempotency_key": base,
            }
            ledger.open[number] = pending
        else:
            ledger.tally["retried"] += 1
        body = {name: value for name, value in pending.items() if name != "topic"}
        topic = pending["topic"]
        answer = await api.post(f"/v0/topics/{topic}", body)
        assert answer.status == 200, answer
        del ledger.open[number]
        ledger.tally["deduped"] += answer.json["deduped"]
        for seq, record in zip(answer.json["seqs"], body["records"], strict=True):
            ledger.acked[topic][seq] = record["data"]
        ledger.tally["acked"] += 1


async def cut(api: Api, ledger: Ledger) -> None:
    """Delete old records of one topic, all the time."""
    while True:
        head = (await api.diff("k.cut", ledger.deleted_upto, wait_ms=1000))["head_seq"]
        if head > ledger.deleted_upto + 20:
            # Noted before it is asked for: an answer that never comes may be a delete that did.
            ledger.deleted_upto = head - 10
            answer = await api.post("/v0/topics/k.cut/delete", {"before_seq": head - 9})
            assert answer.status == 200, answer
            ledger.tally["deletes"] += 1


async def one_life(
    process: ServerProcess, ledger: Ledger, consumers: list[Any], rng: random.Random
) -> None:
    """Load a server, kill it in the midst of it, and let everybody notice."""
    api = process.api
    for topic, config in CONFIGS.items():
        assert (await api.put(f"/v0/topics/{topic}", config)).status in (200, 201)
    due = ledger.tally["acked"] + int(10 ** rng.uniform(0.5, 2.7))
    async with asyncio.TaskGroup() as group:
        for consumer in consumers:
            group.create_task(until_cut_off(consumer.run(api)))
        for number in range(6):
            group.create_task(until_cut_off(write(api, number, ledger, rng)))
        group.create_task(until_cut_off(cut(api, ledger)))
        await until(lambda: ledger.tally["acked"] >= due, within_s=90)
        process.kill()
    ledger.tally["kills"] += 1


async def accept(port: int) -> None:
    """Until somebody listens: the server has begun to recover."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            continue
        writer.close()
        await writer.wait_closed()
        return


async def settle(process: ServerProcess, ledger: Ledger, consumers: list[Any]) -> None:
    """The last life: everybody reads to the end, then the books are compared."""
    api = process.api
    heads = {topic: (await api.state(topic))["head_seq"] for topic in CONFIGS}
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(until_cut_off(one.run(api))) for one in consumers]

        def done() -> bool:
            for one in consumers:
                topics = [one.topic] if one.topic in CONFIGS else list(CONFIGS)
                if any(one.caught_up.get(topic, -1) < heads[topic] for topic in topics):
                    return False
            return True

        await until(done, within_s=90)
        for task in tasks:
            task.cancel()
    for one in consumers:
        for topic in [one.topic] if one.topic in CONFIGS else list(CONFIGS):
            one.check(topic)
    for topic in WHOLE:
        found: list[str] = []
        cursor = 0
        while cursor < heads[topic]:
            page = await api.diff(topic, cursor, limit=1000)
            found += [record["data"] for record in page["records"]]
            cursor = page["next_from_seq"]
        repeated = [value for value, count in Counter(found).items() if count > 1]
        assert not repeated, f"{topic}: a retry appended twice: {repeated}"
        assert set(ledger.acked[topic].values()) <= set(found)
        batches = Counter(value.rpartition(".")[0] for value in found)
        assert set(batches.values()) <= {1, 5}, f"{topic}: half a batch: {batches}"


def test_kill_9_under_load_every_consumer_accounts_for_every_acknowledged_seq(
    campaign: Campaign, tmp_path: Path
) -> None:
    """Checklist 1, 4, 5, 9 and 14 at once, on a real process."""
    rng = campaign.random()
    ledger = Ledger(campaign.tally)
    consumers: list[Any] = [
        *(Single(topic, ledger) for topic in CONFIGS),
        *(Poller(topic, ledger) for topic in CONFIGS),
        Several(ledger),
    ]
    port = free_port()
    for _ in range(campaign.rounds(share=3, full=30)):
        with server_process(tmp_path, port=port) as process:
            for consumer in consumers:
                consumer.caught_up.clear()
            run(one_life(process, ledger, consumers, rng), within_s=90)
        if rng.random() < 0.3:
            starting = ServerProcess(tmp_path, port=port)
            try:
                run(accept(port))
                starting.kill()
                campaign.tally["kills_while_starting"] += 1
            finally:
                starting.close()
    with server_process(tmp_path, port=port) as process:
        for consumer in consumers:
            consumer.caught_up.clear()
        consumers += (Poller(topic, ledger) for topic in CONFIGS)  # who comes late
        run(settle(process, ledger, consumers), within_s=90)


@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb"])
def test_kill_9_of_the_server_announces_no_loss_of_class_disk(scheme: str, tmp_path: Path) -> None:
    """The system has all that was written. What was reserved and not used is skipped in silence."""
    if boot_id() is None:
        pytest.skip("this system does not tell one run of it from the next")
    place: Any = f"{scheme}:{tmp_path / 'data'}"

    async def look(api: Api, count: int) -> list[int]:
        found: list[int] = []
        cursor, caught_up = 0, False
        while not caught_up:
            page = await api.diff("d", cursor)
            assert page["tombstone"] is None, page
            found += [record["$seq"] for record in page["records"]]
            cursor, caught_up = page["next_from_seq"], page["caught_up"]
        events = await api.watch("d")
        seqs: list[int] = []
        while (event := await events.next()).name != "caught-up":
            assert event.name == "record", event
            seqs += event.seqs
        await events.close()
        assert found == seqs
        assert len(found) == count
        return found

    async def first(api: Api) -> None:
        await api.put("/v0/topics/d", {"durability": "disk"})
        await api.append("d", 1, 2, 3)
        assert await look(api, 3) == [1, 2, 3]

    async def second(api: Api, count: int) -> None:
        await look(api, count)
        assert (await api.append("d", "more"))["first_seq"] > 3 + count
        found = await look(api, count + 1)
        assert found[:3] == [1, 2, 3]

    with server_process(place) as process:
        run(first(process.api))
        process.kill()
    for count in (3, 4):
        with server_process(place) as process:
            run(second(process.api, count))
            process.kill()
