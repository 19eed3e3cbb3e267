"""How an event stream is spelled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairway.server.fronts.streams import events


@given(st.text())
def test_no_payload_leaves_its_event(payload: str) -> None:
    spelled = events.event("data", payload).decode()
    head, _, rest = spelled.partition("\n")
    lines = rest.removesuffix("\n\n").split("\n")
    assert head == "event: data"
    assert spelled.endswith("\n\n")
    assert all(line.startswith("data:") for line in lines)
    assert "\r" not in spelled
    joined_lines = "\n".join(line.removeprefix("data:") for line in lines)
    assert joined_lines == payload.replace("\r\n", "\n").replace("\r", "\n")


@given(st.text(min_size=1), st.data())
def test_pieces_are_cut_only_between_characters(text: str, data: st.DataObject) -> None:
    body = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(body)), max_size=6)) | {len(body)})
    pieces = [body[a:b] for a, b in zip([0, *cuts], cuts, strict=False) if b > a]
    assert events.whole_characters(pieces) == len(pieces)
    for upto in range(1, len(pieces)):
        whole = events.whole_characters(pieces[:upto])
        b"".join(pieces[:whole]).decode()


def test_what_is_not_utf8_is_not_waited_for_for_ever() -> None:
    assert events.whole_characters([b"caf\xe9"]) == 0
    assert events.whole_characters([b"\xe9", b"\xe9"]) == 2
