"""What a graph will be given: the newest or the next of each source, and when that is due. Pure.

Boundaries arrive in any order; `take` gives the inputs of the next firing, or None while the
criterion does not hold. What was taken can be given back, so that a firing that failed loses
nothing.

`latest` keeps the newest value of each source and a flag that it is news; values that a newer one
overtook are skipped. `sequential` keeps them all, and takes them so that

    need == 1   each firing takes one boundary, in order of arrival over all sources;
    need  > 1   there is a queue per source, and a firing takes the head of each that has one,
                once so many have.

Sources that the criterion does not name are inputs only: their newest value is used, and is never
news.

Marks tell that all up to them is consumed, so they must never run ahead of what waits. There are
three places, and of one source what is in an earlier one always came first:

    taken    by the firing under way, of which there is one at most
    aside    consumed without a firing, or never news: goes with the next firing, whichever it is
    waiting  news, or a queue
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from fairway.graphs.boundary import PUSH
from fairway.graphs.repeats import size_of
from fairway.graphs.timing import Timing
from fairway.runtime.usercode import reraise_interrupt
from fairway.runtime.words import named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fairway.graphs.boundary import Boundary, Marks
    from fairway.graphs.criteria import Criterion

Strategy: TypeAlias = Literal["latest", "sequential"]

CAPACITY: Final = 256
"""Boundaries of one source that wait, unless it says otherwise."""
CAPACITY_BYTES: Final = 64 * 1024 * 1024
"""And their bytes. What is next is not counted, so that whoever fires at once counts nothing; and
what passes the bound is taken."""
OVERTAKEN_MAX: Final = 10_000
"""Boundaries of one source that were overtaken and left something: keys, or somebody who waits."""
KEYS_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of the keys of one source that wait for the same firing: its record holds them all."""


def _weightless(value: Any) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Slot:
    """A source as the inputs see it."""

    name: str
    capacity: int = CAPACITY
    fires: bool = True
    """Whether the criterion names it."""
    capacity_bytes: int = CAPACITY_BYTES
    size_of: Callable[[Any], int] = _weightless
    """The bytes of a value, as they count."""
    hoards: bool = False
    """Whether pushes that are overtaken stay in the journal until they are consumed: for their
    keys, or since they were collected."""


class SourceUpdate(NamedTuple):
    """What one source brought into a firing: a new value, or only that it is consumed further."""

    source: str
    value: Any
    """`PASSED` if it brought no value, and is only consumed further."""
    marks: Marks
    """How far it is consumed by this."""
    keys: tuple[Any, ...]
    waiters: tuple[Any, ...]
    """The callers who wait for these boundaries: notified when the firing is over."""


class PassedValue:
    """The value of what was consumed without one: filtered, dropped, a repeat, undecodable."""

    def __repr__(self) -> str:
        return "PASSED"


PASSED: Final = PassedValue()


class Taken(NamedTuple):
    """The inputs of one firing."""

    values: dict[str, Any]
    """By source. A source that brought nothing yet is absent."""
    updates: Sequence[SourceUpdate]
    """At most one of each source."""
    before: Mapping[str, Any]
    """What the cache held of them before (`sequential`), to be put back if it fails."""
    dirty_since_ns: int
    """When the oldest of the news came; 0 if there is none."""
    instead_of: Taken | None = None
    """What a firing with other values overtook: that comes back if it fails."""


class PredicateFailed(Exception):
    """A predicate of the criterion raised. `taken` are the inputs it was asked about, which are
    taken."""

    def __init__(self, taken: Taken, error: BaseException) -> None:
        super().__init__(f"where: {named(error)}")
        self.taken = taken
        self.error = error


class _Waiting(NamedTuple):
    """A boundary in a queue."""

    number: int
    """In order of arrival over all sources; 0 if it was given back."""
    at_ns: int
    update: SourceUpdate
    size: int
    """Its bytes; 0 if it was next when it came, or was given back."""


class _Queue(deque[_Waiting]):
    """The boundaries of one source that wait (`sequential`)."""

    __slots__ = ("bytes", "slot")
    slot: Slot
    bytes: int
    """Of those behind the next one."""

    @classmethod
    def of(cls, slot: Slot) -> _Queue:
        queue = cls()  # a deque that is copied is made without arguments
        queue.slot = slot
        queue.bytes = 0
        return queue


