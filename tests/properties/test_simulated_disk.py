"""Random histories on the simulated disk, against twins that are too simple to be wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from fairway.testing import SimulatedDisk

if TYPE_CHECKING:
    from fairway.testing.platter import Survival

Step = tuple[str | int, ...]
SURVIVALS: tuple[Survival, ...] = ("random", "lose", "keep", "prefix")

names = st.sampled_from("abc")
sizes = st.integers(0, 8).map(lambda blocks: blocks * 200)  # at odd places, some across sectors
steps = st.one_of(
    st.tuples(st.just("write"), names, sizes, st.integers(1, 1500)),
    st.tuples(st.just("truncate"), names, sizes),
    st.tuples(st.just("sync"), names),
    st.tuples(st.just("lying sync"), names),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("rename"), names, names),
    st.just(("syncdir",)),
)
histories = st.lists(steps, max_size=30)


@dataclass
class Twin:
    """What a program sees, and what it was promised."""

    seen: dict[str, bytearray] = field(default_factory=dict)
    synced: dict[str, bytes] = field(default_factory=dict)
    """The content of each name at its last honest sync."""
    promised: dict[str, bytes] = field(default_factory=dict)
    """Of these, the ones that were left alone since."""

    def touch(self, name: str) -> bytearray:
        self.promised.pop(name, None)
        return self.seen.setdefault(name, bytearray())


def play(disk: SimulatedDisk, history: list[Step]) -> Twin:
    twin = Twin()
    for number, step in enumerate(history, start=1):
        match step:
            case ("write", str(name), int(offset), int(size)):
                data = bytes([number]) * size  # so that every byte tells which step wrote it
                disk.open(name).write(data, offset)
                content = twin.touch(name)
                content.extend(bytes(max(0, offset + size - len(content))))
                content[offset : offset + size] = data
            case ("truncate", str(name), int(size)):
                disk.open(name).truncate(size)
                content = twin.touch(name)
                del content[size:]
                content.extend(bytes(size - len(content)))
            case ("sync", str(name)):
                disk.open(name).sync()
                twin.synced[name] = twin.promised[name] = bytes(twin.touch(name))
            case ("lying sync", str(name)):
                disk.lie(times=1)
                disk.open(name).sync()
                twin.seen.setdefault(name, bytearray())
            case ("delete", str(name)) if name in twin.seen:
                disk.delete(name)
                twin.touch(name)
                del twin.seen[name]
            case ("rename", str(old), str(new)) if old in twin.seen and old != new:
                disk.rename(old, new)
                twin.touch(new)
                twin.seen[new] = twin.touch(old)
                del twin.seen[old]
            case ("syncdir",):
                disk.sync_directory()
    return twin


@given(histories, st.integers(0, 2**32))
def test_a_program_sees_what_it_wrote(history: list[Step], seed: int) -> None:
    disk = SimulatedDisk(seed)
    twin = play(disk, history)
    assert disk.image() == twin.seen
    disk.restart("keep")
    assert disk.image() == twin.seen


@given(histories, st.integers(0, 2**32), st.sampled_from(SURVIVALS))
def test_what_was_synced_and_left_alone_survives_any_crash(
    history: list[Step], seed: int, survival: Survival
) -> None:
    disk = SimulatedDisk(seed)
    twin = play(disk, history)
    disk.restart(survival)
    image = disk.image()
    assert {name: image.get(name) for name in twin.promised} == twin.promised


@given(histories, st.integers(0, 2**32))
def test_losing_all_gives_exactly_the_last_sync_of_each_file(
    history: list[Step], seed: int
) -> None:
    contents_only = [step for step in history if step[0] not in ("delete", "rename", "syncdir")]
    disk = SimulatedDisk(seed)
    twin = play(disk, contents_only)
    disk.restart("lose")
    image = disk.image()
    # A later sync of another file makes earlier names safe too, so a file may be there and empty.
    assert {name: data for name, data in image.items() if name in twin.synced} == twin.synced
    assert all(data == b"" for name, data in image.items() if name not in twin.synced)


@given(histories, st.integers(0, 2**32), st.sampled_from(SURVIVALS))
def test_a_crash_invents_nothing(history: list[Step], seed: int, survival: Survival) -> None:
    disk = SimulatedDisk(seed)
    play(disk, history)
    disk.restart(survival)
    for data in disk.image().values():
        for place, byte in enumerate(data):
            if byte == 0:
                continue  # a gap, or an extension
            kind, _, offset, size = history[byte - 1]
            assert kind == "write"
            assert isinstance(offset, int)
            assert isinstance(size, int)
            assert offset <= place < offset + size


@given(histories, st.integers(0, 2**32), st.sampled_from(SURVIVALS))
def test_what_survived_is_safe_from_then_on(
    history: list[Step], seed: int, survival: Survival
) -> None:
    disk = SimulatedDisk(seed)
    play(disk, history)
    disk.restart(survival)
    image = disk.image()
    disk.restart("lose")
    assert disk.image() == image


@given(histories, st.integers(0, 2**32))
def test_a_seed_decides_what_survives(history: list[Step], seed: int) -> None:
    images = []
    for _ in range(2):
        disk = SimulatedDisk(seed)
        play(disk, history)
        disk.restart()
        images.append((disk.image(), disk.counts))
    assert images[0] == images[1]


@given(histories, st.integers(0, 2**32), st.integers(0, 40))
def test_the_power_fails_at_the_chosen_operation_or_the_history_ends_first(
    history: list[Step], seed: int, allowed: int
) -> None:
    disk = SimulatedDisk(seed)
    disk.crash_at(allowed)
    with disk.life():
        play(disk, history)
    assert disk.ops <= allowed if disk.powered else disk.ops == allowed + 1
