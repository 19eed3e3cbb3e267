"""The OpenAPI document, drawn from the routes and the messages they name."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import msgspec

from fairway.server.exchange import FALSE, TRUE
from fairway.wire.graphs import FireRequest, RestartRequest
from fairway.wire.jobs import NO_NUL, TEXT_MAX, CancelRequest, StatusName
from fairway.wire.records import META_KEYS_MAX, NODE_BYTES_MAX, RECORDS_MAX, TAG_BYTES_MAX
from fairway.wire.server import TicketRequest
from fairway.wire.topics import (
    INT_MAX,
    KEY_BYTES_MAX,
    AppendRequest,
    DiffReply,
    DiffRequest,
    ErrorReply,
    Tombstone,
    TopicPatch,
)
from fairway.wire.workflows import StartRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairway.server.asgi import Route

DESCRIPTION: Final = (
    "Durable topics and jobs. Overload costs latency, never data."
    " Durable Streams are served under /v1/stream/, by a protocol with a document of its own:"
    " https://github.com/durable-streams/durable-streams"
)
REF: Final = "#/components/schemas/{name}"


class RecordIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record to append."""

    data: Any
    tag: Annotated[str, msgspec.Meta(max_length=TAG_BYTES_MAX)] | None = None
    node: Annotated[str, msgspec.Meta(max_length=NODE_BYTES_MAX)] | None = None
    meta: Annotated[dict[str, Any], msgspec.Meta(max_length=META_KEYS_MAX)] | None = None


class AppendBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Records to append, and what goes for all of them."""

    records: Annotated[list[RecordIn], msgspec.Meta(min_length=1, max_length=RECORDS_MAX)]
    node: Annotated[str, msgspec.Meta(max_length=NODE_BYTES_MAX)] | None = None
    idempotency_key: Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_BYTES_MAX)] | None = (
        None
    )
    create: bool | None = None
    config: TopicPatch | None = None
    disable_backpressure: bool = False


class DiffBody(msgspec.Struct, frozen=True, kw_only=True):
    """Records after a cursor."""

    topic: str
    epoch: int
    records: list[dict[str, Any]]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int


SHOWN_AS: Final[dict[Any, Any]] = {AppendRequest: AppendBody, DiffReply: DiffBody}
"""Messages whose records are kept raw, as people should read them."""


MAY_BE_LEFT_OUT: Final = frozenset(
    {
        *(CancelRequest, DiffRequest, FireRequest, RestartRequest, StartRequest),
        *(TicketRequest, TopicPatch),
    }
)
"""Bodies without which a request means the defaults of all their fields."""


def _one_of(*fields: str) -> list[dict[str, Any]]:
    """At least one of these fields is there, and not null."""
    return [
        {"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in fields
    ]


REFINED: Final[dict[str, dict[str, Any]]] = {
    "DeleteRequest": {"anyOf": _one_of("before_seq", "match", "seq")},
    "WatchRequest": {
        "anyOf": [
            {"required": ["topics"], "properties": {"topics": {"minProperties": 1}}},
            *_one_of("prefix"),
        ]
    },
    "QueueSettings": {"anyOf": [{"required": ["paused"]}, {"required": ["limits"]}]},
    "PushRequest": {"oneOf": [{"required": ["data"]}, {"required": ["events"]}]},
    "JobOrder": {
        "not": {
            "required": ["delay_ms", "at"],
            "properties": {"delay_ms": {"type": "integer"}, "at": {"type": "integer"}},
        }
    },
}
"""What goes for fields together, which their types do not say."""


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The whole document."""
    routes = list(routes)
    shown = [SHOWN_AS.get(one, one) for route in routes for one in (route.body, route.reply) if one]
    kinds = list(dict.fromkeys([*shown, ErrorReply]))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REF)
    by_kind = dict(zip(kinds, schemas, strict=True))
    for name, more in REFINED.items():
        if name in components:
            components[name] |= more
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Fairway",
            "version": version("fairway"),
            "description": DESCRIPTION,
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(route: Route, by_kind: dict[Any, Any]) -> dict[str, Any]:
    error = {"application/json": {"schema": by_kind[ErrorReply]}}
    responses: dict[str, Any] = {"200": {"description": "done"}}
    if route.socket:
        responses = {"101": {"description": "the socket is open"}}
    elif route.reply is not None:
        schema = by_kind[SHOWN_AS.get(route.reply, route.reply)]
        responses["200"]["content"] = {"application/json": {"schema": schema}}
    elif route.stream:
        responses["200"]["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
    for status, meaning in route.statuses.items():
        content = error if status >= 400 else responses["200"].get("content", error)
        if status == 503 and route.path == "/readyz":
            content = responses["200"]["content"]
        responses[str(status)] = {"description": meaning, "content": content}
    for status, meaning in _COMMON.items():
        if not (route.public and status in (401, 403)):
            responses.setdefault(str(status), {"description": meaning, "content": error})
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "responses": responses,
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": _name(name)}
                for name in _arguments(route.path)
            ),
            *(
                {
                    "name": name,
                    "in": "query",
                    "schema": _query(route.path, name, kind),
                    "description": meaning,
                }
                for name, kind, meaning in route.query
            ),
        ],
    }
    if route.body is not None:
        schema = by_kind[SHOWN_AS.get(route.body, route.body)]
        operation["requestBody"] = {
            "required": route.body not in MAY_BE_LEFT_OUT,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


_COMMON: Final = {
    400: "the request is wrong, and changed nothing",
    401: "no key, or not a known one",
    403: "the key may not do this",
    408: "the request did not come in time",
    413: "the body is too large",
    414: "the URL is too long",
    415: "the body is not JSON",
    429: "too much; `Retry-After` says when",
    431: "the head is too large",
    503: "not ready, or shutting down",
}


_SHAPES: Final[dict[str, dict[str, Any]]] = {
    # Tokens that the server gives out: any other string of that shape is refused as well.
    "cursor": {"pattern": "^[A-Za-z0-9_-]*$", "format": "fairway-token"},
    "last_event_id": {"pattern": "^[A-Za-z0-9_.-]*$", "format": "fairway-token"},
}
_OF_JOBS: Final = ("queue", "kind", "tenant")


def _query(path: str, name: str, kind: str) -> dict[str, Any]:
    if kind == "boolean":
        return {"anyOf": [{"type": "boolean"}, {"type": "string", "enum": [*TRUE, *FALSE]}]}
    if name == "status":
        return {"type": kind, "enum": list(get_args(StatusName))}
    if path == "/v0/jobs" and name in _OF_JOBS:
        return {"type": kind, **NO_NUL}
    if name in _SHAPES:
        return {"type": kind, **_SHAPES[name]}
    if kind != "integer":
        return {"type": kind}
    return {"type": kind, "minimum": 1 if name == "page_size" else 0, "maximum": INT_MAX}


def _arguments(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


_PATTERNS: Final = {
    "router": "^[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}$",
    "queue": "^([A-Za-z0-9][A-Za-z0-9._:-]{0,254}|[*])$",
}


def _name(argument: str) -> dict[str, Any]:
    if argument == "wid":
        return {"type": "string"}
    if argument == "id":
        return {"type": "integer", "minimum": 1, "maximum": INT_MAX}
    if argument == "key":
        return {"type": "string", "minLength": 1, "maxLength": TEXT_MAX, **NO_NUL}
    pattern = _PATTERNS.get(argument, "^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$")
    return {"type": "string", "pattern": pattern, "minLength": 1, "maxLength": 255}
