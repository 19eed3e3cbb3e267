"""The OpenAPI document, drawn from the routes and the messages they name."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairway.server.http.exchange import FALSE, TRUE
from fairway.server.http.problems import codes
from fairway.server.http.router import NAME
from fairway.wire.requests import INT_MAX, ErrorReply

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fairway.server.http.router import QueryParameter, Route

DESCRIPTION: Final = "Durable topics and jobs. Overload costs latency, never data."
REF: Final = "#/components/schemas/{name}"


def document(
    routes: Iterable[Route], schemas: Mapping[str, Mapping[str, Any]], description: str
) -> dict[str, Any]:
    """The whole document. `schemas` is what is said of messages beyond the types of their fields,
    by their names."""
    routes = list(routes)
    shown = [one for route in routes for one in (route.body, route.reply) if one]
    kinds = list(dict.fromkeys([*shown, ErrorReply]))
    made, components = msgspec.json.schema_components(kinds, ref_template=REF)
    by_kind = dict(zip(kinds, made, strict=True))
    components["Problem"]["properties"]["code"]["examples"] = codes()
    for name, more in schemas.items():
        components[name] |= more
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Fairway",
            "version": version("fairway"),
            "description": description,
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
        schema = by_kind[route.reply]
        responses["200"]["content"] = {"application/json": {"schema": schema}}
    elif route.stream:
        responses["200"]["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
    for status, meaning in route.statuses.items():
        content = error if status >= 400 else responses["200"].get("content", error)
        if status in route.replies:
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
                {
                    "name": name,
                    "in": "path",
                    "required": True,
                    "schema": route.arguments.get(name, NAME),
                }
                for name in _arguments(route.template)
            ),
            *(
                {
                    "name": one.name,
                    "in": "query",
                    "schema": _query(one),
                    "description": one.meaning,
                }
                for one in route.query
            ),
        ],
    }
    if route.body is not None:
        schema = by_kind[route.body]
        operation["requestBody"] = {
            "required": not route.body_optional,
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
    500: "the server failed; `code` says whether data is damaged, and its log the rest",
    503: "not ready, or shutting down",
}


def _query(one: QueryParameter) -> dict[str, Any]:
    if one.kind == "boolean":
        return {"anyOf": [{"type": "boolean"}, {"type": "string", "enum": [*TRUE, *FALSE]}]}
    bounds = {"minimum": 0, "maximum": INT_MAX} if one.kind == "integer" else {}
    return {"type": one.kind, **bounds, **one.schema}


def _arguments(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]
