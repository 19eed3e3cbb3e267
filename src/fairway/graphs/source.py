"""A source of a graph, as it is declared: what comes, from where, and how it is treated.

    Source("quotes", Quote)                                       pushed only
    Source("ticks", Tick, feed=kafka("ticks", servers="..."))      from a broker
    Source("rates", Rate, feed=poll(fetch_rates, every_s=5))       asked for
    Source("trades", Trade, batch=Batch(size=100, every_s=1))      in lists
    Source("mids", Mid, keep=100)                                  written by the graph itself

Every source also takes pushes.
"""

from __future__ import annotations

from keyword import iskeyword
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    TypeAlias,
    TypedDict,
    TypeVar,
    overload,
)

from fairway.errors import InvalidConfig
from fairway.graphs.boundary import WHOLE, Schema, Stored
from fairway.graphs.inputs import CAPACITY, CAPACITY_BYTES
from fairway.graphs.node import fits, members, named, node_of
from fairway.runtime.amounts import count, length_ns
from fairway.runtime.words import brief

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Unpack

    from fairway.graphs.feed import Feed
    from fairway.graphs.windows import Batch, Window

T = TypeVar("T")

OnFull: TypeAlias = Literal["block", "drop_oldest", "refuse"]

KEYS_MAX: Final = 10_000
"""Keys of repeats that are remembered, of each source."""
POINTER_BYTES: Final = 8
ALL: Final = -1
"""`keep=ALL` keeps every value that is written."""


class SourceOptions(TypedDict, total=False):
    """What a source may be declared with: see `Source`."""

    feed: Feed | None
    batch: Batch | Window | None
    keep: int | None
    through: Callable[[Any], Any] | None
    dedupe: Callable[[Any], Any] | None
    required: bool
    stale_after_s: float | None
    on_full: OnFull
    capacity: int
    capacity_bytes: int
    version: int
    upgrades: Mapping[int, Callable[[Any], Any]] | None


class Source(Generic[T]):
    """One source. Its boundaries are of `type`; in lists if it collects or keeps them."""

    @overload
    def __init__(self, name: str, type: type[T], **options: Unpack[SourceOptions]) -> None: ...
    @overload
    def __init__(
        self: Source[Any], name: str, type: Any, **options: Unpack[SourceOptions]
    ) -> None: ...
    def __init__(
        self,
        name: str,
        type: Any,
        *,
        feed: Feed | None = None,
        batch: Batch | Window | None = None,
        keep: int | None = None,
        through: Callable[[Any], T | None] | None = None,
        dedupe: Callable[[T], Any] | None = None,
        required: bool = True,
        stale_after_s: float | None = None,
        on_full: OnFull = "block",
        capacity: int = CAPACITY,
        capacity_bytes: int = CAPACITY_BYTES,
        version: int = 1,
        upgrades: Mapping[int, Callable[[Any], Any]] | None = None,
    ) -> None:
        """Declare it.

        `through` makes a boundary of each event, or None to leave it out; the annotation of its
        parameter is the type of events. `dedupe` gives the key by which repeats are told; the last
        10,000 are remembered. `keep` makes it a state: the graph writes to it, and is given the
        last so many values (`ALL`: every one; 0: it is written, and nothing is given).

        A graph is not live while a `required` source is not healthy, or brought nothing for
        `stale_after_s`. `on_full` says what becomes of a boundary when `capacity` of them wait, or
        so many that those behind the next come to `capacity_bytes`.
        """
        if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
            raise InvalidConfig(
                f"source {brief(name)}: parameters are named after sources, so its name is one that"
                " a parameter could have"
            )
        if on_full not in ("block", "drop_oldest", "refuse"):
            raise InvalidConfig(
                f"source {name!r}: on_full is block, drop_oldest or refuse, not {on_full!r}"
            )
        count(f"source {name!r}: capacity", capacity)
        count(f"source {name!r}: capacity_bytes", capacity_bytes)
        count(f"source {name!r}: version", version)
        stale_after_ns = None
        if stale_after_s is not None:
            stale_after_ns = length_ns(f"source {name!r}: stale_after_s", stale_after_s)
        if keep is not None and (feed is not None or batch is not None):
            raise InvalidConfig(
                f"source {name!r}: what a graph keeps is written by the graph; it has no feed and"
                " is not batched"
            )
        if keep is not None and count(f"source {name!r}: keep", keep, least=-(2**63)) < ALL:
            raise InvalidConfig(f"source {name!r}: keep is a number of values, or ALL")
        self.name = name
        self.type = type
        self.feed = feed
        self.batch = batch
        self.keep = keep
        self.through = through
        self.dedupe = dedupe
        self.required = required
        self.stale_after_ns = stale_after_ns
        self.on_full: OnFull = on_full
        self.capacity = capacity
        self.capacity_bytes = capacity_bytes
        self.item_schema = Schema(type, version=version, upgrades=upgrades)
        """One value: what a state is written with, and what a list is made of."""
        self.event_schema = self.item_schema if through is None else Schema(self._event_type())
        """What comes from outside."""
        self.schema = self.item_schema
        """What is given to nodes."""
        if self.collects:
            each = {step: _of_each(upgrade) for step, upgrade in (upgrades or {}).items()}
            self.schema = Schema(self.given_type, version=version, upgrades=each)
        self.recorded = self.schema.store if keep != ALL else self._whole
        """How the record of a firing holds what this brought to it."""
        self.size_of = self.schema.size_of if keep is None else self._size_of_state
        """The bytes of a boundary that waits."""

    def __repr__(self) -> str:
        return f"Source({self.name!r})"

    @property
    def given_type(self) -> Any:
        """What a node that takes it is given."""
        return list[self.type] if self.collects else self.type  # type: ignore[name-defined]

    @property
    def collects(self) -> bool:
        return self.batch is not None or self.keep is not None

    @property
    def kind(self) -> str:
        """passthrough, stream, batch or state; or what its feed calls itself."""
        if self.keep is not None:
            return "state"
        if self.batch is not None:
            return "batch"
        if self.feed is None:
            return "passthrough"
        return str(getattr(self.feed, "kind", "stream"))

    def _whole(self, values: Any) -> Stored:
        """Of a state that keeps everything, no more than that: or each record would hold all."""
        return Stored(self.item_schema.version, WHOLE)

    def _size_of_state(self, values: Any) -> int:
        """What the newest adds: the others are held by the boundaries before it as well."""
        return len(values) * POINTER_BYTES + self.item_schema.size_of(values[-1])

    def _event_type(self) -> Any:
        if self.through is None:
            return self.type
        read = node_of(self.through)
        if len(read.parameters) != 1 or read.context is not None:
            raise InvalidConfig(
                f"source {self.name!r}: through {read.where} takes one event, and gives a boundary"
            )
        parameter = read.parameters[0]
        if not read.inline:
            raise InvalidConfig(
                f"source {self.name!r}: through {read.where} is a plain function: sources keep"
                " their order. What waits belongs in a node"
            )
        wanted = members(self.type)
        given = [each for each in read.gives if not any(fits(each, one) for one in wanted)]
        if given:
            raise InvalidConfig(
                f"source {self.name!r}: through {read.where} gives {named(given[0])}, not"
                f" {named(self.type)}"
            )
        if len(parameter.accepts) != 1:
            return Any
        event = parameter.accepts[0]
        return event | None if parameter.optional else event


def _of_each(upgrade: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The upgrade of a list, from that of what is in it."""
    return lambda values: [upgrade(value) for value in values]
