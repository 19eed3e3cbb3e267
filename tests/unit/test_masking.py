"""What is shown of a text that may hold a secret."""

from __future__ import annotations

import logging

import pytest

from fairway.masking import MaskedFormatter, masked

SECRET = "s3cr3t"
SHOWN = [
    ("postgresql://u:s3cr3t@host/db", "postgresql://u:***@host/db"),
    ("postgres://:s3cr3t@host/db", "postgres://:***@host/db"),
    ("postgresql:/u:s3cr3t@host/db", "postgresql:/u:***@host/db"),
    ("postgresql://u:s3cr3t/x@y z#?@host:5432/db", "postgresql://u:***@host:5432/db"),
    ("POSTGRESQL://u:s3cr3t@host", "POSTGRESQL://u:***@host"),
    ("'postgresql://u:s3cr3t@host/db' names no store", "'postgresql://u:***@host/db' names no"),
    ("at postgresql://u@h/db?password=s3cr3t&connect_timeout=3", "&connect_timeout=3"),
    ("host=h user=u password=s3cr3t dbname=d", "host=h user=u password=*** dbname=d"),
    (r"password='a \' s3cr3t' sslmode=off", "password=*** sslmode=off"),
    ("sslpassword = s3cr3t", "sslpassword = ***"),
    ("PGPASSWORD=s3cr3t fairway serve", "PGPASSWORD=*** fairway serve"),
    ("{'sasl.password': 's3cr3t', 'group.id': 'g'}", "'group.id': 'g'"),
    ('{"secret": "s3cr3t"}', '{"secret": ***}'),
    ("FAIRWAY_API_KEYS=s3cr3t:read,s3cr3t2", "FAIRWAY_API_KEYS=***"),
    ("authorization: Bearer s3cr3t", "authorization: Bearer ***"),
    ("https://u:s3cr3t@host:4000/v0", "https://u:***@host:4000/v0"),
    ("GET /v0/ws?ticket=s3cr3t", "ticket=***"),
]
AS_IT_IS = [
    "fairway-data",
    "/var/lib/fairway",
    "rocksdb:/var/lib/fairway",
    "postgresql://u@host:5432/db",
    "http://127.0.0.1:4000/v0/topics/a@b",
    "a secret is 1 to 1024 visible ASCII characters, without spaces",
    'password authentication failed for user "u"',
    "no token: give a key with --key",
]


@pytest.mark.parametrize(("text", "shown"), SHOWN, ids=range(len(SHOWN)))
def test_secrets_are_masked_in_every_shape(text: str, shown: str) -> None:
    assert SECRET in text
    assert shown in masked(text)
    assert SECRET not in masked(text)


@pytest.mark.parametrize("text", AS_IT_IS)
def test_what_holds_no_secret_stays_as_it_is(text: str) -> None:
    assert masked(text) == text


def test_a_log_line_is_masked_with_its_arguments_and_its_traceback() -> None:
    try:
        raise ValueError("cannot reach postgresql://u:s3cr3t@host/db")
    except ValueError as error:
        trace = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("x", 30, "f", 1, "at %s", ("db://u:s3cr3t@h",), trace)
    line = MaskedFormatter("%(message)s").format(record)
    assert "Traceback" in line
    assert line.count("u:***@") == 3  # the line of code that is shown in it, too
    assert SECRET not in line


@pytest.mark.parametrize("piece", ["x", "x.", "x-", "password", "'x", "secret=", "x "])
def test_a_long_text_is_masked_in_a_time_that_grows_as_it_does(piece: str) -> None:
    """With the square of its length, this would take hours: a long path held up a start."""
    text = piece * (1_000_000 // len(piece))
    assert masked(f"{text} password={SECRET}").endswith("password=***")
