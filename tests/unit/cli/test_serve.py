"""What `fairway serve` and `fairway worker` say in a line: of outages, and of wrong targets."""

from __future__ import annotations

import logging
import sys

import pytest
from click.testing import CliRunner

from fairway.cli.main import main
from fairway.cli.serve import log_to_stderr
from fairway.masking import MaskedFormatter


def test_an_outage_that_the_driver_tells_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    driver = logging.getLogger("asyncpg.pool")
    before = driver.filters[:]
    try:
        log_to_stderr()
        log_to_stderr()  # an app may be served twice in one process
        try:
            raise ConnectionRefusedError(111, "Connect call failed")
        except ConnectionRefusedError:
            driver.warning("Failed to restore the pool; retrying", exc_info=True)
        driver.warning("something %s", "else")
    finally:
        driver.filters[:] = before
    lines = [MaskedFormatter("%(message)s").format(record) for record in caplog.records]
    assert lines == [
        "Failed to restore the pool; retrying:"
        " ConnectionRefusedError [Errno 111] Connect call failed",
        "something else",
    ]


@pytest.mark.parametrize("command", ["serve", "worker"])
@pytest.mark.parametrize(
    "target", ["../t/shop:app", ".shop:app", ".:app", "..:app", "no/such:app", "no:", ":app", "no"]
)
def test_a_target_that_cannot_be_imported_is_told_in_a_line(
    command: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    done = CliRunner().invoke(main, [command, target])
    assert (done.exit_code, done.stdout) == (1, "")
    assert isinstance(done.exception, SystemExit)
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [
        ["--lease-ttl", "99999999d"],
        ["--drain-timeout", "99999999d"],
        ["--poll-interval", "99999999d", "--max-poll-interval", "99999999d"],
        ["--concurrency", str(2**70)],
        ["--queue", f"mail={2**70}"],
        ["--threads", "0"],
    ],
)
def test_amounts_that_no_worker_has_are_told_in_a_line(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("fairway.cli.worker.run", lambda *what: None)  # or it would work for ever
    done = CliRunner().invoke(main, ["worker", "tests.support.isolated_app:app", *options])
    assert (done.exit_code, done.stdout) == (1, "")
    assert isinstance(done.exception, SystemExit)
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
