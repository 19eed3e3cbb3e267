"""Decides what one exchange of a worker asks for over all its queues, and what it brought. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from fairway.jobs.feeder import Feeder
from fairway.jobs.job import TERMINAL, Fate, line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fairway.jobs.feeder import FeederConfig
    from fairway.jobs.job import Claim, ReadyLine, Settlement
    from fairway.jobs.store import Exchanged, Want

PARENTS_MAX = 10_000
"""Parents whose ready line is remembered, so that they are claimed when a child of theirs ends."""


class ExchangePlan(NamedTuple):
    """What an exchange asks for."""

    wants: list[Want]
    probe: list[str]
    """Queues to look at: which of their ready lines have work?"""
    queues: tuple[str, ...]
    """Those it asks anything of."""


class Feeding:
    """The feeders of a worker, one for each of its queues."""

    def __init__(
        self,
        configs: Mapping[str, FeederConfig],
        now_ns: int,
        knows: Callable[[str], bool] = lambda skill: True,
    ) -> None:
        """`knows` says whether this worker has a skill: lines for others are left to them."""
        self._knows = knows
        self.feeders = {queue: Feeder(queue, config, now_ns) for queue, config in configs.items()}
        self._parents: dict[int, ReadyLine] = {}

    @property
    def next_poll_ns(self) -> int:
        """When a queue is next to be looked at by itself."""
        return min(feeder.next_poll_ns for feeder in self.feeders.values())

    def of(self, claim: Claim) -> Feeder:
        return self.feeders[claim.queue]

    def wake(self, lines: Iterable[ReadyLine]) -> bool:
        """Work was made ready in these lines; whether any of them is of ours."""
        ours = False
        for line in lines:
            if (feeder := self.feeders.get(line.queue)) is not None and self._ours(line):
                feeder.lines.add(line)
                feeder.stir()
                ours = True
        return ours

    def _ours(self, line: ReadyLine) -> bool:
        return not line.skill or self._knows(line.skill)

    def look(self, queue: str) -> bool:
        """Something may be ready in this queue; whether it is ours."""
        if (feeder := self.feeders.get(queue)) is None:
            return False
        feeder.lines.doubt()
        feeder.stir()
        return True

    def limits_changed(self, queue: str) -> None:
        """A queue, or all of them (`*`), may start more, or less, from now on."""
        for name, feeder in self.feeders.items():
            if queue in (name, "*"):
                feeder.lines.doubt()
                feeder.let_go()

    def wants_more(self, now_ns: int) -> bool:
        return any(feeder.demand(now_ns) for feeder in self.feeders.values())

    def plan(self, settlements: Sequence[Settlement], pressure: float, now_ns: int) -> ExchangePlan:
        """What the exchange that settles these asks for with it."""
        self.wake(sorted(self._following(settlements)))
        plan = ExchangePlan([], [], ())
        queues = []
        for queue, feeder in self.feeders.items():
            feeder.apply_pressure(pressure)
            count = feeder.demand(now_ns)
            due = feeder.due(now_ns)
            if not count and not due:
                continue
            split = feeder.lines.split(count)
            plan.wants.extend(split)
            if due or not split:
                plan.probe.append(queue)
            feeder.asking(sum(want.most for want in split))
            queues.append(queue)
        return plan._replace(queues=tuple(queues))

    def failed(self, plan: ExchangePlan) -> None:
        """The exchange came to nothing, or its claims are not ours any more: ask again."""
        for queue in plan.queues:
            self.feeders[queue].failed()

    def arrived(self, plan: ExchangePlan, out: Exchanged, now_ns: int) -> None:
        """The exchange is back: its claims are in the buffers, and each queue knows what to do."""
        claims: dict[str, list[Claim]] = {queue: [] for queue in plan.queues}
        for claim in out.claims:
            claims[claim.queue].append(claim)
        asked = Counter(dict.fromkeys(plan.queues, 0))
        for line, most in plan.wants:
            asked[line.queue] += most
        short = {queue for queue in plan.queues if len(claims[queue]) < asked[queue]}
        for queue in plan.queues:
            feeder = self.feeders[queue]
            lines = out.lines.get(queue)
            if lines is not None:
                lines = [line for line in lines if self._ours(line)]
                feeder.lines.replace(lines)
            elif queue in short:
                feeder.lines.doubt()  # some gave less: the next look shows which have more
                if feeder.idle and not claims[queue]:
                    feeder.stir()  # nothing will end here, so nothing else would make it look
            feeder.picked(claims[queue], now_ns, looked=lines is not None, more=bool(lines))
            if lines:
                feeder.stir()
            if queue in out.held_back_ns:
                feeder.hold_back(out.held_back_ns[queue], now_ns)
        # What was made ready and claimed by the same exchange is there no more.
        spent = {line for line, _ in plan.wants if line.queue in short}
        self.wake(line for line in out.woken if line not in spent)

    def _following(self, settlements: Sequence[Settlement]) -> set[ReadyLine]:
        """The lines in which these settlements make jobs ready, to be claimed with them."""
        follow = set()
        for one in settlements:
            claim = one.claim
            if one.fate is Fate.SPAWN:
                self._parents[claim.id] = line_of(claim)
                follow |= {line_of(child) for child in one.children}
            elif claim.parent is not None and one.fate in TERMINAL:
                if (parent := self._parents.get(claim.parent)) is not None:
                    follow.add(parent)
                self._parents.pop(claim.id, None)
        while len(self._parents) > PARENTS_MAX:
            del self._parents[next(iter(self._parents))]
        return follow
