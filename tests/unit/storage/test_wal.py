"""The rules of an operation, its size, and the checksum of an entry."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.errors import InvalidOperation
from fairway.storage.wal import DELETE, INT_MAX, Entry, HardState, Operation, Tail, checksum

START = Tail(10, 4, 3)  # keys 3..10 may be present, the last one of term 4


def append(*keys: int, term: int = 5) -> Operation:
    return Operation([Entry(key, b"", term) for key in keys])


# --- where an operation leaves the partition


def _named(value: object) -> str:
    """The same in every process that collects these tests: without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (Operation(), START),
        (append(11), Tail(11, 5, 3)),
        (append(11, 12, 20), Tail(20, 5, 3)),
        (append(INT_MAX), Tail(INT_MAX, 5, 3)),
        (append(11, term=0), Tail(11, 0, 3)),
        (append(11, term=INT_MAX), Tail(11, INT_MAX, 3)),
        (Operation(meta={"name": b"", "gone": None}), START),
        (Operation(hard_state=HardState(9, "node")), START),
        (Operation(truncate_after=10), START),
        (Operation(truncate_after=INT_MAX), START),
        (Operation(compact_before=3), START),
        (Operation(compact_before=1), START),
        (Operation(compact_before=10), Tail(10, 4, 10)),
        (Operation(compact_before=11), Tail(10, 0, 11)),
        (Operation(remove=[(1, 10), (4, 4)]), START),
        (DELETE, Tail()),
    ],
)
def test_where_an_operation_leaves_the_partition(operation: Operation, expected: Tail) -> None:
    assert operation.after(START) == expected


@pytest.mark.parametrize(
    ("operation", "last_key", "floor"),
    [
        (Operation(truncate_after=7), 7, 3),
        (Operation(truncate_after=2), 2, 3),  # nothing is left, and 3 comes next
        (Operation([Entry(8, b"")], truncate_after=7), 8, 3),
        (Operation([Entry(9, b"")], truncate_after=4, compact_before=9), 9, 9),
        (Operation([Entry(9, b"")], truncate_after=4, compact_before=10), 9, 10),
    ],
)
def test_truncation_comes_first_and_compaction_after_the_entries(
    operation: Operation, last_key: int, floor: int
) -> None:
    after = operation.after(START)
    assert (after.last_key, after.floor) == (last_key, floor)


@pytest.mark.parametrize(
    ("operation", "complaint"),
    [
        (append(10), "10 does not follow 10"),
        (append(1), "1 does not follow 10"),
        (append(11, 11), "11 does not follow 11"),
        (append(12, 11), "11 does not follow 12"),
        (append(INT_MAX + 1), "does not follow 10"),
        (append(11, term=-1), "term -1"),
        (append(11, term=INT_MAX + 1), "term"),
        (Operation(truncate_after=1), "compacted up to 2"),
        (Operation(truncate_after=INT_MAX + 1), "cannot truncate"),
        (Operation([Entry(9, b"")], truncate_after=9), "9 does not follow 9"),
        (Operation(compact_before=12), "the last key is 10"),
        (Operation(compact_before=0), "cannot compact"),
        (Operation([Entry(20, b"")], compact_before=22), "the last key is 20"),
        (Operation(truncate_after=5, compact_before=7), "the last key is 5"),
        (Operation(remove=[(1, 2), (5, 11)]), "cannot remove 5 to 11: the last key is 10"),
        (Operation(remove=[(0, 2)]), "cannot remove"),
        (Operation(remove=[(5, 4)]), "cannot remove"),
        (DELETE._replace(remove=[(1, 2)]), "stands alone"),
        (DELETE._replace(meta={"name": b""}), "stands alone"),
        (DELETE._replace(entries=[Entry(11, b"")]), "stands alone"),
        (DELETE._replace(hard_state=HardState(1)), "stands alone"),
        (DELETE._replace(truncate_after=5), "stands alone"),
        (Operation(meta={"": b""}), "cannot name"),
        (Operation(meta={"\ud800": b""}), "cannot name"),
        (Operation(hard_state=HardState(-1)), "out of range"),
        (Operation(hard_state=HardState(INT_MAX + 1)), "out of range"),
        (Operation(hard_state=HardState(1, "\udfff")), "out of range"),
    ],
)
def test_what_breaks_a_rule_is_refused(operation: Operation, complaint: str) -> None:
    with pytest.raises(InvalidOperation, match=complaint):
        operation.after(START)


WRONG: list[Any] = ["text", 1.5, None, object(), bytearray(b"x"), memoryview(b"x")]


