"""What a schedule owes after it was not looked at for a while: which times to fire, and the next.

Decides only. Whoever runs it keeps `ScheduleDue.handled_ns` in the same commit as the jobs it
enqueues, so that no time fires twice and none is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, NamedTuple, Protocol

from fairway.errors import InvalidConfig
from fairway.runtime.amounts import check_amounts
from fairway.runtime.words import brief

SKIPPED_COUNTED_MAX: Final = 1_000


class Times(Protocol):
    """When a schedule fires: a cron expression, or an interval."""

    def after(self, wall_ns: int) -> int | None:
        """The first time after this one; None if there is none."""
        ...

    def latest(self, start_ns: int, end_ns: int) -> int | None:
        """The last time after `start_ns` and not after `end_ns`."""
        ...

    def between(self, start_ns: int, end_ns: int, limit: int) -> list[int]:
        """The first `limit` times after `start_ns` and not after `end_ns`."""
        ...


class Catchup(Enum):
    """What to do with times that passed while nothing ran."""

    SKIP = "skip"
    """The latest time fires if it is at most `grace_ns` late; all before it are let go."""
    LATEST_ONLY = "latest_only"
    """One run makes up for all of them: the latest, however late."""
    RUN_ALL = "run_all"
    """Each fires, the oldest first; if there are more than `runs_max`, the latest of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchupConfig:
    policy: Catchup | Literal["skip", "latest_only", "run_all"] = Catchup.SKIP
    """What becomes of missed times. It is a `Catchup` once it is here, however it was written."""
    runs_max: int = 100
    """The most that fire at once. Raising it makes up for more and floods longer."""
    grace_ns: int = 60_000_000_000
    """How late the latest time may be under `skip`, and still fire. Raising it forgives longer
    pauses."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "policy", Catchup(self.policy))
        except ValueError:
            known = ", ".join(one.value for one in Catchup)
            raise InvalidConfig(f"catchup is one of {known}, not {brief(self.policy)}") from None
        check_amounts(self, runs_max=1, grace_ns=0)


class ScheduleDue(NamedTuple):
    """What a schedule owes at one moment."""

    fire: tuple[int, ...]
    """The times to fire now, the oldest first."""
    handled_ns: int
    """To be kept: all times up to here are dealt with. It never goes back."""
    next_ns: int | None
    """When to look again; None if never."""
    skipped: int
    """Times that passed without firing; past `SKIPPED_COUNTED_MAX` they are no longer counted."""


def due(cron: Times, handled_ns: int, now_ns: int, config: CatchupConfig) -> ScheduleDue:
    """What is owed at `now_ns` if all up to `handled_ns` was dealt with.

    For a new schedule `handled_ns` is when it was made: nothing before that is owed. The work is
    bounded by `runs_max`, however long ago that was. A clock that stepped back owes nothing until
    it is past `handled_ns` again, so no time fires twice.
    """
    last_ns = cron.latest(handled_ns, now_ns)
    if last_ns is None:
        return ScheduleDue((), handled_ns, cron.after(handled_ns), 0)
    most = config.runs_max if config.policy is Catchup.RUN_ALL else 1
    since_ns = handled_ns
    if config.policy is Catchup.SKIP:
        since_ns = max(handled_ns, now_ns - config.grace_ns - 1)
    fire = _latest(cron, since_ns, last_ns, most)
    passed_ns = fire[0] - 1 if fire else last_ns
    skipped = len(cron.between(handled_ns, passed_ns, SKIPPED_COUNTED_MAX))
    return ScheduleDue(fire, last_ns, cron.after(last_ns), skipped)


def _latest(cron: Times, start_ns: int, end_ns: int, most: int) -> tuple[int, ...]:
    """The last `most` times after `start_ns`, up to and including `end_ns`, the oldest first."""
    found = cron.between(start_ns, end_ns, most + 1)
    if len(found) <= most:
        return tuple(found)
    found = []
    while len(found) < most and (last_ns := cron.latest(start_ns, end_ns)) is not None:
        found.append(last_ns)
        end_ns = last_ns - 1
    return tuple(reversed(found))
