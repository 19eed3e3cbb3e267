"""The messages of topics: what is asked, what is answered, and the limits of both.

Validation that needs only the message itself lives here, so that the server, the client and the
embedded API refuse the same things with the same words. What needs a topic's state is the engine's.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, TypeAlias, TypedDict

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from fairway.errors import InvalidRequest
from fairway.wire.records import NODE_BYTES_MAX
from fairway.wire.requests import INT_MAX

BODY_BYTES_MAX: Final = 64 * 1024 * 1024
KEY_BYTES_MAX: Final = 256
LIMIT_MAX: Final = 1000
LIMIT_DEFAULT: Final = 256
WAIT_MS_MAX: Final = 30_000
READ_BYTES_DEFAULT: Final = 1024 * 1024
READ_BYTES_MAX: Final = 8 * 1024 * 1024
WATCH_BYTES_DEFAULT: Final = 256 * 1024
WATCH_BYTES_MAX: Final = WATCH_BYTES_DEFAULT
"""A frame is taken whole by whoever has nothing else to send, so it counts for its buffer."""
WATCH_TOPICS_MAX: Final = 256
PAGE_MAX: Final = 1000

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
ROUTER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}")

Count: TypeAlias = Annotated[int, Meta(ge=0, le=INT_MAX)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=10**15)]
Discard: TypeAlias = Literal["old", "reject"]
DurabilityName: TypeAlias = Literal["ephemeral", "memory", "disk", "fsync"]
LossReason: TypeAlias = Literal["cap", "ttl", "mixed", "crash", "recreated", "source_trim"]


class TopicConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a topic keeps, bounds and schedules its records. Every field has a default."""

    ttl_ms: Milliseconds = 0
    """Records older than this are gone; 0 keeps them."""
    cap_records: Count = 0
    """Live records kept at most; 0 is no bound."""
    cap_bytes: Count = 0
    """Bytes of live records kept at most; 0 is no bound (ephemeral topics get 64 MiB)."""
    discard: Discard = "old"
    """What a full topic does: drop its oldest records, or refuse the write."""
    durability: DurabilityName = "fsync"
    """What an acknowledgement promises: nothing, acceptance, survival of kill -9, of power loss."""
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    """Set by hand, it overrides recency."""
    auto_priority: bool = True
    """Without a manual priority, topics that were read lately are served first."""
    auto_create: bool = True
    """Whether a write may bring the topic into being. A write's own `create` overrides it."""
    idempotency_window_ms: Milliseconds = 120_000
    """How long an idempotency key is remembered."""
    dedupe_node: bool = True
    """Whether a reader that names its node is spared its own records."""


class TopicPatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some fields of a `TopicConfig`: the others keep their value, or take the default."""

    ttl_ms: Milliseconds | UnsetType = UNSET
    cap_records: Count | UnsetType = UNSET
    cap_bytes: Count | UnsetType = UNSET
    discard: Discard | UnsetType = UNSET
    durability: DurabilityName | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | UnsetType | None = UNSET
    auto_priority: bool | UnsetType = UNSET
    auto_create: bool | UnsetType = UNSET
    idempotency_window_ms: Milliseconds | UnsetType = UNSET
    dedupe_node: bool | UnsetType = UNSET

    def over(self, config: TopicConfig) -> TopicConfig:
        """`config` with the fields set here."""
        changes = {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not UNSET
        }
        return msgspec.structs.replace(config, **changes) if changes else config


class TopicOptions(TypedDict, total=False):
    """The fields of a `TopicConfig`, as keywords."""

    ttl_ms: int
    cap_records: int
    cap_bytes: int
    discard: Discard
    durability: DurabilityName
    priority: int | None
    auto_priority: bool
    auto_create: bool
    idempotency_window_ms: int
    dedupe_node: bool


class AppendRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v0/topics/{t}`. The records are decoded apart: see `records`."""

    records: Raw
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: TopicPatch | None = None
    disable_backpressure: bool = False


class AppendReply(Struct, frozen=True, kw_only=True):
    topic: str
    epoch: int
    first_seq: int
    last_seq: int
    seqs: list[int] | UnsetType = UNSET
    head_seq: int
    count: int
    created: bool
    deduped: bool


TopicName: TypeAlias = Annotated[
    str,
    Meta(extra_json_schema={"pattern": f"^{NAME.pattern}$", "minLength": 1, "maxLength": 255}),
]
"""`check_name` says what is wrong with one."""
MatchTuple: TypeAlias = Annotated[
    tuple[Literal["tag"], Literal["Eq", "Glob"], str],
    Meta(
        extra_json_schema={
            "prefixItems": [{"const": "tag"}, {"enum": ["Eq", "Glob"]}, {"type": "string"}],
            "oneOf": [
                {"prefixItems": [{}, {"const": "Eq"}, {}]},
                {"prefixItems": [{}, {"const": "Glob"}, {"pattern": r"^[^*]*\*$"}]},
            ],
        }
    ),
]
Match: TypeAlias = str | MatchTuple
"""A tag predicate: `"x"` and `["tag","Eq","x"]` are exact, `["tag","Glob","x*"]` is a prefix.

So it is in a message. In Python a string that ends in a star is a prefix: see `match_of`.
"""


class DiffRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v0/topics/{t}/diff`. Over-range limits are clamped, not refused."""

    from_seq: Count = 0
    epoch: Count | None = None
    """The incarnation `from_seq` belongs to; a different one is told as `recreated`."""
    limit: Count = LIMIT_DEFAULT
    node: str | list[str] | None = None
    match: Match | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: Count = 0
    max_batch_bytes: Count = READ_BYTES_DEFAULT


class Tombstone(Struct, frozen=True, kw_only=True):
    """Records `gap_from..gap_to` (inclusive) are gone, and nobody asked for it."""

    reason: LossReason
    gap_from: int
    gap_to: int
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class DiffReply(Struct, frozen=True, kw_only=True):
    topic: str
    epoch: int
    records: Raw
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int


class DeleteRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v0/topics/{t}/delete`: at least one of these; several are ANDed."""

    before_seq: Count | None = None
    match: Match | None = None
    seq: Count | None = None
    """Only the record of this seq."""


class DeleteReply(Struct, frozen=True, kw_only=True):
    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


class TopicState(Struct, frozen=True, kw_only=True):
    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    evict_floor: int
    next_seq: int
    count: int
    bytes: int
    config: TopicConfig
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    watchers: int


class TopicSummary(Struct, frozen=True, kw_only=True):
    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durability: DurabilityName
    effective_priority: int


class TopicList(Struct, frozen=True, kw_only=True, omit_defaults=True):
    topics: list[TopicSummary]
    next_cursor: str | UnsetType = UNSET


class PutTopicReply(Struct, frozen=True, kw_only=True):
    topic: str
    created: bool
    epoch: int
    config: TopicConfig


class DeleteTopicReply(Struct, frozen=True, kw_only=True):
    topic: str
    deleted: bool
    routers_removed: list[str]


class RouterConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule that copies what is appended to `source` into `dest`."""

    source: TopicName
    dest: TopicName
    filter: Match | None = None
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    allow_cycle: bool = False


class RouterOptions(TypedDict, total=False):
    """The fields of a `RouterConfig` besides its two topics, as keywords."""

    filter: Match | None
    preserve_node: bool
    preserve_tag: bool
    create_dest: bool
    allow_cycle: bool


class RouterState(Struct, frozen=True, kw_only=True):
    router: str
    source: str
    dest: str
    filter: Match | None
    preserve_node: bool
    preserve_tag: bool
    create_dest: bool
    allow_cycle: bool
    cursor: int
    """The last seq of the source that was examined."""
    lag: int
    forwarded_total: int
    """Records forwarded since this process started."""
    stopped_total: int = 0
    """Records left out since then: they came through too many routers, or have too many copies."""
    error: str | None
    """Why it stands still, if it does."""


class PutRouterReply(Struct, frozen=True, kw_only=True):
    router: str
    created: bool
    source: str
    dest: str
    filter: Match | None
    preserve_node: bool
    preserve_tag: bool
    create_dest: bool
    allow_cycle: bool


class RouterList(Struct, frozen=True, kw_only=True, omit_defaults=True):
    routers: list[RouterState]
    next_cursor: str | UnsetType = UNSET


class DeleteRouterReply(Struct, frozen=True, kw_only=True):
    router: str
    deleted: bool


class WatchTopic(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    from_seq: Count = 0
    epoch: Count | None = None
    tail: bool = False


class WatchRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v0/watch`: named topics, a prefix such as `orders.*`, or both."""

    topics: dict[TopicName, WatchTopic] = {}
    prefix: (
        Annotated[
            str, Meta(extra_json_schema={"pattern": r"^([A-Za-z0-9][A-Za-z0-9._:-]{0,254})?\*?$"})
        ]
        | None
    ) = None
    node: str | list[str] | None = None
    match: Match | None = None
    limit: Count = LIMIT_DEFAULT
    max_batch_bytes: Count = WATCH_BYTES_DEFAULT
    heartbeat_ms: Count = 15_000
    include_meta: bool = True
    include_tags: bool = False
    include_data: bool = True
    touch: bool = True
    """Whether it counts as consuming, for the automatic priority of its topics."""


class WatchPosition(Struct, frozen=True, kw_only=True):
    from_seq: int
    epoch: int
    head_seq: int
    earliest_seq: int


class WatchReply(Struct, frozen=True, kw_only=True):
    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, WatchPosition]


def check_name(name: str, *, what: str = "topic") -> str:
    """`name`, or `InvalidRequest` if it cannot name a topic or a router."""
    if not isinstance(name, str):
        raise InvalidRequest(f"the name of a {what} is a text, not a {type(name).__name__}")
    pattern = ROUTER_NAME if what == "router" else NAME
    if not pattern.fullmatch(name):
        raise InvalidRequest(
            f"{name[:80]!r} cannot name a {what}: 1 to 255 characters of A-Z a-z 0-9 . _ : -,"
            " the first a letter or a digit"
        )
    return name


def match_of(match: Match | None) -> Match | None:
    """What Python code means, as a message has it: `"x"` is a tag, `"x*"` a prefix of tags.

    A tag that itself ends in a star is `("tag", "Eq", "x*")`.
    """
    if isinstance(match, str) and match.endswith("*"):
        return ("tag", "Glob", match)
    return match


def check_writer(node: str | None, key: str | None) -> None:
    """Refuse a node or an idempotency key that is too long, or no text."""
    for what, text in (("node", node), ("idempotency_key", key)):
        if text is not None and not isinstance(text, str):
            raise InvalidRequest(f"{what} is a text, not a {type(text).__name__}")
    try:
        if node is not None and len(node.encode()) > NODE_BYTES_MAX:
            raise InvalidRequest(
                f"node has more than {NODE_BYTES_MAX} bytes", code="record_too_large"
            )
        if key is not None and not 0 < len(key.encode()) <= KEY_BYTES_MAX:
            raise InvalidRequest(f"idempotency_key has 1 to {KEY_BYTES_MAX} bytes")
    except UnicodeEncodeError:
        raise InvalidRequest("node or idempotency_key holds half a character") from None
