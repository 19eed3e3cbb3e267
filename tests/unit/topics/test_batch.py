"""Records on their way in and out: what is refused, what is kept, byte for byte."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.errors import Corrupt, InvalidRequest, UnknownFormat
from fairway.topics.batch import (
    VERSION,
    Projection,
    RawRecord,
    RecordBatch,
    decode_batch,
    encode_batch,
    encode_new,
    encode_record,
    size_of,
)
from fairway.wire.records import (
    META_BYTES_MAX,
    META_KEYS_MAX,
    NODE_BYTES_MAX,
    RECORD_BYTES_MAX,
    RECORDS_MAX,
    TAG_BYTES_MAX,
    Records,
    decode_records,
    parse_records,
)
from fairway.wire.topics import check_name


def refused(raw: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as error:
        parse_records(raw)
    return error.value


GOOD = [
    b'[{"data":1}]',
    b'[{"data":null}]',
    b'[{"data":{"a":[1,2,{"b":"\\u00e9\\n"}]}}]',
    '[{"data":"é\u2028 🦊","tag":"é"}]'.encode(),
    b'[{"data":1,"tag":null,"node":null,"meta":null}]',
    b'[{"data":"","tag":"","node":"","meta":{}}]',
    b'[{"data":1,"meta":{"k":{"deep":[1]}}},{"data":2}]',
    b'[{"data":1,"data":2}]',
    b'[{"data":{"k":1,"k":2}}]',
    b'[{"data":1e999},{"data":-0.0},{"data":123456789012345678901234567890}]',
    b'[{"data":' + b"[" * 500 + b"]" * 500 + b"}]",
]


@pytest.mark.parametrize("raw", GOOD)
def test_records_stay_as_they_were_spelled(raw: bytes) -> None:
    kept = parse_records(raw).raw
    assert kept == raw
    records = decode_records(kept)
    assert json.loads(kept)
    for record, wanted in zip(records, json.loads(raw), strict=True):
        assert json.loads(bytes(record.data)) == wanted["data"]


BAD = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b"[1]",
    b"[null]",
    b"[{}]",
    b'[{"tag":"a"}]',
    b'[{"data":1,"unknown":2}]',
    b'[{"data":1}',
    b'[{"data":1}] tail',
    b'[{"data":1},]',
    b'[{"data":01}]',
    b'[{"data":NaN}]',
    b'[{"data":Infinity}]',
    b'[{"data":tru}]',
    b'[{"data":"\\q"}]',
    b'[{"data":"\\u12"}]',
    b'[{"data":"a\x01b"}]',
    b'[{"data":"a\tb"}]',
    b'[{"data":"a\x00b"}]',
    b'[{"data":"a\nb"}]',
    b'[{"data":"a\rb"}]',
    b'[{"data":"\xff"}]',
    b'[{"data":"\xc3"}]',
    b'[{"data":"\xed\xa0\x80"}]',  # a surrogate, encoded
    b'\xef\xbb\xbf[{"data":1}]',  # a byte order mark
    b"[{'data':1}]",
    b'[{"data":1,"tag":5}]',
    b'[{"data":1,"node":["x"]}]',
    b'[{"data":1,"meta":[1]}]',
    b'[{"data":1,"meta":"x"}]',
    b'[{"data":1,"meta":3}]',
    b'[{"data":1,"meta":{"a":"\x02"}}]',
    b'[{"data":1,"tag":"\\ud800"}]',
    b'[{"data":' + b"[" * 1_500 + b"]" * 1_500 + b"}]",
    b'[{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}]",
    b'[{"data":1,"meta":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}]",
]


@pytest.mark.parametrize("raw", BAD, ids=lambda raw: repr(raw[:40]))
def test_what_is_not_a_list_of_records_is_refused(raw: bytes) -> None:
    assert refused(raw).code in ("invalid_request", "record_too_large")


@pytest.mark.parametrize(
    ("meta", "field"),
    [
        (b'{"k":1e999}', "k"),
        (b'{"a":1,"k":-1e999}', "k"),
        (b'{"a":[1e999],"k":{"deep":[0,{"er":1e400}]}}', "a"),
        (b'{"k":' + b"1" * 5_000 + b"}", "k"),
        (b'{"k":[{"n":-1' + b"0" * 309 + b"}]}", "k"),
        (b'{"k":1' + b"0" * 400 + b".5}", "k"),
        (b'{"k":' + b"[" * 500 + b"1" + b"0" * 309 + b"]" * 500 + b"}", "k"),
        (b'{"k":1e999,"k":1}', ""),
    ],
    ids=[
        *("huge", "hugely negative", "nested", "5,000 digits", "310 digits", "with a fraction"),
        *("deep down", "before another"),
    ],
)
def test_a_number_in_meta_that_no_reader_could_read_is_refused(meta: bytes, field: str) -> None:
    error = refused(b'[{"data":0,"meta":{}},{"data":1,"meta":' + meta + b"}]")
    assert error.code == "invalid_request"
    assert f"records[1].meta.{field}".rstrip(".") in str(error)


@pytest.mark.parametrize(
    "value",
    [
        b"1.7976931348623157e308",
        b"-18446744073709551615",
        b"18446744073709551616",
        b"1" + b"0" * 308,
        b"0." + b"1" * 5_000,
        b'"' + b"1" * 5_000 + b'"',
        b"1e-999",
        b"null",
    ],
    ids=lambda value: repr(value[:24]),
)
def test_what_fits_a_double_or_is_text_may_be_in_meta(value: bytes) -> None:
    raw = b'[{"data":1,"meta":{"k":[' + value + b"]}}]"
    assert parse_records(raw).raw == raw
    assert json.loads(bytes(decode_records(raw)[0].meta))


def test_line_breaks_between_tokens_are_taken_out() -> None:
    """A record goes out in one line of an event stream."""
    kept = parse_records(b'[\r\n {"data":\n {"a": [1,\n 2]}, "tag": "t"}\n]').raw
    records = decode_records(kept)
    assert b"\n" not in kept
    assert b"\r" not in kept
    assert bytes(records[0].data) == b'{"a":[1,2]}'
    assert records[0].tag == "t"


def limit_of(field: str, size: int) -> bytes:
    return json.dumps([{"data": 1, field: "x" * size}]).encode()


@pytest.mark.parametrize(
    ("good", "bad", "code"),
    [
        (b'[{"data":1}' + b',{"data":1}' * (RECORDS_MAX - 1) + b"]", None, ""),
        (None, b'[{"data":1}' + b',{"data":1}' * RECORDS_MAX + b"]", "batch_too_large"),
        (
            b'[{"data":"' + b"x" * (RECORD_BYTES_MAX - 2) + b'"}]',
            b'[{"data":"' + b"x" * (RECORD_BYTES_MAX - 1) + b'"}]',
            "record_too_large",
        ),
        (limit_of("tag", TAG_BYTES_MAX), limit_of("tag", TAG_BYTES_MAX + 1), "record_too_large"),
        (
            limit_of("node", NODE_BYTES_MAX),
            limit_of("node", NODE_BYTES_MAX + 1),
            "record_too_large",
        ),
        (
            json.dumps(
                [{"data": 1, "meta": dict.fromkeys(map(str, range(META_KEYS_MAX)))}]
            ).encode(),
            json.dumps(
                [{"data": 1, "meta": dict.fromkeys(map(str, range(META_KEYS_MAX + 1)))}]
            ).encode(),
            "record_too_large",
        ),
        (
            b'[{"data":1,"meta":{"k":"' + b"x" * (META_BYTES_MAX - 8) + b'"}}]',
            b'[{"data":1,"meta":{"k":"' + b"x" * (META_BYTES_MAX - 7) + b'"}}]',
            "record_too_large",
        ),
    ],
    ids=["10,000", "10,001", "data", "tag", "node", "meta keys", "meta bytes"],
)
def test_limits_are_exact(good: bytes | None, bad: bytes | None, code: str) -> None:
    if good is not None:
        parse_records(good)
    if bad is not None:
        assert refused(bad).code == code


def test_bytes_count_not_characters() -> None:
    half = "é" * (TAG_BYTES_MAX // 2)
    parse_records(json.dumps([{"data": 1, "tag": half}], ensure_ascii=False).encode())
    assert refused(json.dumps([{"data": 1, "tag": half + "é"}]).encode()).code == "record_too_large"


@pytest.mark.parametrize("name", ["a", "A.b_c:d-9", "0", "x" * 255])
def test_good_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".a", "-a", "a b", "a/b", "é", "a\n", "x" * 256, "a*", "a\x00"]
)
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_name(name)


# --- batches


def batch_of(raw: bytes, **options: Any) -> RecordBatch:
    records = parse_records(raw)
    size = records.size(options.get("node"))
    return RecordBatch(VERSION, 5, records.count, 99, size, records.raw, **options)


@pytest.mark.parametrize("raw", GOOD)
def test_a_batch_is_read_as_it_was_written(raw: bytes) -> None:
    batch = batch_of(raw, node="n", trace="00-a-b-01", hops=3)
    again = decode_batch(encode_batch(batch), topic="t")
    assert again == batch
    assert again.last_seq == 5 + len(again.parse()) - 1
    assert [bytes(r.data) for r in again.parse()] == [bytes(r.data) for r in batch.parse()]


def test_sizes_add_up() -> None:
    raw = (
        b'[{"data":[1]},{"data":2,"tag":"ab"},{"data":3,"node":"xyz","meta":{"a":1}},'
        b'{"data":3,"meta":null}]'
    )
    records = decode_records(raw)
    assert [size_of(record, None) for record in records] == [27, 27, 24 + 1 + 3 + 7, 24 + 1 + 4]
    assert size_of(records[0], "host") == 31
    assert size_of(records[2], "host") == size_of(records[2], None)


SPELLED = st.sampled_from(
    [
        b'{"data":1}',
        b'{ "data" : [ 1 ] }',
        b'{"data":"\xc3\xa9"}',
        b'{"data":{"a":[%b]}}' % b",".join([b"[]"] * 200),
        b'{"data":%b1%b}' % (b"[" * 100, b"]" * 100),
        b'{"data":2,"tag":"\xc3\xa9"}',
        b'{"data":2,"tag":null}',
        b'{"tag":"","data":2}',
        b'{"data":3,"node":"xyz","meta":{"a":1}}',
        b'{"data":3,"meta":null}',
    ]
)


@given(st.lists(SPELLED, min_size=1, max_size=6), st.sampled_from([None, "host"]))
def test_what_a_batch_counts_for_is_the_sum_of_its_records(
    spelled: list[bytes], node: str | None
) -> None:
    raw = b"[%b]" % b" ,".join(spelled)
    records, each = parse_records(raw), decode_records(raw)
    assert records.raw == raw
    assert records.count == len(each)
    assert records.size(node) == sum(size_of(record, node) for record in each)
    assert records.tagged == any(record.tag is not None for record in each)
    assert records == Records.of(raw, each)


@pytest.mark.parametrize(
    ("before", "middle", "after"),
    [
        (b'{"data":', b"[]", b"}"),
        (b'{"data":', b'{"a":}', b"}"),
        (b'{"data":1,"meta":{"a":', b"[1,]", b"}}"),
    ],
)
def test_what_is_taken_can_be_read_however_deep_it_is_nested(
    before: bytes, middle: bytes, after: bytes
) -> None:
    opens, closes = middle[:-1], middle[-1:]

    def nested(levels: int) -> bytes:
        return b"[%b%b0%b%b]" % (before, opens * levels, closes * levels, after)

    def taken(levels: int) -> bool:
        try:
            parse_records(nested(levels))
        except InvalidRequest:
            return False
        return True

    def read(batch: RecordBatch, frames: int) -> int:
        return read(batch, frames - 1) if frames else len(batch.parse())

    deepest = max(levels for levels in range(0, 2000, 5) if taken(levels))
    assert deepest > 400
    assert read(RecordBatch(VERSION, 1, 1, 0, 0, parse_records(nested(deepest)).raw), 200) == 1


def test_what_is_not_a_batch_is_told() -> None:
    with pytest.raises(Corrupt, match="topic t"):
        decode_batch(b"\x93\x01\x02", topic="t")
    later = encode_batch(msgspec.structs.replace(batch_of(GOOD[0]), version=2))
    with pytest.raises(UnknownFormat):
        decode_batch(later, topic="t")


def test_a_later_field_does_not_confuse() -> None:
    """Batches are extended at the end: what this release does not know is passed over."""
    fields = msgspec.msgpack.decode(encode_batch(batch_of(GOOD[0])))
    longer = msgspec.msgpack.encode([*fields, "new"])
    assert decode_batch(longer, topic="t") == batch_of(GOOD[0])


def test_a_record_on_its_way_out() -> None:
    record = RawRecord(7, 1000, b'{"a":1}', 'quote"', "né", b'{"m":2}', "00-t-01", 2)
    whole = Projection(tags=True)
    assert json.loads(encode_record(record, whole)) == {
        "$seq": 7,
        "$ts": 1000,
        "$node": "né",
        "$tag": 'quote"',
        "data": {"a": 1},
        "meta": {"m": 2},
        "$traceparent": "00-t-01",
    }
    bare = json.loads(encode_record(record, Projection(tags=False, meta=False, data=False)))
    assert bare == {"$seq": 7, "$ts": 1000, "$node": "né"}
    plain = encode_record(RawRecord(1, 2, b"null"), whole)
    assert json.loads(plain) == {"$seq": 1, "$ts": 2, "data": None}
    assert b"\n" not in encode_record(RawRecord(1, 2, b"1", "a\nb"), whole)


@pytest.mark.parametrize("keep", [True, False])
def test_a_copy_is_what_its_writer_would_have_sent(keep: bool) -> None:
    record = RawRecord(7, 1000, b'{"a":1}', 'quote"', "né", b'{"m":2}')
    raw = b"[%b]" % encode_new(record, keep_tag=keep, keep_node=keep)
    (copy,) = decode_records(parse_records(raw).raw)
    assert bytes(copy.data) == record.data
    assert (copy.tag, copy.node) == ((record.tag, record.node) if keep else (None, None))
    assert bytes(copy.meta) == record.meta
