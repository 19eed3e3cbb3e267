"""The topic of each path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.streams.paths import topic_name


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("chat", "ds:chat"),
        ("chat/room-1", "ds:chat:room-1"),
        ("a//b", "ds:a::b"),
        ("v1.2_x", "ds:v1.2_x"),
    ],
)
def test_readable_paths_are_topic_names(path: str, name: str) -> None:
    assert topic_name(path) == name


@given(st.sets(st.text(min_size=1), min_size=2, max_size=8))
def test_no_two_paths_share_a_topic(paths: set[str]) -> None:
    paths = {path for path in paths if path.isprintable()}
    assert len({topic_name(path) for path in paths}) == len(paths)
