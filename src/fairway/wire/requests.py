"""What the requests and answers of all parts have in common, whatever they are about."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from msgspec import Struct

INT_MAX: Final = 2**63 - 1
TRACE_BYTES_MAX: Final = 256
"""Of a `traceparent`, which is stored with records and jobs."""

RequestId: TypeAlias = str | int
"""What a request on a WebSocket is called by; its answer bears the same."""


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    code: str
    message: str
    detail: dict[str, Any] = {}


class ErrorReply(Struct, frozen=True, kw_only=True):
    """Every error, whatever its status: `{"error": {"code", "message", "detail"}}`."""

    error: Problem
