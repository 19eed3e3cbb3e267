"""The simulated disk keeps what was synced, and breaks exactly as it is told to."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from fairway.runtime.blocking import BlockingPool
from fairway.testing import PowerLoss, SimulatedDisk, VirtualLoop, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.testing.platter import Survival

SECTORS = bytes(range(1, 9)) * 512  # eight sectors


def synced(disk: SimulatedDisk, name: str, data: bytes) -> None:
    file = disk.open(name)
    file.write(data, 0)
    file.sync()


def restarted(disk: SimulatedDisk, survival: Survival) -> dict[str, bytes]:
    disk.restart(survival)
    return disk.image()


# Files


def test_files_can_be_written_read_cut_and_renamed() -> None:
    disk = SimulatedDisk()
    file = disk.open("a")
    assert file.write(b"hello", 0) == 5
    assert file.write(b"J", 0) == 1
    assert file.write(b"!", 7) == 1
    assert file.read(100, 0) == b"Jello\0\0!"
    assert file.read(3, 6) == b"\0!"
    assert file.read(3, 100) == b""
    file.truncate(2)
    file.truncate(4)
    assert file.read(100, 0) == b"Je\0\0"
    assert file.size() == 4
    disk.rename("a", "b")
    assert (disk.exists("a"), disk.exists("b")) == (False, True)
    disk.open("c")
    assert disk.names() == ["b", "c"]
    disk.delete("b")
    assert disk.image() == {"c": b""}


def test_a_missing_file_is_an_ordinary_error() -> None:
    disk = SimulatedDisk()
    for missing in (
        lambda: disk.open("a", create=False),
        lambda: disk.delete("a"),
        lambda: disk.rename("a", "b"),
    ):
        with pytest.raises(FileNotFoundError):
            missing()


def test_an_open_file_outlives_its_name() -> None:
    disk = SimulatedDisk()
    file = disk.open("a")
    disk.delete("a")
    file.write(b"still here", 0)
    assert file.read(5, 0) == b"still"
    assert disk.names() == []


def test_a_full_disk_refuses_growth_and_nothing_else() -> None:
    disk = SimulatedDisk(capacity_bytes=10)
    file = disk.open("a")
    file.write(bytes(8), 0)
    with pytest.raises(OSError, match="No space") as caught:
        file.write(bytes(3), 8)
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 8
    file.write(b"12345678", 0)
    with pytest.raises(OSError, match="No space"):
        file.truncate(11)
    disk.open("b").write(bytes(2), 0)
    assert disk.counts == Counter(disk_full=2)


# Power


def test_what_was_synced_survives_and_the_rest_is_lost() -> None:
    disk = SimulatedDisk()
    synced(disk, "a", b"old")
    disk.open("a").write(b"new", 0)
    disk.open("b").write(b"never synced", 0)
    assert restarted(disk, "lose") == {"a": b"old"}


def test_a_killed_process_loses_nothing_that_was_written() -> None:
    disk = SimulatedDisk()
    synced(disk, "a", b"old")
    disk.open("a").write(b"new", 0)
    disk.open("b").truncate(3)
    assert restarted(disk, "keep") == {"a": b"new", "b": bytes(3)}


def test_each_unsynced_write_has_a_fate_of_its_own() -> None:
    outcomes: Counter[tuple[bool, bool]] = Counter()
    for seed in range(200):
        disk = SimulatedDisk(seed)
        synced(disk, "a", b"--")
        file = disk.open("a")
        file.write(b"1", 0)
        file.write(b"2", 1)
        image = restarted(disk, "random")["a"]
        outcomes[image[:1] == b"1", image[1:] == b"2"] += 1
    assert set(outcomes) == {(True, True), (True, False), (False, True), (False, False)}
    assert min(outcomes.values()) > 20


def test_a_torn_write_loses_whole_sectors_only() -> None:
    torn = 0
    for seed in range(100):
        disk = SimulatedDisk(seed)
        synced(disk, "a", bytes(len(SECTORS)))
        disk.open("a").write(SECTORS, 0)
        image = restarted(disk, "random")["a"]
        kept = 0
        for start in range(0, len(SECTORS), 512):
            sector = image[start : start + 512]
            assert sector in (bytes(512), SECTORS[start : start + 512])
            kept += sector != bytes(512)
        if disk.counts["write_torn"]:
            torn += 1
            assert 0 < kept < 8
    assert torn > 20


def test_tearing_follows_the_sectors_of_the_file_not_of_the_write() -> None:
    for seed in range(50):
        disk = SimulatedDisk(seed)
        synced(disk, "a", bytes(1536))
        disk.open("a").write(b"x" * 1000, 300)
        image = restarted(disk, "random")["a"]
        assert image[300:512] in (bytes(212), b"x" * 212)
        assert image[512:1024] in (bytes(512), b"x" * 512)
        assert image[1024:1300] in (bytes(276), b"x" * 276)


def test_a_prefix_is_what_an_orderly_disk_keeps() -> None:
    seen = set()
    for seed in range(100):
        disk = SimulatedDisk(seed)
        file = disk.open("a")
        file.sync()
        for number in range(5):
            file.write(bytes([65 + number]), number)
        seen.add(restarted(disk, "prefix")["a"])
    assert seen == {b"ABCDE"[:length] for length in range(6)}


def test_a_prefix_tears_only_its_last_write() -> None:
    seen = Counter[bool]()
    for seed in range(300):
        disk = SimulatedDisk(seed)
        file = disk.open("a")
        file.write(bytes(4096), 0)
        file.sync()
        file.write(b"1" * 2048, 0)
        file.write(b"2" * 2048, 2048)
        image = restarted(disk, "prefix")["a"].rstrip(b"\0")
        assert image.count(b"1") % 512 == image.count(b"2") % 512 == 0
        assert image == b"1" * image.count(b"1") + b"2" * image.count(b"2")
        assert image.count(b"1") == 2048 or not image.count(b"2")
        seen[disk.counts["write_torn"] > 0] += 1
    assert seen[True] > 20


def test_power_fails_in_the_midst_of_the_chosen_operation() -> None:
    disk = SimulatedDisk()
    synced(disk, "a", b"old")  # 3 operations: create, write, sync
    disk.crash_at(1)
    file = disk.open("a")  # opening what exists changes nothing and is not counted
    assert file.read(3, 0) == b"old"
    file.write(b"1", 0)
    with pytest.raises(PowerLoss, match="operation 5"):
        file.write(b"2", 1)
    assert not disk.powered
    assert restarted(disk, "keep") == {"a": b"12d"}  # the write had reached the disk's cache
    assert disk.powered
    assert disk.counts["power_loss"] == 1


def test_power_fails_before_a_sync_has_done_anything() -> None:
    disk = SimulatedDisk()
    file = disk.open("a")
    file.sync()
    file.write(b"x", 0)
    disk.crash_at(0)
    with pytest.raises(PowerLoss):
        file.sync()
    assert restarted(disk, "lose") == {"a": b""}


def test_without_power_everything_fails_until_the_restart_and_old_files_stay_dead() -> None:
    disk = SimulatedDisk()
    file = disk.open("a")
    file.sync()
    disk.crash()
    disk.crash()
    operations: list[Callable[[], object]] = [
        lambda: disk.open("b"),
        lambda: disk.open("a"),
        lambda: disk.exists("a"),
        disk.names,
        lambda: disk.delete("a"),
        lambda: disk.rename("a", "b"),
        disk.sync_directory,
        lambda: file.read(1, 0),
        lambda: file.write(b"x", 0),
        lambda: file.truncate(0),
        file.sync,
        file.size,
    ]
    for operation in operations:
        with pytest.raises(PowerLoss):
            operation()
    disk.restart()
    for operation in operations[7:]:
        with pytest.raises(OSError, match="before the power was lost"):
            operation()
    assert disk.counts["power_loss"] == 1
    assert disk.open("a").size() == 0


def test_power_loss_is_not_an_exception_a_program_would_handle() -> None:
    assert not issubclass(PowerLoss, Exception)


def test_a_life_ends_quietly_with_the_power_and_only_then() -> None:
    disk = SimulatedDisk()
    with pytest.raises(OSError, match="a bug"), disk.life():
        raise OSError("a bug")
    with disk.life():
        disk.crash()
        raise OSError("in consequence")
    with pytest.raises(KeyboardInterrupt), disk.life():
        raise KeyboardInterrupt


def test_a_restart_is_a_crash_first_and_forgets_the_plans() -> None:
    disk = SimulatedDisk()
    disk.fail("write")
    disk.crash_at(0)
    disk.restart()
    assert disk.counts["power_loss"] == 1
    synced(disk, "a", b"fine")


def test_those_who_live_on_the_disk_are_told_once() -> None:
    told: list[str] = []

    class Program:
        def power_lost(self) -> None:
            told.append("lost")

        def restarting(self) -> None:
            told.append(f"restarting {disk.powered}")

    disk = SimulatedDisk()
    disk.attach(Program())
    disk.crash()
    disk.restart()
    disk.restart()
    assert told == ["lost", "restarting False"]


# Names


def test_a_new_file_is_safe_under_its_name_after_its_first_sync() -> None:
    disk = SimulatedDisk()
    disk.open("a")
    disk.open("b").sync()  # names change in order, so this covers the earlier one as well
    disk.open("c")
    assert restarted(disk, "lose") == {"a": b"", "b": b""}


def test_a_synced_directory_keeps_every_change_of_names() -> None:
    disk = SimulatedDisk()
    synced(disk, "a", b"1")
    synced(disk, "b", b"2")
    disk.rename("a", "c")
    disk.delete("b")
    disk.open("d")
    disk.sync_directory()
    assert restarted(disk, "lose") == {"c": b"1", "d": b""}


def test_a_deletion_is_safe_only_when_it_was_synced() -> None:
    for sync, survivors in ((False, {"a": b"1"}), (True, {})):
        disk = SimulatedDisk()
        synced(disk, "a", b"1")
        disk.delete("a", sync=sync)
        assert restarted(disk, "lose") == survivors


def test_replacing_a_file_by_rename_is_all_or_nothing() -> None:
    seen = set()
    for seed in range(50):
        disk = SimulatedDisk(seed)
        synced(disk, "config", b"old")
        synced(disk, "config.new", b"new")
        disk.rename("config.new", "config")
        image = restarted(disk, "random")
        seen.add((image["config"], "config.new" in image))
    assert seen == {(b"old", True), (b"new", False)}


def test_a_late_deletion_does_not_hit_the_file_that_took_the_name() -> None:
    disk = SimulatedDisk()
    synced(disk, "a", b"first")
    disk.delete("a")
    synced(disk, "a", b"second")
    assert restarted(disk, "keep") == {"a": b"second"}
    disk.delete("a")
    disk.open("a").write(b"third", 0)
    assert restarted(disk, "lose") == {"a": b"second"}


def test_names_that_are_not_safe_survive_to_a_random_point() -> None:
    seen = set()
    for seed in range(100):
        for survival in ("random", "prefix"):
            disk = SimulatedDisk(seed)
            for name in "abc":
                disk.open(name)
            seen.add((survival, "".join(restarted(disk, survival))))
    assert seen == {(s, "abc"[:n]) for s in ("random", "prefix") for n in range(4)}


# Faults


def test_the_nth_operation_of_a_kind_fails_as_often_as_told() -> None:
    disk = SimulatedDisk()
    disk.fail("write", nth=2, times=2, error=errno.ENOSPC, name="a")
    disk.open("b").write(b"x", 0)
    file = disk.open("a")
    results = []
    for number in range(5):
        try:
            file.write(b"x", number)
            results.append("ok")
        except OSError as error:
            results.append(errno.errorcode[error.errno or 0])
    assert results == ["ok", "ENOSPC", "ENOSPC", "ok", "ok"]
    assert file.read(5, 0) == b"x\0\0xx"  # what failed was not written
    assert disk.counts == Counter(write_ENOSPC=2)


@pytest.mark.parametrize(
    "operation", ["open", "create", "read", "write", "truncate", "sync", "delete", "rename"]
)
def test_every_operation_can_fail_for_ever_and_heal(operation: str) -> None:
    disk = SimulatedDisk()
    file = disk.open("a")
    attempts: dict[str, Callable[[], object]] = {
        "open": lambda: disk.open("a"),
        "create": lambda: disk.open("new"),
        "read": lambda: file.read(1, 0),
        "write": lambda: file.write(b"x", 0),
        "truncate": lambda: file.truncate(1),
        "sync": file.sync,
        "rename": lambda: disk.rename("a", "b"),
        "delete": lambda: disk.delete("a"),
    }
    before = disk.image()
    disk.fail(operation, times=None)  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            attempts[operation]()
    assert disk.image() == before
    assert disk.counts == Counter({f"{operation}_EIO": 3})
    disk.heal()
    attempts[operation]()


def test_a_syncing_of_the_directory_can_fail_too() -> None:
    disk = SimulatedDisk()
    disk.open("a")
    disk.fail("syncdir")
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_directory()
    assert restarted(disk, "lose") == {}


def test_what_a_failed_sync_left_behind_is_covered_by_no_later_one() -> None:
    disk = SimulatedDisk()
    synced(disk, "a", b"----")
    file = disk.open("a")
    file.write(b"1", 0)
    disk.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.write(b"2", 1)
    file.sync()  # reports success
    file.write(b"3", 2)
    assert file.read(4, 0) == b"123-"
    assert restarted(disk, "lose") == {"a": b"-2--"}


def test_writing_again_after_a_failed_sync_repairs() -> None:
    for survival in ("lose", "random", "keep"):
        disk = SimulatedDisk()
        synced(disk, "a", b"-")
        file = disk.open("a")
        file.write(b"1", 0)
        disk.fail("sync")
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        file.write(b"2", 0)
        file.sync()
        assert restarted(disk, survival) == {"a": b"2"}


def test_a_short_write_writes_a_part_and_says_so() -> None:
    disk = SimulatedDisk(1)
    disk.shorten(nth=2)
    file = disk.open("a")
    assert file.write(SECTORS, 0) == len(SECTORS)
    written = file.write(SECTORS, len(SECTORS))
    assert 0 < written < len(SECTORS)
    assert file.size() == len(SECTORS) + written
    assert disk.counts == Counter(short_write=1)


def test_a_lying_sync_is_found_out_by_a_power_loss_only() -> None:
    disk = SimulatedDisk()
    synced(disk, "a", b"old")
    file = disk.open("a")
    disk.lie()
    file.write(b"new", 0)
    file.sync()
    assert file.read(3, 0) == b"new"
    assert restarted(disk, "lose") == {"a": b"old"}
    assert disk.counts["lying_sync"] == 1


def test_an_honest_sync_repairs_an_earlier_lie() -> None:
    disk = SimulatedDisk()
    disk.lie(times=1)
    file = disk.open("a")
    file.write(b"new", 0)
    file.sync()
    file.sync()
    assert restarted(disk, "lose") == {"a": b"new"}


def test_a_slow_sync_takes_virtual_time() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        disk = SimulatedDisk(on_delay=loop.spend_ns)
        disk.delay(50_000_000, nth=2)
        file = disk.open("a")
        async with BlockingPool(1) as pool:
            took = []
            for _ in range(3):
                before = loop.now_ns
                await pool.run(file.sync)
                took.append(loop.now_ns - before)
        assert took == [0, 50_000_000, 50_000_000]
        assert disk.counts == Counter(delayed_sync=2)

    run(main, seed=1, latency_ns=(0, 0))


def test_one_bit_can_be_flipped_on_the_platter() -> None:
    disk = SimulatedDisk()
    file = disk.open("a")
    file.write(b"aaa", 0)
    disk.flip_bit("a", 1, bit=1)
    assert file.read(3, 0) == b"aca"
    file.sync()
    assert restarted(disk, "lose") == {"a": b"aca"}
    with pytest.raises(ValueError, match="3 bytes, none at 3"):
        disk.flip_bit("a", 3)
    assert disk.counts["bit_flip"] == 1


def test_the_same_seed_gives_the_same_survivors() -> None:
    def survivors(seed: int) -> dict[str, bytes]:
        disk = SimulatedDisk(seed)
        for name in "abc":
            synced(disk, name, bytes(4096))
            for number in range(8):
                disk.open(name).write(SECTORS[:1024], number * 512)
        return restarted(disk, "random")

    assert survivors(7) == survivors(7) != survivors(8)
