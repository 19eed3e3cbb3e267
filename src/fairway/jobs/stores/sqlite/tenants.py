"""Whose jobs a command is about: found out before it waits, so that it waits in the right lane.

Who signals or cancels names jobs, and fairness goes by tenants. Those that come together are looked
up together, by a thread and a connection of their own: neither a commit nor somebody who browses is
in their way. Nothing depends on the answer but whom a command waits behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import json

from fairway.jobs.job import NO_TENANT
from fairway.jobs.stores.sqlite.connections import answering, connect
from fairway.jobs.stores.sqlite.schema import TENANT_OF_LINE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

JobRef: TypeAlias = "int | str"
"""A job by its id or by its unique key."""

# One value for all of them: each row by itself would cost the interpreter's lock twice. Whether a
# key still stands for its job is looked at by the call itself.
TENANTS: Final = f"""
SELECT json_group_array((
    SELECT name FROM job JOIN tenant ON tenant.id = {TENANT_OF_LINE} WHERE job.id = iif(
        one.type = 'text', (SELECT job FROM unique_key WHERE key = one.value), one.value
    )
)) FROM json_each(?) AS one
"""


class TenantReader:
    """The connection that looks, for one thread. It is made when somebody asks."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._connection: apsw.Connection | None = None

    def tenants(self, targets: Sequence[JobRef]) -> list[str]:
        """The tenant of each of these jobs; `NO_TENANT` for those that are not there."""
        with answering(self._place):
            if self._connection is None:
                self._connection = connect(self._place)
                self._connection.pragma("query_only", True)
            found = self._connection.execute(TENANTS, (json.encode(targets).decode(),)).get
        names = json.decode(found, type=list[str | None])
        return [NO_TENANT if name is None else name for name in names]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close(force=True)
            self._connection = None