class _Overtaken:
    """What newer values of a source overtook, and is kept until a firing has consumed it."""

    __slots__ = ("keys", "pushes", "taken")

    def __init__(self) -> None:
        self.keys = 0
        """Bytes of the keys that tell their repeats."""
        self.pushes = 0
        """Bytes of those that a journal holds; what came first of them is not counted."""
        self.taken = (0, 0)
        """Both, of what was taken last."""

    def take(self) -> None:
        self.taken = self.keys, self.pushes
        self.keys = self.pushes = 0

    def restore(self) -> None:
        self.keys += self.taken[0]
        self.pushes += self.taken[1]
        self.taken = (0, 0)


class Inputs:
    """The input cache, the flags and the queues of one graph."""

    def __init__(
        self, slots: Sequence[Slot], criterion: Criterion, strategy: Strategy, now_ns: int = 0
    ) -> None:
        self.slots = {slot.name: slot for slot in slots}
        self.criterion = criterion
        self.strategy = strategy
        self.cache: dict[str, Any] = {}
        """The newest value of each source (`latest`), or the newest that was taken."""
        self.filtered = 0
        """Boundaries that a predicate passed over (`sequential`)."""
        self.unwanted: list[SourceUpdate] = []
        """Those that whoever asks has not seen to yet, with their keys and waiters: no firing comes
        of them. Their marks go with the next one."""
        self._sequential = strategy == "sequential"
        self._fires = {slot.name for slot in slots if slot.fires}
        self._need = criterion.need
        self._timed = criterion.timed
        self._count_decides = not criterion.timed and not criterion.predicates
        # What came of a source is kept in parts, oldest first, and put together when it is taken:
        # however much is overtaken, each arrival costs the same.
        self._aside: dict[str, list[SourceUpdate]] = {}
        # `latest`: the sources that have news. All that are needed, not all that were seen so far.
        self._dirty: dict[str, list[SourceUpdate]] = {}
        self._overtaken = {
            slot.name: _Overtaken()
            for slot in slots
            if slot.hoards and not (slot.fires and self._sequential)
        }
        self._first_ns = 0  # when the first of them got it
        self._released = False  # time has let them pass, and they were not taken yet
        self._refused = False  # a predicate said no, and nothing came since
        # `sequential`
        self._queues: dict[str, _Queue] = {
            slot.name: _Queue.of(slot) for slot in slots if slot.fires and self._sequential
        }
        self._heads = 0  # queues that have something
        self._count = 0
        self._numbers = 0
        self._passing = 0  # time has let pass what came up to this number
        self._timing = Timing(criterion, now_ns)

    # What comes in

    def room(self, source: str) -> int:
        """How many more boundaries of a source fit, if they are small. `latest` has room while
        little is kept of what it overtakes."""
        queue = self._queues.get(source)
        if queue is None:
            parts = self._dirty.get(source) or self._aside.get(source)
            return 1 if parts is None else self._room_to_overtake(source, len(parts))
        if queue.bytes >= queue.slot.capacity_bytes:
            return 0
        return queue.slot.capacity - len(queue)

    def _room_to_overtake(self, source: str, parts: int) -> int:
        kept = self._overtaken.get(source)
        full = parts >= OVERTAKEN_MAX or (
            kept is not None
            and (kept.keys >= KEYS_BYTES_MAX or kept.pushes >= self.slots[source].capacity_bytes)
        )
        return int(not full)

    def queues(self, source: str) -> bool:
        """Whether every boundary of a source waits; else newer ones overtake."""
        return source in self._queues

    def depth(self, source: str) -> int:
        """How many boundaries of a source wait."""
        if source in self._queues:
            return len(self._queues[source])
        return int(source in self._dirty or source in self._aside)

    def size(self, source: str) -> int:
        """The size of those that wait behind the next one, or of the pushes that are overtaken."""
        queue = self._queues.get(source)
        if queue is not None:
            return queue.bytes
        return self._overtaken[source].pushes if source in self._overtaken else 0

    def arrive(self, source: str, boundary: Boundary, now_ns: int, waiter: Any = None) -> None:
        """Take in a boundary. The caller has seen to it that there is room."""
        value, marks, keys = boundary
        update = _update(
            SourceUpdate, (source, value, marks, keys, () if waiter is None else (waiter,))
        )
        fires = source in self._fires
        if self._timed or self._refused:
            self._hear(now_ns, fires)
        if self._sequential and fires:
            queue = self._queues[source]
            size = 0
            if queue:
                size = queue.slot.size_of(value)
                queue.bytes += size
            else:
                self._heads += 1
            self._count += 1
            self._numbers += 1
            queue.append(_waiting(_Waiting, (self._numbers, now_ns, update, size)))
            return
        self.cache[source] = value
        if self._overtaken and source in self._overtaken:
            kept = self._overtaken[source]
            kept.keys += size_of(keys)
            if PUSH in marks and (source in self._dirty or source in self._aside):
                kept.pushes += self.slots[source].size_of(value)
        if not fires:
            self._put_aside(update)
        elif source in self._dirty:
            _overtake(self._dirty[source], update)
        else:
            if not self._dirty:
                self._first_ns = now_ns
            self._dirty[source] = [update]

    def passed(self, source: str, marks: Marks, keys: tuple[Any, ...] = ()) -> None:
        """Note that a source went on without bringing a value.

        It counts as consumed with whatever came before it, and not sooner.
        """
        update = SourceUpdate(source, PASSED, marks, keys, ())
        if keys and source in self._overtaken:
            self._overtaken[source].keys += size_of(keys)
        queue = self._queues.get(source)
        if queue:
            tail = queue[-1]
            queue[-1] = tail._replace(update=_together((tail.update, update)))
        elif source in self._dirty:
            _overtake(self._dirty[source], update)
        else:
            self._put_aside(update)

    def drop_oldest(self, source: str) -> SourceUpdate:
        """Make room in a full queue; what was dropped, for whoever counts.

        Its waiters go with the next firing, like its marks. Its keys go nowhere: it was not used,
        so what brings it again is no repeat.
        """
        queue = self._queues[source]
        _, _, dropped, size = queue.popleft()
        queue.bytes -= size
        self._count -= 1
        self._heads -= not queue
        self._put_aside(dropped._replace(value=PASSED, keys=()))
        return dropped

    # What goes out

    def take(self, now_ns: int) -> Taken | None:
        """The inputs of the next firing, or None while the criterion does not hold.

        Raises `PredicateFailed`.
        """
        if self._count_decides:  # nothing to ask but the count: this is what most graphs do
            if self._sequential:
                return self._next() if self._heads >= self._need else None
            return self._newest() if len(self._dirty) >= self._need else None
        taken = self._asked()
        if taken is None and self._timed and self._look(now_ns):
            taken = self._asked(always=self.criterion.always)
        return taken

    def candidate(self, now_ns: int) -> Taken | None:
        """What `take` would ask the predicates about next, or None while there is nothing to ask.

        It is taken. Whoever calls this goes on with `wanted`, or gives it back.
        """
        if not self._may_pass:
            if not (self._timed and self._look(now_ns)):
                return None
            if not (self.criterion.always or self._may_pass):
                return None
        return self.force() if self._sequential else self._newest()

    def wanted(self, taken: Taken) -> bool:
        """Ask the predicates about what was taken. If they do not want it, it is passed over
        (`sequential`), or is news again (`latest`).

        Raises `PredicateFailed`.
        """
        try:
            wanted = all(predicate(taken.values) for predicate in self.criterion.predicates)
        except BaseException as error:
            reraise_interrupt(error)
            raise PredicateFailed(taken, error) from error
        if wanted:
            return True
        if not self._sequential:
            since = bool(self._dirty or self._aside)  # something came, and was not asked about
            self.restore(taken)
            if not since:
                self._refuse()
            return False
        for update in taken.updates:
            if update.source in self._fires and update.value is not PASSED:
                self.filtered += 1
                self._put_back(update.source, taken.before)
                self.unwanted.append(update)
                update = update._replace(value=PASSED, keys=(), waiters=())
            self._put_aside(update)
        for kept in self._overtaken.values():
            kept.restore()
        return False

    @property
    def refused(self) -> bool:
        """Whether a predicate did not want the news (`latest`), and nothing came since."""
        return self._refused

    def force(self) -> Taken:
        """The inputs of a firing now, whatever the criterion says: all news, or the next."""
        return self._next() if self._heads else self._newest()

    def force_with(self, values: Mapping[str, Any]) -> Taken:
        """The inputs of a firing with other values; they replace the cache, all of it.

        With `latest` they overtake what was news. Queues stay as they are.
        """
        overtaken = self._newest()
        self.cache = dict(values)
        updates = [each._replace(value=PASSED) for each in overtaken.updates]
        return Taken(dict(values), updates, _NOTHING, overtaken.dirty_since_ns, overtaken)

    def restore(self, taken: Taken) -> None:
        """Give back what was taken, as if it had not been: flags up again, heads in front."""
        if taken.instead_of is not None:
            taken = taken.instead_of
            waiting = (*self._dirty.items(), *self._aside.items())
            since = [name for name, parts in waiting if any(n.value is not PASSED for n in parts)]
            self.cache = {**taken.values, **{name: self.cache[name] for name in since}}
        for kept in self._overtaken.values():
            kept.restore()
        since_ns = taken.dirty_since_ns
        for update in taken.updates:
            name = update.source
            parts = [update, *self._aside.pop(name, ())]  # that came after it, and before any other
            if update.value is PASSED or name not in self._fires:
                self._aside[name] = parts
            elif self._sequential:
                queue = self._queues[name]
                self._heads += not queue
                self._count += 1
                queue.appendleft(_Waiting(0, since_ns, _together(parts), 0))
                self._put_back(name, taken.before)
            else:
                self._first_ns = min(self._first_ns, since_ns) if self._dirty else since_ns
                self._dirty[name] = [*parts, *self._dirty.get(name, ())]
                self._released = True  # it was due once, so it still is
                self._refused = False

    def deadline_ns(self) -> int | None:
        """When to ask again although nothing came, or None if only news can change the answer."""
        if not self._timed or self._may_pass:
            return None
        return self._timing.deadline_ns(None if self._refused else self._since_ns)

    def waiters(self) -> list[Any]:
        """Everybody who waits for something that was not taken yet."""
        updates = [each for parts in self._dirty.values() for each in parts]
        updates += [each for parts in self._aside.values() for each in parts]
        updates += [each.update for queue in self._queues.values() for each in queue]
        return [waiter for each in updates for waiter in each.waiters]

    @property
    def dirty(self) -> dict[str, bool]:
        """Every source that fires, and whether it has news."""
        if self._sequential:
            return {name: bool(queue) for name, queue in sorted(self._queues.items())}
        return {name: name in self._dirty for name in sorted(self._fires)}

    @property
    def depths(self) -> dict[str, int]:
        return {name: self.depth(name) for name in self.slots}

    @property
    def pending(self) -> int:
        """How many boundaries wait to be taken."""
        return self._count if self._sequential else len(self._dirty)

    # When

    @property
    def _satisfied(self) -> bool:
        return (self._heads if self._sequential else len(self._dirty)) >= self._need

    @property
    def _may_pass(self) -> bool:
        """Whether enough waits that time has let pass already, or does not ask about."""
        if not self._timed or not self._sequential:
            return self._satisfied and (self._released or not self._timed)
        passing = [q for q in self._queues.values() if q and q[0].number <= self._passing]
        return len(passing) >= self._need

    @property
    def _since_ns(self) -> int | None:
        """Since when something waits, if enough does."""
        if not self._satisfied:
            return None
        if not self._sequential:
            return self._first_ns
        return min(queue[0].at_ns for queue in self._queues.values() if queue)

    def _look(self, now_ns: int) -> bool:
        """Whether time lets a firing pass now. If it does, all that waits now may pass."""
        if not self._timing.passes(now_ns, self._since_ns):
            return False
        self._passing = self._numbers
        self._released = True
        return True

    def _hear(self, now_ns: int, fires: bool) -> None:
        """Something comes, and time or a predicate makes a difference."""
        if not self.criterion.always and (self._refused or not self._satisfied):
            self._timing.idled(now_ns)
        self._refused = False
        if fires:
            self._timing.heard(now_ns)

    # What

    def _asked(self, *, always: bool = False) -> Taken | None:
        """What may pass and the predicates want; with `always` also what may not pass yet."""
        return self._asked_next(always) if self._sequential else self._asked_newest(always)

    def _asked_newest(self, always: bool) -> Taken | None:
        if not (always or self._may_pass):
            return None
        values = self.cache.copy()
        try:
            wanted = all(predicate(values) for predicate in self.criterion.predicates)
        except BaseException as error:
            reraise_interrupt(error)
            raise PredicateFailed(self._newest(), error) from error
        if wanted:
            return self._newest()
        self._refuse()
        return None

    def _refuse(self) -> None:
        """It stays news, until something makes it worth more."""
        self._released = False
        self._refused = True

    def _asked_next(self, always: bool) -> Taken | None:
        while always or self._may_pass:
            always = False
            taken = self.force()
            if self.wanted(taken):
                return taken
        return None

    def _newest(self) -> Taken:
        """All that is news, and what is aside."""
        if self._overtaken:
            for kept in self._overtaken.values():
                kept.take()
        dirty = self._dirty
        since_ns = self._first_ns if dirty else 0
        if self._aside:
            for name, parts in dirty.items():
                self._aside[name] = [*self._aside.get(name, ()), *parts]
            dirty, self._aside = self._aside, {}
        updates = [parts[0] if len(parts) == 1 else _together(parts) for parts in dirty.values()]
        self._dirty = {}
        self._released = False
        return _taken(Taken, (self.cache.copy(), updates, _NOTHING, since_ns, None))

    def _next(self) -> Taken:
        """The next of one queue, or of each; and what is aside."""
        if self._overtaken:
            for kept in self._overtaken.values():
                kept.take()
        if self._need > 1:
            names: Iterable[str] = [name for name, queue in self._queues.items() if queue]
        else:
            names = (self._longest_waiting(),)
        before = {}
        taken = []
        since_ns = 0
        cache = self.cache
        for name in names:
            queue = self._queues[name]
            _, at_ns, update, size = queue.popleft()
            queue.bytes -= size
            if not queue:
                self._heads -= 1
            self._count -= 1
            if not since_ns or at_ns < since_ns:
                since_ns = at_ns
            if name in cache:
                before[name] = cache[name]
            cache[name] = update.value
            if name in self._aside:
                update = _together((*self._aside.pop(name), update))
            taken.append(update)
        if self._aside:
            taken += map(_together, self._aside.values())
            self._aside = {}
        return _taken(Taken, (cache.copy(), taken, before, since_ns, None))

    def _longest_waiting(self) -> str:
        queues = self._queues
        if len(queues) == 1:
            return next(iter(queues))
        best, lowest = "", -1
        for name, queue in queues.items():
            if queue and (lowest < 0 or queue[0][0] < lowest):
                best, lowest = name, queue[0][0]
        return best

    def _put_aside(self, update: SourceUpdate) -> None:
        if update.source in self._aside:
            _overtake(self._aside[update.source], update)
        else:
            self._aside[update.source] = [update]

    def _put_back(self, source: str, before: Mapping[str, Any]) -> None:
        if source in before:
            self.cache[source] = before[source]
        else:
            self.cache.pop(source, None)

    def check(self) -> None:
        """Assert every invariant."""
        if self._sequential:
            assert not self._dirty
            assert self._count == sum(map(len, self._queues.values()))
            assert self._heads == sum(map(bool, self._queues.values()))
            for name, queue in self._queues.items():
                assert queue.bytes == sum(waiting.size for waiting in queue)
                numbers = [waiting.number for waiting in queue]
                assert numbers == sorted(numbers), f"{name} is out of order"
        else:
            assert set(self._dirty) <= self._fires
        for name, parts in (*self._aside.items(), *self._dirty.items()):
            assert parts, f"{name} has no parts"
            assert all(update.source == name for update in parts)
        for name, kept in self._overtaken.items():
            parts = [*self._aside.get(name, ()), *self._dirty.get(name, ())]
            assert kept.keys == sum(size_of(update.keys) for update in parts)
        for name in self._fires & set(self._aside):
            values = [update for update in self._aside[name] if update.value is not PASSED]
            assert not values, f"a value of {name} is aside, where it never fires"
        assert set(self.cache) <= set(self.slots)


