"""Server-sent events: what an event of the server itself says."""

from __future__ import annotations

import msgspec

from fairway.errors import Throttled
from fairway.server.http.sse import problem_event


def test_an_error_event_says_what_an_error_response_says() -> None:
    event = problem_event(Throttled("slow down", retry_after_ns=5_000_000), topic="a").bare
    assert event.startswith(b"event: error\ndata: {")
    assert msgspec.json.decode(event.split(b"data: ")[1]) == {
        "error": {
            "code": "throttled",
            "message": "slow down",
            "detail": {"retry_after_ms": 5, "topic": "a"},
        }
    }
