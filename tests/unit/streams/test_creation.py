"""A request to make a stream that is there: the one that is asked for, or another one."""

from __future__ import annotations

from typing import Any

import pytest

from fairway.errors import Conflict
from fairway.streams.creation import asks_for, check_same, meta_of
from fairway.streams.lifetime import Lifetime
from fairway.streams.offset import Offset
from fairway.streams.requests import StreamCreate
from fairway.streams.stored import Fork, StreamMeta

PLAIN = StreamCreate("text/plain", Lifetime(), False, None, None, 0)
FORKING = PLAIN._replace(content_type=None, source="a", fork_offset=Offset(5, 2))


@pytest.mark.parametrize(
    "request_",
    [
        PLAIN,
        PLAIN._replace(lifetime=Lifetime(10)),
        PLAIN._replace(lifetime=Lifetime(None, "2030-01-01T00:00:00Z")),
        PLAIN._replace(closed=True),
        PLAIN._replace(content_type=None),
    ],
)
def test_a_stream_is_the_one_that_it_was_made_as(request_: StreamCreate) -> None:
    made = meta_of("s", request_, None, 7)
    assert made.created_ms == 7
    assert asks_for(request_._replace(content_type=made.content_type), made)
    check_same(made, request_._replace(content_type=made.content_type.upper() + "; x=y"))


@pytest.mark.parametrize(
    "changes",
    [
        {"content_type": "text/html"},
        {"content_type": None},
        {"lifetime": Lifetime(10)},
        {"lifetime": Lifetime(None, "2030-01-01T00:00:00Z")},
        {"closed": True},
        {"source": "a"},
        {"sub_offset": 1},
    ],
)
def test_what_differs_is_another_stream(changes: dict[str, Any]) -> None:
    with pytest.raises(Conflict) as refused:
        check_same(meta_of("s", PLAIN, None, 0), PLAIN._replace(**changes))
    assert refused.value.code == "stream_exists"


def test_a_date_is_the_same_however_it_is_spelled() -> None:
    dated = PLAIN._replace(lifetime=Lifetime(None, "2030-01-01T01:00:00+01:00"))
    made = meta_of("s", dated, None, 0)
    assert asks_for(PLAIN._replace(lifetime=Lifetime(None, "2030-01-01T00:00:00Z")), made)


def test_a_fork_need_not_repeat_what_it_inherits() -> None:
    fork = Fork("a", 5, str(Offset(5, 2)), 0, (), inherits_lifetime=True)
    made = StreamMeta(1, "f", "text/plain", 0, 60, None, fork)
    assert asks_for(FORKING, made)
    assert asks_for(FORKING._replace(fork_offset=None), made)
    assert not asks_for(FORKING._replace(lifetime=Lifetime(60)), made)
    assert not asks_for(FORKING._replace(fork_offset=Offset(5, 1)), made)
    assert not asks_for(FORKING._replace(source="b"), made)


def test_a_stream_that_lives_on_for_its_forks_is_nobody_elses() -> None:
    deleted = StreamMeta(1, "s", "text/plain", 0, None, None, deleted=True)
    with pytest.raises(Conflict) as refused:
        check_same(deleted, PLAIN)
    assert refused.value.code == "stream_forked"
