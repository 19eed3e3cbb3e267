"""Positions: spelled so that they sort, and of one stream only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.errors import InvalidRequest
from fairway.streams.offset import Offset, StreamPlace, offset_of, place_of
from fairway.streams.stored import Segment
from fairway.testing import run
from tests.support.streams import HOUR_NS, streams_on


@given(st.lists(st.tuples(st.integers(0, 10**15), st.integers(0, 10**15)), min_size=2))
def test_offsets_sort_as_text_like_positions(pairs: list[tuple[int, int]]) -> None:
    offsets = [Offset(*pair) for pair in pairs]
    assert sorted(offsets) == sorted(offsets, key=str)
    assert [Offset.parse(str(offset)) for offset in offsets] == offsets


def test_an_offset_of_a_former_stream_is_gone() -> None:
    end = Offset(5, 3)
    assert place_of(Offset(5, 3), (), end) == (0, 3)
    with pytest.raises(InvalidRequest) as gone:
        place_of(Offset(4, 1), (), end)
    assert gone.value.code == "gone"
    for wrong in (Offset(5, 4), Offset(6, 0)):
        with pytest.raises(InvalidRequest) as refused:
            place_of(wrong, (), end)
        assert refused.value.code == "invalid_request"


def test_an_offset_from_before_a_delete_is_gone() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            offset = (await client.put("a", "old")).offset
            assert (await client("DELETE", "a")).status == 204
            assert (await client.get("a")).status == 404
            await client.put("a", "new")
            assert (await client.get(f"a?offset={offset}")).status == 410
            assert await client.read_all("a") == b"new"

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_offsets_of_a_fork_rise_and_the_shared_ones_are_its_sources() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            first = (await client.put("a", "1")).offset
            second = (await client.post("a", "2")).offset
            fork = await client(
                "PUT", "f", stream_forked_from="/v1/stream/a", stream_fork_offset=first
            )
            assert fork.offset == first
            own = (await client.post("f", "x")).offset
            assert first < own
            assert await client.read_all("f", first) == b"x"
            assert (await client.get(f"f?offset={second}")).status == 400
            assert (await client.get(f"f?offset={own}")).body == b""

    run(scenario, limit_ns=HOUR_NS, quiet=True)


@given(st.lists(st.integers(1, 5), max_size=4), st.integers(0, 6), st.data())
def test_a_position_is_found_where_it_was_told(
    lengths: list[int], head: int, data: st.DataObject
) -> None:
    segments = tuple(Segment(f"t{n}", 10 + n, upto, 1) for n, upto in enumerate(lengths))
    end = Offset(99, head)
    number = data.draw(st.integers(0, len(segments)))
    last = segments[number].upto if number < len(segments) else head
    place = StreamPlace(number, data.draw(st.integers(0, last)))
    offset = offset_of(place, segments, end.epoch)
    found = place_of(offset, segments, end)
    # The end of a segment is the start of the next.
    at_end = number < len(segments) and place.seq == last
    assert found == ((number + 1, 0) if at_end else place)
