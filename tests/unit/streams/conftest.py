"""What tests of streams share."""

from __future__ import annotations

import pytest

from tests.support.streams import Ill


@pytest.fixture
def ill() -> Ill:
    return Ill()
