"""What a graph remembers: a journal of records, and the state that they add up to. Pure.

Everything that must survive is a record. The state is the sum of the records up to it, made by the
same `apply` while the graph runs and when it is restored, so a snapshot and the records behind it
give exactly what the graph had when it wrote the last of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from fairway.errors import Corrupt, UnknownFormat
from fairway.graphs import old_effects
from fairway.graphs.boundary import PUSH, WHOLE, Marks, Stored
from fairway.graphs.firing import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FORMAT: Final = 2
DEAD_MAX: Final = 1000
"""Dead letters that are kept; older ones go."""
RECOVERIES_MAX: Final = 200
STATE: Final = "~state"
"""The stream of what a graph wrote to a state of its own."""


class Consumed(msgspec.Struct, array_like=True, frozen=True):
    """What one source brought into a firing."""

    source: str
    marks: Marks
    stored: Stored | None
    """None if it was consumed further without a value."""
    keys: tuple[Any, ...] = ()


class StateWrite(msgspec.Struct, array_like=True, frozen=True):
    """A value that a firing wrote to a state."""

    source: str
    stored: Stored


class EffectRecord(msgspec.Struct, array_like=True, frozen=True):
    """What is to go out: to which kind of destination, to what there, and the bytes."""

    kind: str
    target: str
    data: bytes


class Fired(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """A firing took place."""

    number: int
    epoch: int
    wall_ns: int
    cause: str
    news: tuple[Consumed, ...]
    writes: tuple[StateWrite, ...] = ()
    effects: tuple[EffectRecord, ...] = ()
    outputs: bytes | None = None
    """What the terminal nodes returned, by name, if the graph is recorded."""
    sent: int = 0
    """The effects of firings up to this number have gone out."""
    replaced: bool = False
    """The cache was replaced: what is not among the news is absent."""
    degraded: tuple[str, ...] = ()


class Pushed(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """A boundary was pushed and accepted, and waits."""

    source: str
    offset: int
    stored: Stored
    keys: tuple[Any, ...] = ()
    """Of what is consumed by being written to a state."""


class DeadLettered(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """A boundary did not decode, or a firing failed for good: it is kept aside."""

    wall_ns: int
    source: str
    reason: str
    data: dict[str, bytes]
    news: tuple[Consumed, ...] = ()
    number: int = 0
    """Of the firing that failed."""
    at: Marks = {}
    """Where the boundary stood: if it is met again, after a restart, it is not kept again."""


class Steered(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """Somebody paused or resumed the graph."""

    paused: bool
    wall_ns: int
    who: str = ""


class Began(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """A process took the graph over: whoever had it before writes nothing any more."""

    epoch: int
    holder: str
    wall_ns: int
    format: int = 0
    """Of the records from here on; 0 if whoever wrote them did not say yet."""


class Recovered(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """Something of the graph failed, was restarted, or given up."""

    wall_ns: int
    what: str
    """`reactor` or the name of a source."""
    happening: str
    failures: int
    error: str = ""


class Sent(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """The effects of firings up to this number have gone out."""

    number: int


class Dropped(msgspec.Struct, array_like=True, frozen=True, tag=7):
    """Pushes that waited were dropped for newer ones: those after one offset, up to another."""

    source: str
    above: int
    """What was pushed before belongs to the firing that was under way."""
    upto: int


class Passed(msgspec.Struct, array_like=True, frozen=True, tag=8):
    """A predicate wanted no firing with these: they are consumed without one."""

    news: tuple[Consumed, ...]


class Trying(msgspec.Struct, array_like=True, frozen=True, tag=9):
    """A firing begins, or is over without a record of its own; written only after starts that came
    to nothing, to find out which firing it is that ends the process."""

    number: int
    crashes: int
    """How often the process has ended during it, if this is the last that is heard of it."""


Record: TypeAlias = (
    Fired | Pushed | DeadLettered | Steered | Began | Recovered | Sent | Dropped | Passed | Trying
)

_RECORDS: Final = msgspec.msgpack.Decoder(list[Record])
_encode = msgspec.msgpack.Encoder().encode


def encode_records(records: Sequence[bytes]) -> bytes:
    """One entry of the journal from records that are encoded already."""
    count = len(records)
    if count < 16:
        head = bytes((0x90 | count,))
    elif count < 0x10000:
        head = b"\xdc" + count.to_bytes(2)
    else:
        head = b"\xdd" + count.to_bytes(4)
    return head + b"".join(records)


def decode_records(entry: bytes, place: str = "an entry of the journal") -> list[Record]:
    """The records of an entry. `place` is what it is called, for whoever has to look at it.

    Raises `UnknownFormat` if another release wrote it, and `Corrupt` if none did.
    """
    try:
        found = _RECORDS.decode(entry)
    except msgspec.ValidationError as error:
        # Written by a release whose effects named no kind. Nothing that we write fails so: there
        # the second field of an effect is bytes, here it is text.
        found = _old_records(entry, place, str(error))
    except msgspec.DecodeError as error:
        raise Corrupt(f"it holds no records: {error}", place=place) from None
    for record in found:
        if type(record) is Began and record.format > FORMAT:
            raise _unknown(place, f"of format {record.format}")
    return found


def _old_records(entry: bytes, place: str, misfit: str) -> list[Record]:
    try:
        return msgspec.convert(old_effects.records_of(entry), list[Record])
    except (msgspec.ValidationError, TypeError, ValueError, LookupError):
        raise _unknown(place, f"of no format that this release knows ({misfit})") from None


def _unknown(place: str, found: str) -> UnknownFormat:
    return UnknownFormat(
        f"{place} is {found}, this release reads {FORMAT} and {old_effects.FORMAT}"
    )


encode_record = _encode


class Kept(msgspec.Struct, array_like=True):
    """What is kept of one source."""

    marks: Marks = {}
    value: Stored | None = None
    """Its value in the cache; None if it has none."""
    pushes: dict[int, Stored] = {}
    """Pushes that no firing has consumed, by offset, in order."""
    pushed: int = 0
    """The offset of the last push."""
    window: list[Stored] = []
    """What was written to it, if it is a state."""
    written: int = 0
    """How many values were ever written to it."""
    keys: list[Any] = []
    """The keys of what was consumed last."""
    shown: int = 0
    """How many of the values ever written are in the cache, if that is `WHOLE`."""

    @property
    def unseen(self) -> int:
        """How many of the values written no firing was given yet."""
        return max(0, self.written - self.marks.get(STATE, 0))

    def whole(self) -> list[Stored]:
        """What `WHOLE` stands for."""
        return self.window[: max(0, len(self.window) - (self.written - self.shown))]


class Checkpoint(msgspec.Struct):
    """The state of a graph that its records add up to."""

    format: int = FORMAT
    number: int = 0
    """Firings so far."""
    epoch: int = 0
    holder: str = ""
    paused: bool = False
    sources: dict[str, Kept] = {}
    unsent: dict[int, tuple[int, tuple[EffectRecord, ...]]] = {}
    """Effects that may not have gone out: by number of their firing, with its epoch."""
    dead: list[DeadLettered] = []
    dead_ids: int = 0
    """How many dead letters there ever were: the last one has this id."""
    recoveries: list[Recovered] = []
    records: int = 0
    """Records so far. It is also the key of the last entry in the journal."""
    starts: int = 0
    """How often it was taken over since anything was consumed."""
    crashes: int = 0
    """How often the process has ended during the next firing, as far as that was noted."""

    def kept(self, source: str) -> Kept:
        found = self.sources.get(source)
        if found is None:
            found = self.sources[source] = Kept()
        return found

    def apply(self, record: Record, limits: RetentionLimits) -> None:
        """Add a record."""
        self.records += 1
        if isinstance(record, Fired):
            self._fired(record, limits)
        elif isinstance(record, Pushed):
            if record.source in limits.keep:
                self._write(record.source, record.stored, limits)
                self._remember(self.kept(record.source), record.keys, limits)
            else:
                kept = self.kept(record.source)
                if record.source in limits.newest:
                    kept.pushes.clear()
                kept.pushes[record.offset] = record.stored
                kept.pushed = max(kept.pushed, record.offset)
        elif isinstance(record, DeadLettered):
            if record.number:
                self._went_on(record.number)
            self._consume(record.news, limits)
            if not (
                record.at and any((d.source, d.at) == (record.source, record.at) for d in self.dead)
            ):
                self.dead.append(record)
                self.dead_ids += 1
                del self.dead[:-DEAD_MAX]
        elif isinstance(record, Steered):
            self.paused = record.paused
            if not record.paused:
                self.crashes = 0  # whoever resumes it wants to see it tried
        elif isinstance(record, Began):
            self.epoch, self.holder = record.epoch, record.holder
            self.starts += 1
        elif isinstance(record, Recovered):
            self.recoveries.append(record)
            del self.recoveries[:-RECOVERIES_MAX]
        elif isinstance(record, Dropped):
            pushes = self.kept(record.source).pushes
            for offset in [each for each in pushes if record.above < each <= record.upto]:
                del pushes[offset]
        elif isinstance(record, Passed):
            self._consume(record.news, limits)
            self.starts = 0
        elif isinstance(record, Trying):
            self.crashes = record.crashes
        else:
            self._sent(record.number)

    def waiting(self, sources: Iterable[str]) -> list[tuple[int, str, Stored]]:
        """The pushes of these sources that wait, with their offsets, in order of arrival."""
        return sorted(
            (offset, name, stored)
            for name in sources
            for offset, stored in self.kept(name).pushes.items()
        )

    def holds(self, source: str, marks: Marks) -> bool:
        """Whether a push, or a value of a state, waits here up to these marks."""
        kept = self.kept(source)
        if marks.get(STATE, 0) > kept.marks.get(STATE, 0):
            return True
        return bool(kept.pushes) and next(iter(kept.pushes)) <= marks.get(PUSH, 0)

    def must_record(self, over: Sequence[Consumed]) -> bool:
        """Whether a record must say that these were passed over, for a restart after a crash.

        It must if one of them has a key, by which its repeats are recognised, if one of them is
        kept here, or if one would be read again without the push that was passed over with it.
        """
        streams = [stream for each in over for stream in each.marks]
        if len(streams) > 1 and PUSH in streams:
            return True
        return any(each.keys or self.holds(each.source, each.marks) for each in over)

    def letters(self) -> list[DeadLetter]:
        """The dead letters, oldest first."""
        first = self.dead_ids - len(self.dead) + 1
        return [
            DeadLetter(first + at, letter.wall_ns, letter.source, letter.reason, letter.data)
            for at, letter in enumerate(self.dead)
        ]

    def _went_on(self, number: int) -> None:
        """A firing is over, for good."""
        self.number = max(self.number, number)
        self.starts = self.crashes = 0

    def _fired(self, record: Fired, limits: RetentionLimits) -> None:
        self._went_on(record.number)
        if record.replaced:
            for kept in self.sources.values():
                kept.value = None
        self._consume(record.news, limits)
        for write in record.writes:
            self._write(write.source, write.stored, limits)
        if record.effects:
            self.unsent[record.number] = (record.epoch, record.effects)
        self._sent(record.sent)

    def _write(self, source: str, stored: Stored, limits: RetentionLimits) -> None:
        kept = self.kept(source)
        kept.written += 1
        kept.window.append(stored)
        keep = limits.keep.get(source, 0)
        if keep > 0 and source in limits.queued:
            keep += kept.unseen  # what was given of it when each of these was written
        if keep >= 0:
            del kept.window[: max(0, len(kept.window) - keep)]

    def _consume(self, news: Iterable[Consumed], limits: RetentionLimits) -> None:
        for consumed in news:
            kept = self.kept(consumed.source)
            for stream, offset in consumed.marks.items():
                if offset > kept.marks.get(stream, 0):
                    kept.marks[stream] = offset
            stored = consumed.stored
            if stored is not None:
                kept.value = stored
                if stored.data == WHOLE:
                    kept.shown = consumed.marks[STATE]
            if kept.pushes:
                _drop_upto(kept.pushes, kept.marks.get(PUSH, 0))
            kept.pushed = max(kept.pushed, kept.marks.get(PUSH, 0))
            if consumed.keys:
                self._remember(kept, consumed.keys, limits)

    def _remember(self, kept: Kept, keys: Iterable[Any], limits: RetentionLimits) -> None:
        kept.keys.extend(keys)
        del kept.keys[: -limits.keys]

    def _sent(self, number: int) -> None:
        _drop_upto(self.unsent, number)


def _drop_upto(held: dict[int, Any], upto: int) -> None:
    """Forget what has a number up to this. Numbers rise: the first are looked at, not all."""
    while held:
        first = next(iter(held))
        if first > upto:
            return
        del held[first]


class RetentionLimits(msgspec.Struct, frozen=True):
    """What a graph declares about how much is kept."""

    keep: dict[str, int]
    """Values of each state; -1 keeps all."""
    keys: int
    newest: frozenset[str] = frozenset()
    """Sources of which a push overtakes those that wait."""
    queued: frozenset[str] = frozenset()
    """States of which every value that is written is news of its own."""


class _Format(msgspec.Struct):
    format: int


_STATE: Final = msgspec.msgpack.Decoder(Checkpoint)
_FORMAT: Final = msgspec.msgpack.Decoder(_Format)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    return _encode(checkpoint)


def decode_checkpoint(data: bytes, place: str = "the checkpoint") -> Checkpoint:
    """Raises `UnknownFormat` if another release wrote it, and `Corrupt` if none did."""
    try:
        found = _FORMAT.decode(data).format
        if found == FORMAT:
            return _STATE.decode(data)
        if found == old_effects.FORMAT:
            return msgspec.convert(old_effects.checkpoint_of(data, FORMAT), Checkpoint)
    except (msgspec.DecodeError, TypeError, ValueError, LookupError) as error:
        raise Corrupt(f"it holds no state: {error}", place=place) from None
    raise _unknown(place, f"of format {found}")
