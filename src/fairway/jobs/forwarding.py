"""From topics to jobs: each record becomes a job, exactly once.

The jobs of a batch and how far the reader has come are one commit. Whatever breaks between, the
next try begins where that says, so nothing is enqueued twice and nothing is left out.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from fairway.errors import FairwayError, InvalidRequest
from fairway.jobs.job import NewJob
from fairway.jobs.store import TopicCursor
from fairway.runtime.clock import sleep_ns
from fairway.runtime.usercode import reraise_interrupt, without_task
from fairway.runtime.words import named

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from fairway.jobs.engine import Jobs
    from fairway.jobs.kinds import Kind

logger = logging.getLogger("fairway.jobs")

RETRY_NS = 1_000_000_000


class Arrived(NamedTuple):
    """Records of one incarnation of a topic, in order."""

    epoch: int
    records: Sequence[tuple[int, bytes]]
    """Seq and data."""


class RecordSource(Protocol):
    """A topic to read: the port that an app fills."""

    def read(self, cursor: TopicCursor | None) -> AsyncIterator[Arrived]:
        """What comes after the cursor, as it comes. Ends if the topic is gone; ask again then."""
        ...


class Forwarder:
    """A service that turns the records of a topic into jobs of one kind until it is cancelled."""

    def __init__(
        self,
        name: str,
        source: RecordSource,
        jobs: Callable[[], Jobs],
        kind: Kind,
        arguments: Callable[[object], dict[str, object]] | None = None,
    ) -> None:
        self.name = f"forward-{name}"
        self._cursor_name = name
        self._source = source
        self._jobs = jobs
        self._kind = kind
        self._arguments = arguments

    async def run(self) -> None:
        """Forward until cancelled; what fails is tried again from where it stood."""
        while True:
            try:
                jobs = self._jobs()
                cursor = await jobs.store.cursor(self._cursor_name)
                async for arrived in self._source.read(cursor):
                    first, last = arrived.records[0][0], arrived.records[-1][0]
                    added = await jobs.enqueue(
                        [self._job(data) for _, data in arrived.records],
                        cursor=TopicCursor(self._cursor_name, arrived.epoch, last, first),
                    )
                    if not added:  # somebody else was here: see how far that one is
                        break
            except FairwayError as error:
                logger.warning("%s stopped and begins again: %s", self.name, error)
            await sleep_ns(RETRY_NS)

    def _job(self, data: bytes) -> NewJob:
        """The job of a record. One that does not fit becomes a job that says so when it fails."""
        try:
            value = msgspec.json.decode(data)
            values = value
            if self._arguments is not None:
                values = without_task(self._arguments, value)
            if not isinstance(values, dict):
                raise InvalidRequest("the record is no object with the job's arguments")
            return self._kind.job(values)
        except BaseException as error:  # whatever the function raised
            reraise_interrupt(error)
            logger.warning("%s: a record does not fit: %s", self.name, named(error))
            return NewJob(
                kind=self._kind.name,
                version=self._kind.version,
                state=data,
                step=self._kind.initial,
                queue=self._kind.options.queue,
                max_attempts=1,
            )
