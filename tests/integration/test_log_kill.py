"""kill -9 of a real, saturated process at random moments: what was acknowledged is there.

One directory goes through all rounds, so that recovered state is written to, killed and recovered
again. Which moment it is follows from the number of acknowledgements read, not from a clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.log_places import KINDS
from tests.support.log_process import OPENING, Broken, Ledger, log_process

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from tests.conftest import Campaign


def kill_one(place: str, ledger: Ledger, rng: random.Random, plant: str = "") -> None:
    """Start a process, kill it after a random number of acknowledgements, check what is left."""
    with log_process("write", place, rng.random(), plant) as process:
        process.wait_for_acks(int(10 ** rng.uniform(0.5, 4.2)))
        process.kill()
        acks = process.acks
    ledger.tally["kills"] += 1
    while rng.random() < 0.3:
        # And the next one while it recovers, so that recovery has to start from half of one.
        with log_process("write", place, rng.random()) as process:
            process.wait_until(OPENING)
            process.kill()
            acks += process.acks
        ledger.tally["kills_while_opening"] += 1
    ledger.check(acks)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_acknowledged_survives_kill_9(
    kind: str, campaign: Campaign, tmp_path: Path
) -> None:
    rng = campaign.random()
    place = f"{kind}:{tmp_path / 'log'}"
    ledger = Ledger(place, campaign.tally)
    rounds = campaign.rounds(share=3, full=50)
    while campaign.tally["kills"] < rounds or not caught_in_the_act(campaign):
        kill_one(place, ledger, rng)
        assert campaign.tally["kills"] < rounds + 10, "it never had anything in its hands"


def caught_in_the_act(campaign: Campaign) -> bool:
    """Whether a process was killed between writing and telling, and between taking and writing."""
    return all(campaign.tally[event] for event in ("unacked_survivors", "memory_acks_lost"))


@pytest.mark.parametrize(
    ("plant", "complaint"),
    [("early", "is lost or changed"), ("torn", "half of a pair|torn metadata")],
)
def test_a_planted_bug_is_caught(
    plant: str, complaint: str, campaign: Campaign, tmp_path: Path
) -> None:
    rng = campaign.random()
    place = f"sqlite:{tmp_path / 'log'}"
    ledger = Ledger(place, campaign.tally)

    def until_caught() -> None:
        for _ in range(80):  # one in seven meets the moment
            kill_one(place, ledger, rng, plant)

    with pytest.raises(Broken, match=complaint):
        until_caught()
