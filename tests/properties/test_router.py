"""The trie finds what a twin finds that tries every route at every place."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from fairway.errors import InvalidConfig
from fairway.server.http.router import Route, Routes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LITERAL, ARGUMENT, SPAN = range(3)


async def nothing(*_: object) -> None: ...


def kind_of(part: str) -> int:
    if not part.startswith("{"):
        return LITERAL
    return SPAN if part.endswith("...}") else ARGUMENT


def matches(path: str, asked: Sequence[str]) -> Iterator[tuple[list[int], tuple[str, ...]]]:
    """Every way in which a route fits a path: of which kind each segment is, and the arguments."""
    parts = path.strip("/").split("/")
    most = [len(asked) if kind_of(part) == SPAN else 1 for part in parts]
    for lengths in product(*(range(1, each + 1) for each in most)):
        if sum(lengths) != len(asked):
            continue
        ranks: list[int] = []
        arguments: list[str] = []
        for part, length in zip(parts, lengths, strict=True):
            segments = asked[len(ranks) : len(ranks) + length]
            if kind_of(part) == LITERAL and [part] != list(segments):
                break
            if kind_of(part) != LITERAL:
                arguments.append("/".join(segments))
            ranks += [kind_of(part)] * length
        else:
            yield ranks, tuple(arguments)


def twin(paths: Sequence[str], asked: str) -> tuple[str, tuple[str, ...]] | None:
    """Of all that fit, the one that is more literal earlier."""
    fits = [
        (ranks, path, arguments)
        for path in paths
        for ranks, arguments in matches(path, asked.strip("/").split("/"))
    ]
    return min(fits)[1:] if fits else None


parts = st.sampled_from(["a", "b", "c", "{x}", "{y}", "{z...}"])
paths = st.lists(parts, min_size=1, max_size=5).map(lambda found: "/" + "/".join(found))
asked = st.lists(st.sampled_from(["a", "b", "c", "d", ""]), min_size=1, max_size=7)


def shape(path: str) -> tuple[object, ...]:
    found = path.strip("/").split("/")
    return tuple(part if kind_of(part) == LITERAL else kind_of(part) for part in found)


@given(st.lists(paths, max_size=8), st.lists(asked.map("/".join), min_size=1, max_size=8))
def test_the_trie_finds_what_its_twin_finds(paths: list[str], asked: list[str]) -> None:
    one_span = [path for path in paths if path.count("...") < 2]
    distinct = list({shape(path): path for path in one_span}.values())
    table = Routes([Route("GET", path, nothing, "") for path in distinct])
    for path in [*asked, *asked]:  # the second time, from what is remembered
        match = table.find("/" + path)
        found = None if match is None else (match[0]["GET"].path, match[1])
        assert found == twin(distinct, path)


@given(st.lists(paths, min_size=1, max_size=6))
def test_a_table_is_made_if_and_only_if_no_two_routes_have_one_shape(paths: list[str]) -> None:
    good = len({shape(path) for path in paths}) == len(paths)
    good = good and all(path.count("...") < 2 for path in paths)
    try:
        Routes([Route("GET", path, nothing, "") for path in paths])
    except InvalidConfig:
        assert not good
    else:
        assert good
