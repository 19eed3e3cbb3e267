"""Every destination of effects says `Invalid` to what it cannot take, before it is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from fairway import Fairway
from fairway.errors import Invalid
from fairway.jobs.effects import JobDestination
from fairway.topics.effects import TopicDestination
from tests.support.toy import ToyDestination

if TYPE_CHECKING:
    from fairway.kernel.effects import Destination

NOTHING = cast("Any", None)
"""They look at what was asked for, and at nothing else."""
DESTINATIONS: dict[str, Destination] = {
    "topic": TopicDestination(NOTHING, NOTHING),
    "job": JobDestination(NOTHING),
    "toy": ToyDestination(NOTHING),
}
APP = Fairway()
LOG = APP.topic("log", str)


@APP.job
def send(to: str) -> None: ...


def test_what_can_go_out_is_encoded() -> None:
    topic, job, toy = DESTINATIONS.values()
    assert topic.encode((LOG, {"a": 1}, "eu")) == ("log", b'{"data":{"a":1},"tag":"eu"}')
    assert topic.encode(("log", 1, None)) == ("log", b'{"data":1}')
    assert job.encode((send.order(to="a"),))[0] == ""
    assert toy.encode(("box", "ball", [1])) == ("box", b'["ball",[1]]')


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        *((kind, asked) for kind in DESTINATIONS for asked in ((), (1,), (None,) * 4)),
        ("topic", ("log",)),
        ("topic", ("log", 1)),
        ("topic", (7, 1, None)),
        ("topic", ("a name", 1, None)),
        ("topic", ("log", object(), None)),
        ("topic", ("log", 1, 7)),
        ("topic", ("log", 1, "\ud800")),
        ("job", (send,)),
        ("job", (send.order(to="a"), send.order(to="b"))),
        ("toy", ("box", 7, 1)),
        ("toy", ("box", "ball", object())),
        ("toy", ("box", "ball", float("nan"))),
        ("toy", ("a/b", "ball", 1)),
    ],
)
def test_what_can_go_nowhere_is_invalid(kind: str, asked: Any) -> None:
    with pytest.raises(Invalid):
        DESTINATIONS[kind].encode(asked)
