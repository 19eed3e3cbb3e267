"""Who steered what, and what came of it: a line in the log for each command, and the last of them.

Commands change how something runs; data that is pushed and looks that are taken are not commands,
but a refusal for want of a scope is noted whatever was tried.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fairway.errors import FairwayError
from fairway.server.http.problems import status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairway.server.access.auth import Identity

logger = logging.getLogger("fairway.audit")

ENTRIES_MAX: Final = 200
TEXT_MAX: Final = 200
DONE: Final = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenCommand:
    """A command that was given, and what came of it."""

    at_ms: int
    who: str
    command: str
    tenant: str
    target: str
    """The name of what was steered."""
    outcome: str
    """`done`, or the code of the error."""
    detail: str


class Note:
    """What is written of a command, filled in while it is carried out."""

    def __init__(self, tenant: str, target: str) -> None:
        self.tenant = tenant
        self.target = target
        self.detail = ""


class Audit:
    """The commands of one server to things of one kind."""

    def __init__(self, kind: str, now_ms: Callable[[], int]) -> None:
        """`kind` is what the log calls what is steered, such as `graph`."""
        self._kind = kind
        self._now_ms = now_ms
        self._given: deque[GivenCommand] = deque(maxlen=ENTRIES_MAX)

    @contextmanager
    def command(
        self, who: Identity, command: str, target: str, tenant: str | None, *, kept: bool = True
    ) -> Iterator[Note]:
        """Around a command: it is noted when it is over, however it ended.

        What is not `kept` is only logged: looks, of which there may be many.
        """
        note = Note(tenant or "", target)
        try:
            yield note
        except FairwayError as error:
            self._add(who, command, note, status_of(error)[1], str(error), kept=True)
            raise
        except BaseException as error:
            self._add(who, command, note, "cut_off", type(error).__name__, kept=True)
            raise
        self._add(who, command, note, DONE, note.detail, kept=kept)

    def of(self, target: str) -> list[GivenCommand]:
        """The last commands to what bears this name, newest first."""
        return [each for each in reversed(self._given) if each.target == target]

    def _add(
        self, who: Identity, command: str, note: Note, outcome: str, detail: str, *, kept: bool
    ) -> None:
        given = GivenCommand(
            at_ms=self._now_ms(),
            who=who.name,
            command=command,
            tenant=note.tenant[:255],
            target=note.target[:255],
            outcome=outcome,
            detail=" ".join(detail.split())[:TEXT_MAX],
        )
        if kept:
            self._given.append(given)
        # Names are shown as Python does: they may be anything that an URL can hold.
        logger.info(
            "%s: %s %s %r of tenant %r: %s%s",
            given.who,
            command,
            self._kind,
            given.target,
            given.tenant,
            outcome,
            f" ({given.detail})" if given.detail else "",
        )
