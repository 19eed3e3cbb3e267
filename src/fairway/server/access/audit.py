"""Who steered what, and what came of it: a line in the log for each command, and the last of them.

Commands change how something runs; data that is pushed and looks that are taken are not commands,
but a refusal for want of a scope is noted whatever was tried.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from fairway.errors import FairwayError
from fairway.server.http.problems import status_of
from fairway.wire.graphs import AuditEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairway.server.access.auth import Identity

logger = logging.getLogger("fairway.audit")

ENTRIES_MAX: Final = 200
TEXT_MAX: Final = 200
DONE: Final = "done"


class Note:
    """What is written of a command, filled in while it is carried out."""

    def __init__(self, tenant: str, graph: str) -> None:
        self.tenant = tenant
        self.graph = graph
        self.detail = ""


class Audit:
    """The commands of one server."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._entries: deque[AuditEntry] = deque(maxlen=ENTRIES_MAX)

    @contextmanager
    def command(
        self, who: Identity, command: str, graph: str, tenant: str | None, *, kept: bool = True
    ) -> Iterator[Note]:
        """Around a command: it is noted when it is over, however it ended.

        What is not `kept` is only logged: looks, of which there may be many.
        """
        note = Note(tenant or "", graph)
        try:
            yield note
        except FairwayError as error:
            self._add(who, command, note, status_of(error)[1], str(error), kept=True)
            raise
        except BaseException as error:
            self._add(who, command, note, "cut_off", type(error).__name__, kept=True)
            raise
        self._add(who, command, note, DONE, note.detail, kept=kept)

    def of(self, graph: str, may_see: Callable[[AuditEntry], bool]) -> list[AuditEntry]:
        """The last commands to a graph, newest first."""
        return [each for each in reversed(self._entries) if each.graph == graph and may_see(each)]

    def _add(
        self, who: Identity, command: str, note: Note, outcome: str, detail: str, *, kept: bool
    ) -> None:
        entry = AuditEntry(
            at=self._now_ms(),
            who=who.name,
            command=command,
            tenant=note.tenant[:255],
            graph=note.graph[:255],
            outcome=outcome,
            detail=" ".join(detail.split())[:TEXT_MAX],
        )
        if kept:
            self._entries.append(entry)
        # Names are shown as Python does: they may be anything that an URL can hold.
        logger.info(
            "%s: %s graph %r of tenant %r: %s%s",
            entry.who,
            command,
            entry.graph,
            entry.tenant,
            outcome,
            f" ({entry.detail})" if entry.detail else "",
        )