@pytest.mark.parametrize("value", WRONG, ids=_named)
def test_a_payload_is_bytes(value: Any) -> None:
    with pytest.raises(InvalidOperation, match="payload is bytes"):
        Operation([Entry(11, value)]).after(START)


@pytest.mark.parametrize("value", [one for one in WRONG if one is not None], ids=_named)
def test_metadata_is_bytes(value: Any) -> None:
    with pytest.raises(InvalidOperation, match="not bytes"):
        Operation(meta={"name": value}).after(START)


@pytest.mark.parametrize(
    "operation",
    [
        Operation([Entry(11.5, b"")]),  # type: ignore[arg-type]
        Operation([Entry("11", b"")]),  # type: ignore[arg-type]
        Operation([Entry(11, b"", 0.5)]),  # type: ignore[arg-type]
        Operation([Entry(11, b"", None)]),  # type: ignore[arg-type]
        Operation(truncate_after=7.5),  # type: ignore[arg-type]
        Operation(compact_before=7.5),  # type: ignore[arg-type]
        Operation(meta={7: b""}),  # type: ignore[dict-item]
        Operation(meta={b"name": b""}),  # type: ignore[dict-item]
        Operation(hard_state=HardState(0.5)),  # type: ignore[arg-type]
        Operation(hard_state=HardState(1, 7)),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_a_value_of_the_wrong_kind_is_refused_and_not_stored_as_something_else(
    operation: Operation,
) -> None:
    with pytest.raises(InvalidOperation):
        operation.after(START)


@given(st.lists(st.integers(1, 40), max_size=6), st.integers(0, 40), st.integers(1, 40))
def test_the_end_is_what_the_rules_say(keys: list[int], last_key: int, floor: int) -> None:
    """Whatever is asked: accepted means that the keys rise from the end, else it is refused."""
    tail = Tail(last_key, 1, min(floor, last_key + 1))
    rising = all(first < second for first, second in zip([last_key, *keys], keys, strict=False))
    if rising:
        after = append(*keys).after(tail)
        assert after == Tail(max([last_key, *keys]), 5 if keys else 1, tail.floor)
    else:
        with pytest.raises(InvalidOperation):
            append(*keys).after(tail)


def test_appending_is_the_same_operation_by_a_shorter_way() -> None:
    short = Operation.appending(7, b"x", 3)
    assert short == Operation((Entry(7, b"x", 3),))
    assert type(short) is Operation
    assert type(short.entries[0]) is Entry


# --- size


def test_size_counts_payloads_names_values_and_what_holding_them_costs() -> None:
    empty = Operation().size
    assert empty > 0
    one = Operation([Entry(1, b"")]).size
    assert Operation([Entry(1, bytes(100))]).size == one + 100
    assert Operation([Entry(1, b""), Entry(2, b"")]).size - one == one - empty > 0
    named = Operation(meta={"name": b"value"}).size
    assert named >= empty + len("name") + len("value")
    assert Operation(meta={"name": None}).size == named - len("value")


@given(st.lists(st.binary(max_size=100), max_size=20))
def test_size_is_never_less_than_what_is_carried(payloads: list[bytes]) -> None:
    entries = [Entry(key, payload) for key, payload in enumerate(payloads, 1)]
    assert Operation(entries).size >= sum(map(len, payloads))


def test_a_name_counts_its_bytes_and_not_its_letters() -> None:
    assert Operation(meta={"中" * 100: b""}).size >= Operation(meta={"x" * 100: b""}).size + 100


# --- checksum


def test_a_checksum_fits_its_column() -> None:
    for partition, key, term in ((0, 1, 0), (INT_MAX, INT_MAX, INT_MAX), (7, 8, 9)):
        assert 0 <= checksum(partition, key, term, b"payload") < 2**32


@given(st.binary(min_size=1, max_size=200), st.data())
def test_one_flipped_bit_changes_the_checksum(payload: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, len(payload) * 8 - 1))
    flipped = bytearray(payload)
    flipped[bit // 8] ^= 1 << bit % 8
    assert checksum(1, 2, 3, payload) != checksum(1, 2, 3, bytes(flipped))


@given(
    st.tuples(*[st.integers(0, 10_000)] * 3),
    st.tuples(*[st.integers(0, 10_000)] * 3),
    st.binary(max_size=20),
)
def test_an_entry_in_the_wrong_place_has_another_checksum(
    here: tuple[int, int, int], there: tuple[int, int, int], payload: bytes
) -> None:
    """Neighbours at least: in all of 2^64 places two of them must share one."""
    near = sum(a != b for a, b in zip(here, there, strict=True)) == 1
    if near:
        assert checksum(*here, payload) != checksum(*there, payload)
