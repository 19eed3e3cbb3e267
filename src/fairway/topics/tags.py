"""Where the records of a tag are, for as far back as memory reaches.

A reader that wants one tag of a long topic skips to the next batch that holds it, instead of having
every batch read from the store. All topics share one byte budget; what was written longest ago is
forgotten first, and is then found in the store, a page at a time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from fairway.topics.active import ActiveTopic
    from fairway.topics.batch import RecordBatch
    from fairway.topics.match import TagMatch

BATCH_COST: Final = 200
"""Bytes that a tagged batch costs: its place in the order, with what Python needs to hold it."""
TAG_COST: Final = 40
"""Bytes more for each of its tags."""
TAGS_SEARCHED: Final = 4096
"""A prefix is compared with so many tags; where there are more, the store is read."""


NO_TAGS: Final[frozenset[str]] = frozenset()
TAG_KEY: Final = b'"tag"'
ESCAPE: Final = b"\\"
"""With it, the same name can be spelled in other ways."""


class Tagged(NamedTuple):
    """A batch, and the tags of its records."""

    first_seq: int
    last_seq: int
    tags: frozenset[str]

    @property
    def cost(self) -> int:
        return BATCH_COST + TAG_COST * len(self.tags) + sum(map(len, self.tags))


class TagIndex:
    """The tagged batches of one topic, without a break from `since` up to `upto`."""

    __slots__ = ("_firsts", "_lasts", "_order", "since", "upto")

    def __init__(self, since: int) -> None:
        self.since = since
        self.upto = since - 1
        self._order: deque[Tagged] = deque()
        self._lasts: dict[str, list[int]] = {}  # of the batches with a tag, rising
        self._firsts: dict[int, int] = {}  # by their last seq

    def __len__(self) -> int:
        return len(self._order)

    def note(self, tagged: Tagged) -> None:
        """A batch behind all others."""
        self.upto = tagged.last_seq
        if tagged.tags:
            self._order.append(tagged)
            self._firsts[tagged.last_seq] = tagged.first_seq
            for tag in tagged.tags:
                self._lasts.setdefault(tag, []).append(tagged.last_seq)

    def forget_oldest(self) -> int:
        """Forget the oldest tagged batch; returns what it cost."""
        oldest = self._order.popleft()
        self.since = oldest.last_seq + 1
        del self._firsts[oldest.last_seq]
        for tag in oldest.tags:
            lasts = self._lasts[tag]
            if lasts[-1] < self.since:
                del self._lasts[tag]
            elif len(lasts) > 64 and lasts[len(lasts) // 2] < self.since:
                del lasts[: bisect_left(lasts, self.since)]
        return oldest.cost

    def skip(self, after: int, upto: int, match: TagMatch) -> int:
        """How far a reader who has seen `after` need not look, at most up to `upto`.

        Nothing in between matches. It is `after` itself if that is not known.
        """
        if not self.since <= after + 1 <= self.upto:
            return after
        if match.prefix and len(self._lasts) > TAGS_SEARCHED:
            return after
        upto = min(upto, self.upto)
        for lasts in self._of(match):
            if lasts[-1] > after:
                # The batch that the cursor is in counts too: its first seq lies below.
                first = self._firsts[lasts[bisect_right(lasts, after)]]
                upto = min(upto, first - 1)
        return max(after, upto)

    def _of(self, match: TagMatch) -> list[list[int]]:
        if match.prefix:
            return [lasts for tag, lasts in self._lasts.items() if match(tag)]
        lasts = self._lasts.get(match.text)
        return [lasts] if lasts is not None else []


class TagMemory:
    """One budget for the indexes of all topics, spent first in, first out."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.used = 0
        self._order: deque[tuple[ActiveTopic, TagIndex]] = deque()

    def note(self, active: ActiveTopic, batch: RecordBatch) -> None:
        """A batch was published that the store holds, and keeps."""
        index = active.tags
        tags: frozenset[str] = NO_TAGS
        if TAG_KEY in batch.records or ESCAPE in batch.records:  # else no record has one
            tags = frozenset(record.tag for record in batch.parse() if record.tag is not None)
        if index is None and not tags:
            return
        if index is None or batch.first_seq != index.upto + 1:
            index = TagIndex(batch.first_seq)
            active.keep_tags(index)
        tagged = Tagged(batch.first_seq, batch.last_seq, tags)
        index.note(tagged)
        if tags:
            self._order.append((active, index))
            self.used += tagged.cost
            while self.used > self.budget:
                self._forget_oldest()

    def _forget_oldest(self) -> None:
        active, index = self._order.popleft()
        self.used -= index.forget_oldest()
        if not len(index) and active.tags is index:
            active.keep_tags(None)
