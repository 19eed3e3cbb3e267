"""Which keys tell a repeat: against a list that is searched from its end."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.graphs.repeats import KEY_BYTES_MAX, Repeats, hashable, lasting

MOST = 4
steps = st.lists(st.tuples(st.sampled_from(("meet", "bring", "drop")), st.integers(0, 9)))


class SlowRepeats:
    """The same, by hand: the keys in the order in which they were met last."""

    def __init__(self) -> None:
        self.keys: list[int] = []

    def met(self, key: int) -> bool:
        if key not in self.keys:
            return False
        self.keys.remove(key)
        self.keys.append(key)
        return True

    def remember(self, key: int) -> None:
        if key not in self.keys:
            self.keys = [*self.keys, key][-MOST:]

    def forget(self, key: int) -> None:
        self.keys = [each for each in self.keys if each != key]


@given(steps=steps)
def test_the_last_keys_are_known_and_no_others(steps: list[tuple[str, int]]) -> None:
    repeats, slow = Repeats(MOST), SlowRepeats()
    for verb, key in steps:
        if verb == "meet":
            assert repeats.met((key,)) == slow.met(key)
        elif verb == "drop":
            repeats.forget((key,))
            slow.forget(key)
        else:  # as a source does it: what it brings is no repeat, or is left out
            found = repeats.met((key,))
            assert found == slow.met(key)
            if not found:
                repeats.remember((key,))
                slow.remember(key)
        assert len(repeats) == len(slow.keys) <= MOST
        assert list(repeats._keys) == slow.keys


def test_what_has_no_key_is_no_repeat() -> None:
    repeats = Repeats(MOST)
    repeats.remember(())
    assert not repeats.met(())


plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.floats(width=64)
keys = st.recursive(plain, lambda each: st.lists(each, max_size=3).map(tuple), max_leaves=6)


@given(key=keys)
def test_a_lasting_key_is_the_same_when_it_comes_back(key: Any) -> None:
    there = lasting(key)
    back = hashable(msgspec.msgpack.decode(msgspec.msgpack.encode(there)))
    assert repr(back) == repr(there)
    hash(back)


@pytest.mark.parametrize("key", [2**64, -(2**63) - 1, uuid.UUID(int=2**128 - 1).int])
def test_a_number_beyond_64_bits_is_a_lasting_key(key: int) -> None:
    """It is told from others, and from the text that stands for it."""
    there = lasting(key)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(there)) == there
    assert there not in (lasting(key + 1), lasting(str(there)), lasting(there))


@pytest.mark.parametrize(
    "key", ["\ud800", ("\ud800",), "x" * (KEY_BYTES_MAX + 1), b"x" * KEY_BYTES_MAX, (2**64,)]
)
def test_a_key_that_a_journal_cannot_hold_is_refused(key: Any) -> None:
    with pytest.raises((ValueError, OverflowError)):
        lasting(key)


@pytest.mark.parametrize("key", [[1, [2, 3]], (1, (2, 3)), (1, [2, 3])])
def test_lists_and_tuples_are_the_same_key(key: Any) -> None:
    assert hashable(key) == (1, (2, 3))
