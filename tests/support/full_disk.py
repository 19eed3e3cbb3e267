"""What a server does on a small disk that is full, as scenarios: on one that a VFS pretends, and in
a process that has one of its own.

    python -m tests.support.full_disk SCENARIO DIRECTORY
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from fairway import Fairway
from fairway.errors import ReadOnly
from fairway.graphs.feeds.poll import poll
from fairway.storage.reserve import RESERVE_BYTES, free_bytes
from fairway.storage.wals.sqlite import SqliteWal
from tests.support.log_vfs import fail_full, hooked_vfs
from tests.support.server import ROOT, Answer, Api, run, serving, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

MIB = 1024 * 1024
DISK_BYTES = 60 * MIB
ROUNDS = 2
LARGE = {"records": [{"data": "x" * (MIB - 1000)}]}
SMALL = {"records": [{"data": "new"}]}


async def fill(api: Api, topic: str, what: dict[str, list[dict[str, str]]] = LARGE) -> int:
    """Append a megabyte at a time until the server says no for good; how many were taken."""
    taken, last_s = 0, time.monotonic()
    # For longer than the server takes to find out whether the store works again, though it did so
    # once before.
    while time.monotonic() < last_s + 2:
        answer = await api.post(f"/v0/topics/{topic}", what)
        if answer.status in (200, 201):
            taken, last_s = taken + 1, time.monotonic()
        else:
            assert answer.status == 503, answer
            assert answer.code in ("write_failed", "read_only"), answer
    return taken


async def patiently(call: Callable[[], Coroutine[None, None, Answer]]) -> Answer:
    """Until the reserve is given up: a moment after the write that failed."""
    async with asyncio.timeout(10):
        while (answer := await call()).status != 200:
            assert answer.code in ("write_failed", "read_only"), answer
    return answer


async def wait_ready(api: Api, *, status: int) -> Answer:
    async with asyncio.timeout(20):
        while (answer := await api.get("/readyz")).status != status:
            pass
    return answer


async def check_full(api: Api) -> None:
    ready = await api.get("/readyz")
    assert (ready.status, ready.json["writable"]) == (503, False), ready
    refused = await api.post("/v0/topics/kept", SMALL)
    assert (refused.status, refused.code) == (503, "read_only"), refused


async def many_times(directory: Path) -> None:
    """Fill it, delete, go on; again and again, with a stop and a start on the full disk."""
    expected = 3
    async with serving(directory) as served:
        await served.api.append("kept", 1, 2, 3)
    for number in range(ROUNDS):
        async with serving(directory) as served:
            api, topic = served.api, f"t{number}"
            await wait_ready(api, status=200)
            taken = await fill(api, topic)
            assert taken >= 10, f"round {number}: room for {taken}"
            await check_full(api)
        assert not any(name.endswith("-wal") for name in os.listdir(directory)), "a clean stop"
        async with serving(directory) as served:  # and starts while it is full
            api = served.api
            taken += await fill(api, topic)  # a stop leaves a little room: no -wal file
            await check_full(api)
            assert await api.read_all("kept") == list(range(1, expected + 1))
            assert len(await api.read_all(topic)) == taken
            before = {"before_seq": taken // 2 + 1}
            trimmed = await patiently(lambda: api.post(f"/v0/topics/{topic}/delete", before))  # noqa: B023
            assert trimmed.json["deleted"] == taken // 2
            await wait_ready(api, status=200)
            assert await fill(api, topic) >= 4, "what was trimmed is room"
            await check_full(api)
            await patiently(lambda: api.delete(f"/v0/topics/{topic}"))  # noqa: B023
            await wait_ready(api, status=200)
            expected += 1
            assert (await api.append("kept", "more"))["first_seq"] == expected
        assert (directory / "reserve").stat().st_size >= RESERVE_BYTES // 2


async def deleted_by_tag(directory: Path) -> None:
    """Records between others that stay are deleted by their tag: that makes room too."""
    large = {"records": [{"data": "x" * (MIB - 1000), "tag": "large"}]}
    async with serving(directory) as served:
        api = served.api
        await api.append("kept", 1, 2, 3)
        assert await fill(api, "kept", large) >= 10
        await check_full(api)
        gone = await patiently(lambda: api.post("/v0/topics/kept/delete", {"match": "large"}))
        assert gone.json["deleted"] >= 10
        await wait_ready(api, status=200)
        more = (await api.append("kept", "more"))["first_seq"]
        assert await api.read_all("kept") == [1, 2, 3, more]


async def work_waits(directory: Path) -> None:
    """Jobs, pushes and feeds of checkpointed graphs leave what is left of the disk to deletes."""
    app = Fairway(directory, worker=None)
    pushed = app.source("pushed", str)
    polled = app.source("polled", str, feed=poll(lambda: "polled", every_s=0.01))
    graph = app.graph("pushes", when=pushed, inputs="sequential", checkpoint=True)
    polls = app.graph("polls", when=polled, inputs="sequential", checkpoint=True)
    seen: Counter[str] = Counter()

    @graph.node
    def see_pushed(pushed: str) -> None:
        seen[pushed] += 1

    @polls.node
    def see_polled(polled: str) -> None:
        seen[polled] += 1

    @app.job
    def work(text: str) -> None: ...

    large = "x" * 100_000
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: graph.push(pushed, large),
        lambda: graph.ask(pushed, large),
        lambda: work.enqueue(text=large),
        lambda: app.jobs.signal(1, "s", large),
    ]
    async with serving(directory, app=app) as served:
        api = served.api
        await graph.push(pushed, "first")
        await work.enqueue(text="first")
        await until(lambda: seen["polled"] > 2)
        assert await fill(api, "t") >= 10
        await check_full(api)
        await polls.settled()
        before = seen["polled"]
        for _ in range(50):
            for call in calls:
                with pytest.raises(ReadOnly):
                    await call()
        assert seen == {"first": 1, "polled": before}
    async with serving(directory, app=app) as served:
        api = served.api
        await fill(api, "t")  # a stop leaves a little room: no -wal file
        await check_full(api)
        await patiently(lambda: api.delete("/v0/topics/t"))
        await wait_ready(api, status=200)
        await graph.push(pushed, "second")
        await work.enqueue(text="second")
        await until(lambda: seen["polled"] > before)
        await until(lambda: seen["second"])
        assert seen.keys() == {"first", "second", "polled"}
        assert [job.state for job in await app.jobs.browse()] == [
            b'{"text":"second"}',
            b'{"text":"first"}',
        ]


async def filled_by_another(directory: Path) -> None:
    """The disk is full of something else at the start; then that goes."""
    async with serving(directory) as served:
        await served.api.append("kept", 1, 2, 3)
        await until((directory / "reserve").exists)
    other = directory / "other"
    other.write_bytes(bytes(free_bytes(directory)))
    async with serving(directory) as served:
        api = served.api
        await check_full(api)
        assert await api.read_all("kept") == [1, 2, 3]
        await patiently(lambda: api.post("/v0/topics/kept/delete", {"before_seq": 3}))
        assert await api.read_all("kept") == [3]
        other.unlink()
        await wait_ready(api, status=200)
        assert (directory / "reserve").stat().st_size == RESERVE_BYTES
        assert (await api.append("kept", "more"))["first_seq"] == 4
    async with serving(directory) as served:
        await wait_ready(served.api, status=200)
        assert await served.api.read_all("kept") == [3, 4]


async def room_again(directory: Path) -> None:
    """Beside half of the reserve first; once there is room, beside all of it."""
    other = directory / "other"
    other.write_bytes(bytes(10 * MIB))
    async with serving(directory) as served:
        api = served.api
        assert await fill(api, "t") >= 5
        await patiently(lambda: api.delete("/v0/topics/t"))
        await wait_ready(api, status=200)
        reserve = directory / "reserve"
        assert reserve.stat().st_size == RESERVE_BYTES // 2
        other.unlink()
        await until(lambda: reserve.stat().st_size == RESERVE_BYTES)


async def several_files(directory: Path) -> None:
    """The files of a store share the disk, and the room that a delete leaves in one of them."""
    made = SqliteWal(directory, shards=2)
    made.open()
    made.close()
    async with serving(directory) as served:
        api = served.api
        assert await fill(api, "t") >= 10
        await check_full(api)
        await patiently(lambda: api.delete("/v0/topics/t"))
        await wait_ready(api, status=200)
        # One after the other they go to both files, the small one too.
        for number in range(4):
            await api.append(f"more-{number}", 1, 2, 3)
            assert await api.read_all(f"more-{number}") == [1, 2, 3]


def occupy(path: Path) -> None:
    """Make a file longer until the disk is full."""
    with path.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


async def rocksdb(directory: Path) -> None:
    """RocksDB stops for good when its disk is full. It is opened again: without the right to write
    where there is no room, in that of the reserve for deletes, and for good once there is room."""
    place = f"rocksdb:{directory / 'data'}"
    other = directory / "other"
    async with serving(place) as served:
        api = served.api
        await api.append("kept", 1, 2, 3)
        await wait_ready(api, status=200)
        occupy(other)
        taken = await fill(api, "t")
        await check_full(api)
        assert await api.read_all("kept") == [1, 2, 3]
        await patiently(lambda: api.post("/v0/topics/kept/delete", {"before_seq": 2}))
        await check_full(api)
    occupy(other)
    async with serving(place) as served:  # it starts while the disk is full
        api = served.api
        assert await api.read_all("kept") == [2, 3]
        await check_full(api)
        assert await api.read_all("kept") == [2, 3]
        other.unlink()
        await wait_ready(api, status=200)
        assert (await api.append("kept", "more"))["first_seq"] == 4
    async with serving(place) as served:
        assert await served.api.read_all("kept") == [2, 3, 4]
        if taken:
            assert len(await served.api.read_all("t")) == taken


def in_a_process(scenario: str, mount_point: Path) -> None:
    """Run a scenario on a file system in memory, which nobody else sees. Needs no root, but a
    kernel that lets everybody have such a thing; skips where it does not."""
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size={DISK_BYTES} tmpfs '{mount_point}'"
    if (
        shutil.which("unshare") is None
        or subprocess.run([*namespace, mount], check=False).returncode
    ):
        pytest.skip("no file system of one's own can be mounted here")
    child = f"exec '{sys.executable}' -m tests.support.full_disk {scenario} '{mount_point}'"
    subprocess.run([*namespace, f"{mount} && {child}"], cwd=ROOT, check=True, timeout=150)


@contextmanager
def pretended(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the disk below `directory` had but `DISK_BYTES`, for SQLite and the reserve."""

    def used() -> int:
        size = 0
        for file in directory.iterdir():
            with suppress(FileNotFoundError):  # removed since it was listed: it uses nothing
                size += file.stat().st_size
        return size

    def grow(path: str, end: int) -> None:
        more = end - os.path.getsize(path)
        if more > 0 and used() + more > DISK_BYTES:
            fail_full()

    with hooked_vfs(monkeypatch) as vfs:
        vfs.room = grow
        monkeypatch.setattr(
            os,
            "statvfs",
            lambda _: SimpleNamespace(f_bavail=max(DISK_BYTES - used(), 0), f_frsize=1),
        )
        yield


SCENARIOS: dict[str, Callable[[Path], Coroutine[None, None, None]]] = {
    made.__name__: made
    for made in (
        many_times,
        deleted_by_tag,
        work_waits,
        filled_by_another,
        room_again,
        several_files,
    )
}
IN_A_PROCESS = {**SCENARIOS, rocksdb.__name__: rocksdb}
"""Those that need a real file system: nobody pretends to RocksDB that a disk is full."""

if __name__ == "__main__":
    run(IN_A_PROCESS[sys.argv[1]](Path(sys.argv[2])), within_s=120)
