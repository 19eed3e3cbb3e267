"""What became of an append."""

from __future__ import annotations

import msgspec


class Appended(msgspec.Struct, frozen=True, gc=False):
    """What an append was given. `deduped`: it had been made before, nothing was written."""

    first_seq: int
    last_seq: int
    deduped: bool = False
