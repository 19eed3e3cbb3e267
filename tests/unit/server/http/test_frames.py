"""Where WebSocket frames are cut, against frames made by the `websockets` library."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from fairway.server.http.frames import cut

sizes = st.sampled_from([0, 1, 125, 126, 127, 1000, 65_535, 65_536, 70_000])


def frame(size: int, mask: bool) -> bytes:
    return bytes(Frame(Opcode.BINARY, bytes(size)).serialize(mask=mask))


@given(st.lists(st.tuples(sizes, st.booleans()), max_size=6), st.integers(1, 4), st.data())
def test_frames_are_cut_where_they_end_however_they_come(
    made: list[tuple[int, bool]], most: int, data: st.DataObject
) -> None:
    frames = [frame(size, mask) for size, mask in made]
    whole = b"".join(frames)
    ends = [0]
    for one in frames:
        ends.append(ends[-1] + len(one))
    pieces = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    rest, missing, read, begun = b"", 0, 0, 0
    for start, stop in zip([0, *pieces], [*pieces, len(whole)], strict=True):
        rest += whole[start:stop]
        while True:
            end, left = cut(rest, missing, most)
            within = missing > 0
            rest, missing, read = rest[end:], left, read + end
            seen = sum(edge < read for edge in ends[:-1])
            assert seen - begun <= most, "no more begin than was said"
            begun = seen
            if missing:
                assert read + missing in ends, "it knows where the frame ends"
                assert not rest
            else:
                assert read in ends or (within and not end)
            if not end:
                break
    assert read == len(whole)
    assert not missing


def test_a_head_that_is_not_whole_waits() -> None:
    whole = frame(70_000, mask=True)
    assert cut(whole[:1], 0, 8) == (0, 0)
    assert cut(whole[:9], 0, 8) == (0, 0)
    assert cut(whole[:10], 0, 8) == (10, len(whole) - 10)
