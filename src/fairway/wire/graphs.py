"""The messages of graphs: what is asked and what is answered, over HTTP and over WebSocket.

Times are milliseconds since 1970, in UTC. Values of sources and nodes are JSON; what has no JSON of
its own is the text that Python shows of it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from fairway.wire.requests import RequestId  # noqa: TC001  (read at run time)
from fairway.wire.sockets import ErrorMessage

EVENTS_MAX: Final = 10_000
"""Boundaries in one push."""
PUSH_WAIT_MS: Final = 5_000
"""How long a push waits for room, if its source says `block`."""
FIRINGS_DEFAULT: Final = 20
FIRINGS_MAX: Final = 200
DEAD_DEFAULT: Final = 50
DEAD_MAX: Final = 1_000

GraphStateName: TypeAlias = Literal["starting", "warming", "live", "degraded", "stopped", "failed"]
Reference: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_.]*$",
        max_length=255,
    ),
]
"""Where a graph is declared: `module:graph`."""
SourceName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=255)]


# What a graph is


class GraphSummary(Struct, frozen=True, kw_only=True):
    """A graph, as lists show it, and as it is after it was steered."""

    graph: str
    tenant: str
    """Empty if it is nobody's."""
    state: GraphStateName
    paused: bool
    halted: str | None
    """Why it stopped firing by itself, if it did."""
    failed: str | None
    """Why it was given up, if it was."""
    checkpoint: bool
    sources: int
    nodes: int
    firing: int
    """The number of its last firing; 0 before the first."""
    fired: int
    """Firings that succeeded since it was started."""
    failures: int
    """Tries that did not."""


class GraphList(Struct, frozen=True, kw_only=True):
    graphs: list[GraphSummary]


class EdgeView(Struct, frozen=True, kw_only=True):
    """What a node takes."""

    source: str
    """The source or node it comes from."""
    types: list[str]
    """The types that pass, if only some of what comes does."""
    optional: bool


class NodeView(Struct, frozen=True, kw_only=True):
    """A node: what it takes, where it runs, and what it did since its graph was declared."""

    name: str
    takes: list[EdgeView]
    result: bool
    """Whether its value is a result of the graph."""
    runs_in: Literal["loop", "thread", "process"]
    timeout_ms: int | None
    runs: int
    failed: int
    busy_us: int
    """The time of all its runs together."""


class SourceView(Struct, frozen=True, kw_only=True):
    """A source: what it is, how it is, and what came."""

    name: str
    kind: str
    """`passthrough`, `stream`, `batch`, `state`, or what its feed calls itself."""
    fires: bool
    """Whether the criterion of the graph names it."""
    required: bool
    on_full: Literal["block", "drop_oldest", "refuse"]
    capacity: int
    state: str
    """`starting`, `connecting`, `live`, `disconnected`, `socket_only` or `failed`."""
    why: str
    stale: bool
    last_event_ms: int | None
    """How long ago its last event came."""
    queue: int
    """Boundaries that wait."""
    collected: int
    """Events that wait for their batch or window to end."""
    events: int
    dropped: int
    refused: int
    repeated: int
    suppressed: int
    buried: int
    late: int


class CheckpointView(Struct, frozen=True, kw_only=True):
    """What is kept of a graph."""

    epoch: int
    holder: str
    records: int
    pending: int
    """Records that are not durable yet."""
    failing: bool
    dead: int
    """Dead letters that are kept."""


class GraphStateView(Struct, frozen=True, kw_only=True):
    """All that is known of a graph while it runs."""

    graph: str
    tenant: str
    state: GraphStateName
    paused: bool
    halted: str | None
    failed: str | None
    waiting: list[str]
    """Required sources that are not healthy: why it is not live."""
    degraded: list[str]
    """Sources whose values are old or missing; `checkpoint` if records cannot be written."""
    firing: int
    fired: int
    failures: int
    cache: dict[str, Any]
    """The value of each source that has one; empty with `?cache=false`."""
    dirty: dict[str, bool]
    """Each source that fires the graph, and whether it has news."""
    sources: list[SourceView]
    nodes: list[NodeView]
    checkpoint: CheckpointView | None
    """None if the graph is not checkpointed."""
    outbox: int
    """Effects that wait to go out."""


class GraphView(Struct, frozen=True, kw_only=True):
    """A graph as it is declared, with the numbers of its sources and nodes."""

    graph: str
    tenant: str
    state: GraphStateName
    paused: bool
    inputs: Literal["latest", "sequential"]
    when: str
    """When it fires, in words."""
    checkpoint: bool
    record: int
    firing: int
    fired: int
    failures: int
    sources: list[SourceView]
    nodes: list[NodeView]
    mermaid: str


# What happened


class FiringSummary(Struct, frozen=True, kw_only=True):
    """A firing, without what it was given and came to."""

    firing: int
    """Its number. One that failed and is tried again keeps it."""
    cause: str
    """`news`, `forced` or `injected`."""
    at: int
    duration_us: int
    fresh: list[str]
    """The sources that brought news."""
    error: str | None
    degraded: list[str]
    attempt: int


class FiringView(Struct, frozen=True, kw_only=True):
    """A firing."""

    firing: int
    cause: str
    at: int
    duration_us: int
    fresh: list[str]
    error: str | None
    degraded: list[str]
    attempt: int
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    """What the nodes that ran last came to. Empty if no node had all that it takes."""


