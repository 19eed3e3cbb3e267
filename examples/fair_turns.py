"""The bounds of `core.turns` and `core.ready`, in numbers, and the worst wait that was seen.

Run it with `python examples/fair_turns.py`. It prints the table of `docs/explanation/fairness.md`.
"""

from math import ceil

from fairway.core.ready import Ready

FOUR = {"control": 8, "replication": 4, "client": 2, "maintenance": 1}
FIVE = {"B4": 8, "B3": 4, "B2": 2, "B1": 1, "B0": 1}


# --8<-- [start:bound]
def bound(weights: dict[str, int], band: str, ahead: int) -> int:
    """The most other turns before a waiting key, with `ahead` keys before it in its band."""
    own, total = weights[band], sum(weights.values())
    return ahead + ceil((ahead + 1) / own) * (total - own)


# --8<-- [end:bound]


def busy(weights: dict[str, int]) -> Ready[str, str]:
    """Every band has more to do than it will get done here."""
    ready: Ready[str, str] = Ready(weights)
    for band in weights:
        for number in range(1000):
            ready.mark(f"{band} {number}", band)
    return ready


# --8<-- [start:shares]
def shares(weights: dict[str, int], rounds: int) -> dict[str, int]:
    """Who had how many turns, with every band busy all the time."""
    ready = busy(weights)
    had = dict.fromkeys(weights, 0)
    for _ in range(rounds * sum(weights.values())):
        key = ready.take()
        assert key is not None
        had[key.split()[0]] += 1
    return had


# --8<-- [end:shares]


def longest_gap(weights: dict[str, int], band: str) -> int:
    """The most turns of others between two turns of `band`, and before its first."""
    ready = busy(weights)
    gap = longest = 0
    for _ in range(20 * sum(weights.values())):
        key = ready.take()
        assert key is not None
        gap = 0 if key.startswith(band) else gap + 1
        longest = max(longest, gap)
    return longest


for weights in (FOUR, FIVE):
    assert shares(weights, rounds=10) == {band: 10 * weight for band, weight in weights.items()}
    print(f"{'band':12} weight   share  longest gap  bound: 0 ahead  9 ahead  99 ahead")
    for band, weight in weights.items():
        none, nine, many = (bound(weights, band, ahead) for ahead in (0, 9, 99))
        seen = longest_gap(weights, band)
        assert seen <= none
        share = weight / sum(weights.values())
        print(f"{band:12} {weight:6} {share:7.1%} {seen:12} {none:15} {nine:8} {many:9}")
