"""Tag predicates and deletions by tag, against a dumb twin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.errors import InvalidRequest
from fairway.topics.match import TagMatch, TagRules

TAGS = st.one_of(st.none(), st.text("ab*=é", max_size=4))
MATCHES = st.builds(TagMatch, st.text("ab*=é", max_size=3), st.booleans())


@pytest.mark.parametrize(
    ("wire", "tag", "matches"),
    [
        ("x", "x", True),
        ("x", "xy", False),
        ("x*", "x*", True),
        ("x*", "xy", False),
        (("tag", "Eq", "x*"), "x*", True),
        (("tag", "Glob", "x*"), "xyz", True),
        (("tag", "Glob", "x*"), "x", True),
        (("tag", "Glob", "x*"), "yx", False),
        (("tag", "Glob", "*"), "anything", True),
        (("tag", "Glob", "*"), "", True),
        (("tag", "Glob", "*"), None, False),
        ("", "", True),
        ("", None, False),
    ],
)
def test_the_wire_form(wire: Any, tag: str | None, matches: bool) -> None:
    assert TagMatch.of(wire)(tag) is matches


@pytest.mark.parametrize("text", ["x", "x*y", "*x", "**", ""])
def test_a_glob_ends_in_its_only_star(text: str) -> None:
    with pytest.raises(InvalidRequest):
        TagMatch.of(("tag", "Glob", text))


@given(MATCHES, TAGS)
def test_a_match_survives_its_name(match: TagMatch, tag: str | None) -> None:
    again = TagMatch.named(match.name)
    assert again == match
    assert again(tag) is match(tag)


@dataclass
class Twin:
    """Every deletion, asked one after the other."""

    rules: list[tuple[TagMatch, int]] = field(default_factory=list)

    def hides(self, seq: int, tag: str | None) -> bool:
        return any(seq <= upto and match(tag) for match, upto in self.rules)


@given(
    st.lists(st.tuples(MATCHES, st.integers(0, 30))),
    st.integers(0, 30),
    st.lists(st.tuples(st.integers(1, 40), TAGS), min_size=1),
)
def test_rules_hide_what_the_twin_hides(
    added: list[tuple[TagMatch, int]], floor: int, asked: list[tuple[int, str | None]]
) -> None:
    rules, twin = TagRules(), Twin()
    for match, upto in added:
        assert rules.add(match, upto) >= upto
        twin.rules.append((match, upto))
    for seq, tag in asked:
        assert rules.hides(seq, tag) is twin.hides(seq, tag)
    before = len(rules)
    gone = rules.prune(floor)
    assert len(rules) == before - len(gone)
    for seq, tag in asked:
        if seq >= floor:
            assert rules.hides(seq, tag) is twin.hides(seq, tag), "pruned too much"
    assert not [m for m, upto in twin.rules if upto >= floor and m in gone]


def test_nothing_is_left_of_rules_that_only_hide_what_is_gone() -> None:
    rules = TagRules()
    rules.add(TagMatch("a"), 5)
    rules.add(TagMatch("b", True), 7)
    assert rules.prune(6) == [TagMatch("a")]
    assert rules.prune(7) == []
    assert rules.prune(8) == [TagMatch("b", True)]
    assert not rules