class FiringList(Struct, frozen=True, kw_only=True):
    firings: list[FiringView]


class FiringsEvent(Struct, frozen=True, kw_only=True):
    """Firings since the last such event of a stream, oldest first."""

    graph: str
    tenant: str
    firings: list[FiringSummary]
    skipped: int
    """Older ones that this reader was too slow for, or that were too many."""


class DeadData(Struct, frozen=True, kw_only=True):
    """The bytes of one boundary, and what they say if that can be read."""

    base64: str
    json: Any = None


class DeadLetterView(Struct, frozen=True, kw_only=True):
    """What could not be used."""

    id: int
    at: int
    source: str
    """The source of a boundary that did not decode; empty if a firing failed."""
    reason: str
    data: dict[str, DeadData]


class DeadLetterList(Struct, frozen=True, kw_only=True):
    dead: list[DeadLetterView]
    total: int
    """Dead letters that are kept."""


class RecoveryView(Struct, frozen=True, kw_only=True):
    """Something of a graph failed, was restarted, or given up."""

    at: int
    what: str
    """`reactor`, or the name of a source."""
    happening: str
    failures: int
    error: str


class RecoveryList(Struct, frozen=True, kw_only=True):
    recoveries: list[RecoveryView]


class JournalPage(Struct, frozen=True, kw_only=True):
    """A part of the journal of a graph, as it is stored: for `fairway graph replay`."""

    snapshot: bytes | None
    """The state that it begins with, on the first page if there is one."""
    entries: list[bytes]
    next: int | None
    """`after` of the next page, or None if this is the last."""


class AuditEntry(Struct, frozen=True, kw_only=True):
    """A command: who gave it, and what came of it."""

    at: int
    who: str
    command: str
    tenant: str
    graph: str
    outcome: str
    """`done`, or the code of the error."""
    detail: str


class AuditList(Struct, frozen=True, kw_only=True):
    entries: list[AuditEntry]


# What is asked


class PushRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Give a source one boundary, or several in order."""

    data: Raw | UnsetType = UNSET
    events: Annotated[list[Raw], Meta(min_length=1, max_length=EVENTS_MAX)] | UnsetType = UNSET


class PushRefusal(Struct, frozen=True, kw_only=True):
    """Why the rest of a push was not taken."""

    code: str
    message: str
    retry_after_ms: int | None


class PushReply(Struct, frozen=True, kw_only=True):
    """How many boundaries were accepted, from the first on: durably, if it is checkpointed."""

    accepted: int
    refused: PushRefusal | None = None
    """Why the next one was not; None if all were accepted."""


class FireRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fire now; with `cache`, values by source, these replace the cache, all of it."""

    cache: dict[str, Raw] | None = None


class RestartRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Start a graph anew, or a source of it that was given up."""

    source: SourceName | None = None


class LoadRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Run a graph that a module of the server's declares."""

    graph: Reference
    fresh: bool = False
    """Import the module anew, as its file is now."""


class UnloadReply(Struct, frozen=True, kw_only=True):
    graph: str
    tenant: str
    forgotten: bool
    """Whether what was kept of it is gone as well."""


# Over WebSocket


class PushMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`/v0/graphs/{graph}/accumulators/{source}`: one boundary."""

    data: Raw
    id: RequestId | None = None
    """Comes back with the answer."""


CommandName: TypeAlias = Literal["force_fire", "fire_with", "get_state", "pause", "resume"]


class CommandMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`/v0/graphs/{graph}/reactor`: one command."""

    command: CommandName
    cache: dict[str, Raw] | None = None
    """For `fire_with`."""
    id: RequestId | None = None
    """Comes back with the answer."""


class AckMessage(Struct, frozen=True, kw_only=True, tag_field="op", tag="ack"):
    """A boundary was accepted: durably, if the graph is checkpointed."""

    id: RequestId | UnsetType = UNSET


class RefusedMessage(Struct, frozen=True, kw_only=True, tag_field="op", tag="refused"):
    """Nothing was accepted: the source or the socket has no room, or a quota is used up."""

    id: RequestId | UnsetType = UNSET
    status: int
    code: str
    message: str
    retry_after_ms: int
    """Send it again, so late."""
    detail: dict[str, Any] | UnsetType = UNSET


class FiredMessage(FiringView, frozen=True, kw_only=True, tag_field="op", tag="fired"):
    """The answer to `force_fire` and `fire_with`."""

    id: RequestId | UnsetType = UNSET


class StateMessage(GraphStateView, frozen=True, kw_only=True, tag_field="op", tag="state"):
    """The answer to `get_state`."""

    id: RequestId | UnsetType = UNSET


class PausedMessage(GraphSummary, frozen=True, kw_only=True, tag_field="op", tag="paused"):
    """The answer to `pause`."""

    id: RequestId | UnsetType = UNSET


class ResumedMessage(GraphSummary, frozen=True, kw_only=True, tag_field="op", tag="resumed"):
    """The answer to `resume`."""

    id: RequestId | UnsetType = UNSET


PushAnswer: TypeAlias = AckMessage | RefusedMessage | ErrorMessage
CommandAnswer: TypeAlias = (
    FiredMessage | StateMessage | PausedMessage | ResumedMessage | RefusedMessage | ErrorMessage
)
"""A message that is wrong, or not allowed to this key, is answered by an `ErrorMessage`."""
