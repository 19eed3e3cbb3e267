"""When a graph fires: criteria over its sources, as values.

    any_(quotes, orders)                      one of them has news
    all_(quotes, orders)                      each of them has
    quorum(2, a, b, c)                        so many of them have
    debounce(any_(a, b), quiet_s=0.05)        ... and nothing came for a while
    every(1.0, any_(a, b))                    ... looked at once a second
    where(any_(a, b), lambda inputs: ...)     ... and the inputs are worth it

Each names the sources that make the graph fire; others may be inputs only. All of them come down
to one `Criterion`, which `inputs` asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from fairway.errors import InvalidConfig
from fairway.runtime.amounts import count, length_ns

Predicate: TypeAlias = Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """A criterion in its one form: how many sources need news, and what else must hold."""

    sources: tuple[Any, ...]
    """Whatever was named: sources, topics, or their names. The graph makes sources of them."""
    need: int
    quiet_ns: int = 0
    """No news for so long. 0 does not ask."""
    most_ns: int = 0
    """However lively: looked at after so long at the latest. 0 waits for quiet for ever."""
    period_ns: int = 0
    """Looked at only at multiples of this. 0 looks at once."""
    always: bool = False
    """Fires at each multiple whether there is news or not."""
    predicates: tuple[Predicate, ...] = ()

    @property
    def timed(self) -> bool:
        return bool(self.quiet_ns or self.period_ns)


def any_(*sources: Any) -> Criterion:
    """Fires when any of the sources has news."""
    return _criterion(sources, 1)


def all_(*sources: Any) -> Criterion:
    """Fires when each of the sources has news since the last firing."""
    return _criterion(sources, len(sources))


def quorum(need: int, *sources: Any) -> Criterion:
    """Fires when at least `need` of the sources have news since the last firing."""
    if count("the need of a quorum", need, least=0) not in range(1, len(sources) + 1):
        raise InvalidConfig(f"a quorum of {need} among {len(sources)} sources cannot be met")
    return _criterion(sources, need)


def debounce(criterion: Any, *, quiet_s: float, most_s: float | None = None) -> Criterion:
    """Fires when the criterion holds and nothing came for `quiet_s`.

    A source that never rests would put it off for ever: `most_s` after its first news it fires
    anyway.
    """
    base = _as_criterion(criterion)
    quiet_ns = length_ns("quiet_s of debounce", quiet_s)
    most_ns = 0 if most_s is None else length_ns("most_s of debounce", most_s)
    if most_s is not None and most_ns < quiet_ns:
        raise InvalidConfig("debounce takes 0 < quiet_s <= most_s")
    if base.quiet_ns:
        raise InvalidConfig("a criterion is debounced once")
    return replace(base, quiet_ns=quiet_ns, most_ns=most_ns)


def every(period_s: float, criterion: Any, *, always: bool = False) -> Criterion:
    """Looks at the criterion once in `period_s`; with `always` it fires then in any case."""
    base = _as_criterion(criterion)
    period_ns = length_ns("the period of every", period_s)
    if base.period_ns:
        raise InvalidConfig("a criterion has one period")
    return replace(base, period_ns=period_ns, always=always)


def where(criterion: Any, predicate: Predicate) -> Criterion:
    """Fires when the criterion holds and `predicate` is true of the inputs by name.

    With `latest` input that is false stays news and is asked about again when more comes; with
    `sequential` it is passed over, and counted as filtered: an `ask` for its firing returns None.
    """
    base = _as_criterion(criterion)
    if not callable(predicate):
        raise InvalidConfig("where takes a function of the inputs, e.g. lambda inputs: ...")
    return replace(base, predicates=(*base.predicates, predicate))


def _criterion(sources: tuple[Any, ...], need: int) -> Criterion:
    if not sources:
        raise InvalidConfig("a criterion names at least one source")
    for source in sources:
        if isinstance(source, Criterion):
            raise InvalidConfig("any_, all_ and quorum take sources, not other criteria")
    if len({id(source) for source in sources}) != len(sources):
        raise InvalidConfig("a criterion names each source once")
    return Criterion(sources=sources, need=need)


def _as_criterion(found: Any) -> Criterion:
    return found if isinstance(found, Criterion) else any_(found)