_NOTHING: Mapping[str, Any] = {}

# A third faster than calling the class, three times per firing.
_update = _waiting = _taken = tuple.__new__


def _overtake(parts: list[SourceUpdate], update: SourceUpdate) -> None:
    """Add what came later. Of what it overtakes only marks, keys and waiters matter."""
    source, value, marks, keys, waiters = parts[-1]
    if waiters:
        waiters = tuple([waiter for waiter in waiters if not getattr(waiter, "over", False)])
    if keys or waiters:
        if update.value is not PASSED:
            parts[-1] = SourceUpdate(source, PASSED, marks, keys, waiters)
        parts.append(update)
        return
    marks = update.marks if marks.keys() <= update.marks.keys() else {**marks, **update.marks}
    value = value if update.value is PASSED else update.value
    parts[-1] = SourceUpdate(source, value, marks, update.keys, update.waiters)


def _together(parts: Sequence[SourceUpdate]) -> SourceUpdate:
    """One of several of the same source, oldest first."""
    value: Any = PASSED
    marks: Marks = {}
    keys: list[Any] = []
    waiters: list[Any] = []
    for update in parts:
        if update.value is not PASSED:
            value = update.value
        marks.update(update.marks)
        keys += update.keys
        waiters += update.waiters
    return SourceUpdate(parts[0].source, value, marks, tuple(keys), tuple(waiters))
