"""What the writer and the reader report: frozen snapshots, and the same through telemetry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairway.runtime.telemetry import SIZES, Distribution, Telemetry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.core.groups import Groups
    from fairway.core.lanes import Drained
    from fairway.storage.group_service import GroupService


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStatistics:
    """What the writer has done and holds at one moment."""

    depths: dict[int, tuple[int, int]]
    """(operations, bytes) of each lane that holds something, in flight included."""
    depth: int
    size: int
    waiting: int
    """Partitions with operations that no group has taken yet."""
    under_way: tuple[tuple[int, ...], ...]
    """The partitions of each group that is being written."""
    enough_waits: bool
    """Whether a whole group's worth waits, so that the next group waits for no company."""
    urgent_waits: bool
    """Whether something urgent waits to be written, and few such came of late."""
    groups: int
    operations: int
    entries: int
    syncs: int
    """Groups that asked for a sync."""
    refused: int
    failed: int
    lost: int
    """Operations acknowledged from memory (`Durability.MEMORY`) that failed afterwards."""
    group_operations: Distribution
    """How many operations a group had."""
    write_ns: Distribution
    """How long a group's write took, its sync included."""
    wait_ns: Distribution
    """How long the oldest operation of a group had waited when the write began."""

    @property
    def syncs_per_entry(self) -> float:
        return self.syncs / self.entries if self.entries else 0.0


class WriterTelemetry:
    """Counts at the seam: once per group, never per operation."""

    def __init__(self, telemetry: Telemetry | None, groups: Groups[int, Any]) -> None:
        registry = telemetry if telemetry is not None else Telemetry()
        self._groups = registry.counter("fairway_log_groups", "Groups written")
        self._operations = registry.counter("fairway_log_operations", "Operations written")
        self._entries = registry.counter("fairway_log_entries", "Entries written")
        self._syncs = registry.counter("fairway_log_syncs", "Groups that were synced")
        self.refused = registry.counter("fairway_log_refused", "Operations refused, lane full")
        self._failed = registry.counter("fairway_log_failed", "Operations that failed")
        self._lost = registry.counter("fairway_log_lost", "Acknowledged from memory, then failed")
        self._batch = registry.histogram(
            "fairway_log_group_operations", "Operations a group", SIZES
        )
        self._write_ns = registry.histogram("fairway_log_write_ns", "Duration of a group's write")
        self._wait_ns = registry.histogram("fairway_log_wait_ns", "Longest wait of a group")
        registry.gauge("fairway_log_depth", "Operations accepted, not done", lambda: groups.depth)
        registry.gauge("fairway_log_bytes", "Bytes accepted, not done", lambda: groups.size)

    def wrote(
        self, group: Sequence[Drained[int, Any]], sync: bool, started_ns: int, ended_ns: int
    ) -> None:
        """`group` is the part of it that did not fail; nothing is counted if there is none."""
        if not group:
            return
        operations = entries = 0
        oldest_ns = started_ns
        for part in group:
            operations += len(part.items)
            oldest_ns = min(oldest_ns, part.items[0].accepted_ns)
            entries += sum(
                [1 if type(item.what) is bytes else len(item.what.entries) for item in part.items]
            )
        self._groups.add()
        self._operations.add(operations)
        self._entries.add(entries)
        self._syncs.add(sync)
        self._batch.record(operations)
        self._write_ns.record(ended_ns - started_ns)
        self._wait_ns.record(started_ns - oldest_ns)

    def failed(self, operations: int) -> None:
        self._failed.add(operations)

    def lost(self, operations: int) -> None:
        self._lost.add(operations)

    def statistics(
        self, service: GroupService[Any], *, enough: bool, urgent: bool
    ) -> WriterStatistics:
        return WriterStatistics(
            depths=service.groups.depths(),
            depth=service.groups.depth,
            size=service.groups.size,
            waiting=service.groups.waiting_keys,
            under_way=service.under_way(),
            enough_waits=enough,
            urgent_waits=urgent,
            groups=self._groups.value,
            operations=self._operations.value,
            entries=self._entries.value,
            syncs=self._syncs.value,
            refused=service.refused.value,
            failed=self._failed.value,
            lost=self._lost.value,
            group_operations=self._batch.read(),
            write_ns=self._write_ns.read(),
            wait_ns=self._wait_ns.read(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderStatistics:
    """What the reader has done and holds at one moment."""

    depths: dict[int, tuple[int, int]]
    """(reads, bytes) of each lane that holds something, in flight included."""
    depth: int
    turns: int
    reads: int
    refused: int
    turn_ns: Distribution
    """How long a turn took."""
    wait_ns: Distribution
    """How long the oldest read of a turn had waited when it began."""


class ReaderTelemetry:
    """Counts at the seam: once per turn, never per read."""

    def __init__(self, telemetry: Telemetry | None, groups: Groups[int, Any]) -> None:
        registry = telemetry if telemetry is not None else Telemetry()
        self._turns = registry.counter("fairway_log_read_turns", "Turns of the reader")
        self._reads = registry.counter("fairway_log_reads", "Reads made")
        self.refused = registry.counter("fairway_log_reads_refused", "Reads refused, lane full")
        self._turn_ns = registry.histogram("fairway_log_read_ns", "Duration of a turn")
        self._wait_ns = registry.histogram("fairway_log_read_wait_ns", "Longest wait of a turn")
        registry.gauge("fairway_log_read_depth", "Reads accepted, not made", lambda: groups.depth)

    def made(self, part: Drained[int, Any], started_ns: int, ended_ns: int) -> None:
        self._turns.add()
        self._reads.add(len(part.items))
        self._turn_ns.record(ended_ns - started_ns)
        self._wait_ns.record(started_ns - part.items[0].accepted_ns)

    def statistics(self, service: GroupService[Any]) -> ReaderStatistics:
        return ReaderStatistics(
            depths=service.groups.depths(),
            depth=service.groups.depth,
            turns=self._turns.value,
            reads=self._reads.value,
            refused=service.refused.value,
            turn_ns=self._turn_ns.read(),
            wait_ns=self._wait_ns.read(),
        )
