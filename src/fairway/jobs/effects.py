"""The job store as a destination of effects: an effect is a job. It is one target for all jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairway.errors import Invalid
from fairway.jobs.job import NewJob
from fairway.jobs.kinds import Order
from fairway.jobs.store import TopicCursor
from fairway.runtime.words import brief

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.jobs.engine import Jobs
    from fairway.kernel.effects import EffectPosition

KIND: Final = "job"
STORE: Final = ""
"""The only target: positions are kept for the whole store, so its effects have one order."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(NewJob).decode


class JobDestination:
    """Enqueues what the effects of other parts hold."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def encode(self, asked: Any) -> tuple[str, bytes]:
        """Of `(order,)`: what `job.order(...)` or `flow.order(...)` made."""
        match asked:
            case (Order() as order,):
                return STORE, _pack(order.job)
        raise Invalid(f"{brief(asked)} is not what job.order(...) or flow.order(...) returns")

    async def known(self, target: str, producer: str) -> tuple[int, int] | None:
        cursor = await self._jobs.store.cursor(producer)
        return None if cursor is None else (cursor[1], cursor[2])

    async def send(
        self, target: str, effects: Sequence[bytes], position: EffectPosition | None
    ) -> bool:
        cursor = None if position is None else TopicCursor(*position)
        return bool(await self._jobs.enqueue([_unpack(each) for each in effects], cursor=cursor))
