"""What `fairway serve` and `fairway worker` log of an outage that a driver tells at length."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fairway.cli.serve import log_plainly
from fairway.masking import MaskedFormatter

if TYPE_CHECKING:
    import pytest


def test_an_outage_that_the_driver_tells_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    driver = logging.getLogger("asyncpg.pool")
    before = driver.filters[:]
    try:
        log_plainly()
        log_plainly()  # an app may be served twice in one process
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
