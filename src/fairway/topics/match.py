"""Which records a tag predicate means: exact tags and tag prefixes, nothing costlier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairway.errors import InvalidRequest

if TYPE_CHECKING:
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


class TagRules:
    """Deletions by tag: records up to a seq whose tag matches are gone, later ones are not.

    A rule is kept until the records it hides are gone from the log, so what it costs is bounded by
    what is stored. Asking costs O(distinct prefix lengths), whatever the number of rules.
    """

    __slots__ = ("_exact", "_lengths", "_prefixes")

    def __init__(self) -> None:
        self._exact: dict[str, int] = {}
        self._prefixes: dict[str, int] = {}
        self._lengths: list[int] = []

    def __len__(self) -> int:
        return len(self._exact) + len(self._prefixes)

    def add(self, match: TagMatch, upto: int) -> int:
        """Hide matching records up to `upto`; returns up to where they are hidden now."""
        rules = self._prefixes if match.prefix else self._exact
        rules[match.text] = upto = max(upto, rules.get(match.text, 0))
        self._measure()
        return upto

    def hides(self, seq: int, tag: str | None) -> bool:
        if tag is None:
            return False
        if seq <= self._exact.get(tag, 0):
            return True
        return any(seq <= self._prefixes.get(tag[:length], 0) for length in self._lengths)

    def prune(self, floor: int) -> list[TagMatch]:
        """Drop the rules that only hide what lies below `floor`; returns them."""
        gone = [TagMatch(text) for text, upto in self._exact.items() if upto < floor]
        gone += [TagMatch(text, True) for text, upto in self._prefixes.items() if upto < floor]
        for match in gone:
            del (self._prefixes if match.prefix else self._exact)[match.text]
        self._measure()
        return gone

    def _measure(self) -> None:
        self._lengths = sorted({len(text) for text in self._prefixes})
