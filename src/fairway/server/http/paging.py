"""Lists that are told a page at a time: where a page begins, and how the document shows it."""

from __future__ import annotations

import base64
from typing import Final

from fairway.errors import InvalidRequest
from fairway.server.http.router import QueryParameter

CURSOR: Final = QueryParameter(
    "cursor",
    "string",
    "`next_cursor` of the page before",
    # A token that the server gives out: any other string of that shape is refused as well.
    {"pattern": "^[A-Za-z0-9_-]*$", "format": "fairway-token"},
)


def page_size(most: int) -> QueryParameter:
    return QueryParameter(
        "page_size", "integer", f"how many; more than {most:,} counts as {most:,}", {"minimum": 1}
    )


def make_cursor(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def read_cursor(text: str | None) -> str:
    if not text:
        return ""
    try:
        return base64.b64decode(
            text + "=" * (-len(text) % 4), altchars=b"-_", validate=True
        ).decode()
    except ValueError:
        raise InvalidRequest("cursor is not one that this server gave out") from None
