"""Which records a tag predicate means: exact tags and tag prefixes, nothing costlier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fairway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Collection

    from fairway.wire.topics import Match


@dataclass(frozen=True, slots=True)
class TagMatch:
    """Tags equal to `text`, or beginning with it if `prefix`. No tag never matches."""

    text: str
    prefix: bool = False

    @classmethod
    def of(cls, match: Match) -> TagMatch:
        """Read the wire form; `InvalidRequest` if a glob does not end in its only star."""
        if isinstance(match, str):
            return cls(match)
        _, operator, text = match
        if operator == "Eq":
            return cls(text)
        if not text.endswith("*") or "*" in text[:-1]:
            raise InvalidRequest(f"Glob {text!r}: a literal prefix and one star at its end")
        return cls(text[:-1], prefix=True)

    def __call__(self, tag: str | None) -> bool:
        if tag is None:
            return False
        return tag.startswith(self.text) if self.prefix else tag == self.text

    @property
    def name(self) -> str:
        """How it is written in a topic's metadata."""
        return ("*" if self.prefix else "=") + self.text

    @classmethod
    def named(cls, name: str) -> TagMatch:
        """Read `name` back."""
        return cls(name[1:], prefix=name[0] == "*")


@dataclass(frozen=True, slots=True)
class SeqMatch:
    """The one record of a seq."""

    seq: int

    @property
    def name(self) -> str:
        """How it is written in a topic's metadata."""
        return f"#{self.seq}"


Rule: TypeAlias = TagMatch | SeqMatch


def rule_named(name: str) -> Rule:
    """Read the `name` of a rule back."""
    return SeqMatch(int(name[1:])) if name[0] == "#" else TagMatch.named(name)


class TagRules:
    """Deletions of records that have others beside them, by tag and by seq.

    Of a tag, records up to a seq are gone and later ones are not. A rule is kept until the records
    it hides are gone from the log, so what it costs is bounded by what is stored. Asking costs
    O(distinct prefix lengths), whatever the number of rules.
    """

    __slots__ = ("_exact", "_lengths", "_prefixes", "_seqs")

    def __init__(self) -> None:
        self._exact: dict[str, int] = {}
        self._prefixes: dict[str, int] = {}
        self._seqs: set[int] = set()
        self._lengths: list[int] = []

    def __len__(self) -> int:
        return len(self._exact) + len(self._prefixes) + len(self._seqs)

    def add(self, match: Rule, upto: int) -> int:
        """Hide matching records up to `upto`; returns up to where they are hidden now."""
        if isinstance(match, SeqMatch):
            self._seqs.add(match.seq)
            return match.seq
        rules = self._prefixes if match.prefix else self._exact
        rules[match.text] = upto = max(upto, rules.get(match.text, 0))
        self._measure()
        return upto

    def hides(self, seq: int, tag: str | None) -> bool:
        if seq in self._seqs:
            return True
        if tag is None:
            return False
        if seq <= self._exact.get(tag, 0):
            return True
        return any(seq <= self._prefixes.get(tag[:length], 0) for length in self._lengths)

    def hiding(self, seq: int, tag: str | None) -> list[Rule]:
        """The rules that hide a record."""
        found: list[Rule] = [SeqMatch(seq)] if seq in self._seqs else []
        if tag is not None:
            if seq <= self._exact.get(tag, 0):
                found.append(TagMatch(tag))
            for length in self._lengths:
                if seq <= self._prefixes.get(tag[:length], 0):
                    found.append(TagMatch(tag[:length], True))
        return found

    def all(self) -> dict[Rule, int]:
        """Each rule, and the last seq that it hides."""
        found: dict[Rule, int] = {TagMatch(text): upto for text, upto in self._exact.items()}
        found.update((TagMatch(text, True), upto) for text, upto in self._prefixes.items())
        found.update((SeqMatch(seq), seq) for seq in self._seqs)
        return found

    def without(self, gone: Collection[Rule]) -> TagRules:
        """The other rules. Another object, so that who has read records meanwhile notices."""
        left = TagRules()
        for rule, upto in self.all().items():
            if rule not in gone:
                left.add(rule, upto)
        return left

    def drop(self, rule: Rule) -> None:
        """Forget a rule, if it is here."""
        if isinstance(rule, SeqMatch):
            self._seqs.discard(rule.seq)
        elif not rule.prefix:
            self._exact.pop(rule.text, None)
        elif self._prefixes.pop(rule.text, None) is not None:
            self._measure()

    def prune(self, floor: int) -> list[Rule]:
        """Drop the rules that only hide what lies below `floor`; returns them."""
        gone = [rule for rule, upto in self.all().items() if upto < floor]
        for rule in gone:
            self.drop(rule)
        return gone

    def _measure(self) -> None:
        self._lengths = sorted({len(text) for text in self._prefixes})
