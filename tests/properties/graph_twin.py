"""Obvious slow twins of the pure machines of graphs: one list of everything, scanned each time.

`SlowInputs` keeps every boundary that ever came, in order of arrival, with what became of it.
`slow_count_windows` and the like are given all events at once and cut them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fairway.graphs.criteria import Criterion

WAITING, ASIDE, TAKEN, DONE = "waiting", "aside", "taken", "done"

SlowUpdate: TypeAlias = "tuple[Any, dict[str, int], tuple[Any, ...], tuple[Any, ...]]"


@dataclass
class Came:
    """One boundary, or one step of a source without a value, for as long as the test lasts."""

    source: str
    value: Any
    """None if it brought none, was dropped, or was filtered."""
    stream: str
    offset: int
    keys: tuple[Any, ...]
    waiters: tuple[Any, ...]
    order: int
    at_ns: int
    state: str
    may_pass: bool = False
    """Time has let it pass."""


@dataclass
class SlowTaken:
    values: dict[str, Any]
    came: list[Came]
    fresh: list[str]
    """Sources that fire and brought a value."""
    cache: dict[str, Any]
    """As it was before."""
    since_ns: int
    replaced: bool = False
    """The values were given by whoever forced it."""

    def updates(self) -> dict[str, SlowUpdate]:
        """By source: the newest value, the marks, the keys and the waiters."""
        found: dict[str, SlowUpdate] = {}
        for name in {each.source for each in self.came}:
            mine = [each for each in self.came if each.source == name]
            values = [each.value for each in mine if each.value is not None]
            found[name] = (
                values[-1] if values and not self.replaced else None,
                {each.stream: each.offset for each in mine},
                tuple(key for each in mine for key in each.keys),
                tuple(waiter for each in mine for waiter in each.waiters),
            )
        return found


@dataclass
class SlowInputs:
    """Everything that came, in one list in order of arrival."""

    fires: list[str]
    criterion: Criterion
    sequential: bool
    next_ns: int
    wanted: Callable[[Mapping[str, Any]], bool]
    came: list[Came] = field(default_factory=list)
    cache: dict[str, Any] = field(default_factory=dict)
    filtered: int = 0
    unwanted: list[Any] = field(default_factory=list)
    last_ns: int = 0
    refused: bool = False

    # What is where

    def of(self, source: str, state: str) -> list[Came]:
        return [each for each in self.came if (each.source, each.state) == (source, state)]

    def waiting(self, source: str) -> list[Came]:
        """Those that can make it fire."""
        return [each for each in self.of(source, WAITING) if each.value is not None]

    def fresh(self) -> list[str]:
        return [name for name in self.fires if self.waiting(name)]

    def satisfied(self) -> bool:
        return len(self.fresh()) >= self.criterion.need

    def may_pass(self) -> bool:
        if not self.criterion.timed:
            return self.satisfied()
        if self.sequential:
            return (
                sum(self.waiting(name)[0].may_pass for name in self.fresh()) >= self.criterion.need
            )
        passing = any(each.may_pass for name in self.fires for each in self.waiting(name))
        return self.satisfied() and passing

    def owed(self) -> list[Came]:
        """What must be read again if all this is lost now."""
        return [each for each in self.came if each.state != DONE and each.value is not None]

    # What happens

    def arrive(
        self, source: str, value: Any, at: tuple[str, int], keys: Any, now_ns: int, waiter: Any
    ) -> None:
        fires = source in self.fires
        if (
            self.criterion.period_ns
            and not self.criterion.always
            and (self.refused or not self.satisfied())
        ):
            self.skip_looks(now_ns)
        self.refused = False
        self.last_ns = now_ns if fires else self.last_ns
        waiters = () if waiter is None else (waiter,)
        state = WAITING if fires else ASIDE
        self.came.append(Came(source, value, *at, keys, waiters, len(self.came), now_ns, state))
        if not (fires and self.sequential):
            self.cache[source] = value

    def passed(self, source: str, at: tuple[str, int], keys: Any) -> None:
        state = WAITING if source in self.fires and self.waiting(source) else ASIDE
        self.came.append(Came(source, None, *at, keys, (), len(self.came), 0, state))

    def drop_oldest(self, source: str) -> None:
        for each in self.head(source):
            each.state, each.value, each.keys = ASIDE, None, ()

    def head(self, source: str) -> list[Came]:
        """The first that waits, and the steps that go with it."""
        values = self.waiting(source)
        end = values[1].order if len(values) > 1 else len(self.came)
        return [each for each in self.of(source, WAITING) if each.order < end]

    def take(self, now_ns: int) -> SlowTaken | None:
        taken = self.asked(False)
        if taken is None and self.criterion.timed and self.looked(now_ns):
            for each in self.came:
                each.may_pass = True
            taken = self.asked(self.criterion.always)
        return taken

    def asked(self, in_any_case: bool) -> SlowTaken | None:
        while in_any_case or self.may_pass():
            in_any_case = False
            if not self.sequential and not self.wanted(dict(self.cache)):
                for each in self.came:
                    each.may_pass = False
                self.refused = True
                return None
            taken = self.force()
            if not self.sequential or self.wanted(taken.values):
                return taken
            self.cache = taken.cache
            valued = {each.source for each in taken.came if each.value is not None} & set(
                self.fires
            )
            for each in taken.came:
                each.state = ASIDE
                if each.source in valued:
                    self.filtered += each.value is not None
                    self.unwanted += each.waiters
                    each.value, each.keys, each.waiters = None, (), ()
        return None

    def force(self) -> SlowTaken:
        names = self.fresh()
        if self.sequential and self.criterion.need == 1 and names:
            names = [min(names, key=lambda name: self.waiting(name)[0].order)]
        firing = [
            each
            for name in names
            for each in (self.head(name) if self.sequential else self.of(name, WAITING))
        ]
        cache = dict(self.cache)
        for each in firing:
            if each.value is not None:
                self.cache[each.source] = each.value
        since_ns = min((each.at_ns for each in firing if each.value is not None), default=0)
        return self.taken(firing, names, cache, since_ns)

    def force_with(self, values: Mapping[str, Any]) -> SlowTaken:
        taken = self.taken([], [], dict(self.cache), 0) if self.sequential else self.force()
        self.cache = dict(values)
        taken.values, taken.replaced = dict(values), True
        return taken

    def taken(
        self, firing: list[Came], names: list[str], cache: dict[str, Any], since_ns: int
    ) -> SlowTaken:
        everything = firing + [each for each in self.came if each.state == ASIDE]
        everything.sort(key=lambda each: each.order)
        for each in everything:
            each.state = TAKEN
        return SlowTaken(dict(self.cache), everything, names, cache, since_ns)

    def complete(self, taken: SlowTaken) -> None:
        for each in taken.came:
            each.state = DONE

    def restore(self, taken: SlowTaken) -> None:
        """All goes back where it was, and what went aside since stays behind it."""
        arrived = {
            each.source: each.value
            for each in self.came
            if each.state in (WAITING, ASIDE) and each.value is not None
            if not (self.sequential and each.source in self.fires)
        }
        self.cache = {**taken.cache, **arrived}
        for each in self.came:
            mine = each.state in (TAKEN, ASIDE)
            if mine and each.source in taken.fresh:
                each.state = WAITING
                each.may_pass = True
                each.at_ns = taken.since_ns if each.value is not None else 0
            elif each.state == TAKEN:
                each.state = ASIDE
        self.refused = self.refused and not taken.fresh

    # Time

    def skip_looks(self, now_ns: int) -> None:
        while self.next_ns <= now_ns:
            self.next_ns += self.criterion.period_ns

    def looked(self, now_ns: int) -> bool:
        criterion = self.criterion
        if criterion.period_ns:
            if now_ns < self.next_ns:
                return False
            self.skip_looks(now_ns)
            now_ns = self.next_ns - criterion.period_ns  # the multiple that is looked at
        if criterion.always:
            return True
        if not self.satisfied():
            return False
        first_ns = min(each.at_ns for name in self.fires for each in self.waiting(name))
        late = bool(criterion.most_ns) and now_ns >= first_ns + criterion.most_ns
        return late or not criterion.quiet_ns or now_ns >= self.last_ns + criterion.quiet_ns


# Windows: all events at once


def slow_count_windows(values: Sequence[Any], count: int, step: int) -> list[list[Any]]:
    """Every `step`-th run of `count`."""
    return [list(values[at : at + count]) for at in range(0, len(values) - count + 1, step)]


def slow_time_windows(
    events: Sequence[tuple[int, Any]], length: int, step: int, until: int
) -> list[list[Any]]:
    """Of events (time, value) in any order: each window that ends by `until` and is not empty."""
    if not events:
        return []
    first = min(at for at, _ in events) // step * step
    ends = range(first + step, until + 1, step)
    windows = [
        [value for at, value in sorted(events, key=lambda e: e[0]) if end - length <= at < end]
        for end in ends
    ]
    return [window for window in windows if window]
