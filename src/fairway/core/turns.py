"""Which band is next: deficit weighted round-robin with a cost per turn.

Decides nothing about keys or items: whoever owns the work says when a band has some (`wake`) and
when it has none (`rest`), asks for the next turn (`take`) and may charge more for it later
(`charge`). A turn costs O(bands) at worst, whatever the weights, the costs and the debts.

How it works. Bands stand in a ring. Each time the ring reaches a band that has work, the band is
granted credit equal to its weight; it then has turns for as long as its credit is above zero, each
turn spending its cost. A turn that costs more than the credit left leaves a debt, which later
grants must pay off first. A band with nothing ready keeps no credit, but it keeps its debt.

Bounds, for a band b that stays ready and is not withheld, whatever the others do, with w_i the
weights, W their sum and c the largest cost of a turn (what `charge` adds to a turn before the next
one is taken belongs to its cost):

* *Turns of cost 1*: between two turns of b, and before its first, others have at most W - w_b.
* *Any cost*: before its next turn b is granted credit at most k = ceil(c / w_b) times, and the
  others spend at most the sum over i != b of (k * w_i + c - 1). Both bounds are reached.
* *A late charge*, made when other turns were taken meanwhile, is outside these bounds: it was
  spent before anybody knew. The band charged x pays it back by waiting ceil(x / w_b) grants more.
* *Shares*: over any number of full rounds with every band ready and cost 1, b has exactly w_b
  turns a round; with costs, its spending differs from its share by less than c.
* *Minimum shares*: the bands that would fall short are raised to exactly their `minimum` of a full
  round, the others keep their weights; so each named band has at least its part of the turns,
  whatever else is ready. Raised weights may be fractions w_i = p / q: shares are then exact over q
  rounds (less than one turn off after any other number), and in the bounds above k * w_i is rounded
  up.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

B = TypeVar("B", bound="Hashable")


class Turns(Generic[B]):
    """Hands out turns to bands that have work, in proportion to their weights."""

    def __init__(
        self, weights: Mapping[B, int], *, minimum: Mapping[B, Fraction] | None = None
    ) -> None:
        """`weights` in ring order; `minimum` maps a band to the least part of a round it gets."""
        if not weights:
            raise ValueError("at least one band is needed")
        if any(weight < 1 for weight in weights.values()):
            raise ValueError("weights are whole numbers from 1")
        shares = _raised(weights, minimum or {})
        self._bands = list(weights)
        self._index = {band: at for at, band in enumerate(self._bands)}
        # Credit is counted in units of 1/_unit of a turn, so that raised weights stay whole numbers
        # and a band's burst does not grow with the precision of somebody's minimum.
        self._unit = lcm(*(share.denominator for share in shares))
        self._grants = [int(share * self._unit) for share in shares]
        self._credit = [0] * len(shares)
        self._awake = [False] * len(shares)
        self._withheld = [False] * len(shares)
        self._active = [False] * len(shares)  # awake and not withheld
        self._active_count = 0
        self._at = len(shares) - 1  # so that the first band of the ring is served first

    def wake(self, band: B) -> None:
        """The band has work now. Idempotent."""
        at = self._index[band]
        self._awake[at] = True
        if not self._withheld[at]:
            self._activate(at)

    def rest(self, band: B) -> None:
        """The band has nothing ready: its credit is gone, its debt stays. Idempotent."""
        at = self._index[band]
        self._awake[at] = False
        self._deactivate(at)

    def withhold(self, band: B) -> None:
        """Give the band no turns, whatever it has, until `restore`. Idempotent."""
        at = self._index[band]
        self._withheld[at] = True
        self._deactivate(at)

    def restore(self, band: B) -> None:
        """End a `withhold`. Idempotent."""
        at = self._index[band]
        self._withheld[at] = False
        if self._awake[at]:
            self._activate(at)

    def take(self, cost: int = 1) -> B | None:
        """The band whose turn it is, charged `cost`; None if no band may have one."""
        assert cost > 0, "turns that cost nothing would never end"
        at = self._at
        credit = self._credit
        if not (self._active[at] and credit[at] > 0):
            if not self._active_count:
                return None
            at = self._advance()
        credit[at] -= cost * self._unit
        return self._bands[at]

    def charge(self, band: B, cost: int) -> None:
        """Charge more (or, if negative, give back) for a turn whose true cost is known now.

        What is given back pays off debt at any time, but is credit only while the ring still stands
        at the band: nobody saves up for the next round. So estimate low and charge the rest.
        """
        at = self._index[band]
        limit = self._grants[at] if at == self._at and self._active[at] else 0
        self._credit[at] = min(self._credit[at] - cost * self._unit, limit)

    def _advance(self) -> int:
        """Move round the ring, granting as we go, to the next active band with credit."""
        count = len(self._bands)
        while True:
            for _ in range(count):
                self._at = at = (self._at + 1) % count
                if self._active[at]:
                    self._credit[at] += self._grants[at]
                    if self._credit[at] > 0:
                        return at
            # Everyone is in debt. Whole rounds in which nobody would have a turn are granted at
            # once, or one large charge would make us spin round by round.
            rounds = min(
                -self._credit[at] // self._grants[at] for at in range(count) if self._active[at]
            )
            for at in range(count):
                if self._active[at]:
                    self._credit[at] += rounds * self._grants[at]

    def _activate(self, at: int) -> None:
        if not self._active[at]:
            self._active[at] = True
            self._active_count += 1

    def _deactivate(self, at: int) -> None:
        if self._active[at]:
            self._active[at] = False
            self._active_count -= 1
            self._credit[at] = min(self._credit[at], 0)

    def check(self) -> None:
        """Assert every invariant."""
        assert self._active_count == sum(self._active)
        for at in range(len(self._bands)):
            assert self._active[at] == (self._awake[at] and not self._withheld[at])
            assert self._credit[at] <= self._grants[at], "no band saves up credit"
            assert self._active[at] or self._credit[at] <= 0, "a resting band keeps no credit"
            assert at == self._at or self._credit[at] <= 0, "credit is for the band being served"


def _raised(weights: Mapping[B, int], minimum: Mapping[B, Fraction]) -> list[Fraction]:
    """Weights as fractions, raised where a band would fall below its minimum share."""
    for band, share in minimum.items():
        if band not in weights:
            raise ValueError(f"minimum share for unknown band {band!r}")
        if not 0 < share < 1:
            raise ValueError(f"a minimum share lies between 0 and 1, not {share}")
    if sum(minimum.values(), Fraction(0)) >= 1:
        raise ValueError("minimum shares add up to 1 or more: nothing is left for the others")
    raised: set[B] = set()
    while True:
        free = sum(weight for band, weight in weights.items() if band not in raised)
        kept = 1 - sum((minimum[band] for band in raised), Fraction(0))
        # With the raised bands at exactly their minimum, a whole round is worth this much weight.
        total = free / kept
        short = {
            band
            for band, share in minimum.items()
            if band not in raised and weights[band] < share * total
        }
        if not short:
            return [
                minimum[band] * total if band in raised else Fraction(weight)
                for band, weight in weights.items()
            ]
        raised |= short
