"""Backoff against a twin that keeps the whole history and doubles one step at a time."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from fairway.core.backoff import Backoff, BackoffConfig


@st.composite
def configs(draw: st.DrawFn) -> BackoffConfig:
    base_ns = draw(st.integers(1, 10**10) | st.integers(1, 4))
    return BackoffConfig(
        base_ns=base_ns,
        cap_ns=base_ns + draw(st.integers(0, 2**62) | st.integers(0, 100)),
        jitter=draw(st.floats(0, 1)),
        reset_after_ns=draw(st.integers(1, 50)),
        attempts_max=draw(st.none() | st.integers(1, 8)),
    )


def doubled(config: BackoffConfig, failures: int) -> int:
    wait_ns = config.base_ns
    for _ in range(failures - 1):
        wait_ns = min(config.cap_ns, 2 * wait_ns)
    return wait_ns


def in_a_row(config: BackoffConfig, history: list[tuple[str, int]]) -> int:
    """Failures that count at the end of `history`, a failure: read it from the first line on."""
    count, healthy_since = 0, None
    for event, at_ns in history:
        if event == "recovered":
            healthy_since = at_ns if healthy_since is None else healthy_since
        else:
            if healthy_since is not None and at_ns >= healthy_since + config.reset_after_ns:
                count = 0
            count, healthy_since = count + 1, None
    return count


@settings(deadline=None)
@given(config=configs(), failures=st.integers(1, 200))
def test_ceiling_is_repeated_doubling(config: BackoffConfig, failures: int) -> None:
    assert config.ceiling_ns(failures) == doubled(config, failures)


@settings(deadline=None)
@given(config=configs(), failures=st.integers(1, 10**30), chance=st.floats(0, 1))
def test_jitter_stays_between_its_share_and_the_ceiling(
    config: BackoffConfig, failures: int, chance: float
) -> None:
    class Chance:
        def random(self) -> float:
            return chance

    ceiling_ns = config.ceiling_ns(failures)
    delay_ns = config.delay_ns(failures, Chance())
    assert 0 <= delay_ns <= ceiling_ns
    # A float carries 53 bits of a wait: allow what it cannot tell apart.
    assert delay_ns >= (1 - config.jitter) * ceiling_ns - 1 - ceiling_ns / 2**50


@settings(deadline=None)
@given(
    config=configs(),
    events=st.lists(
        st.tuples(st.sampled_from(["failed", "failed", "recovered"]), st.integers(-20, 60)),
        max_size=30,
    ),
    seed=st.integers(),
)
def test_same_waits_as_the_twin(
    config: BackoffConfig, events: list[tuple[str, int]], seed: int
) -> None:
    backoff = Backoff(config, random.Random(seed))
    draws = random.Random(seed)
    history: list[tuple[str, int]] = []
    now_ns = 0
    for event, step_ns in events:  # steps may be negative: clocks do that
        now_ns += step_ns
        history.append((event, now_ns))
        if event == "recovered":
            backoff.recovered(now_ns)
        else:
            count = in_a_row(config, history)
            waited = backoff.failed(now_ns)
            assert backoff.failures(now_ns) == count
            if config.attempts_max is not None and count >= config.attempts_max:
                assert waited is None
            else:
                assert waited == config.delay_ns(count, draws)
        backoff.check()
