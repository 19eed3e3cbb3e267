"""Paths of every shape are found, the most literal route first; routes that collide are refused."""

from __future__ import annotations

import pytest

from fairway.errors import InvalidConfig
from fairway.server.http.router import PATHS_REMEMBERED, Route, Routes


async def nothing(*_: object) -> None: ...


def routes(*paths: str) -> Routes:
    made = [path.split(" ") if " " in path else ["GET", path] for path in paths]
    return Routes([Route(method, path, nothing, "") for method, path in made])


def found(table: Routes, path: str, method: str = "GET") -> tuple[str, tuple[str, ...]] | None:
    match = table.find(path)
    return None if match is None else (match[0][method].path, match[1])


@pytest.mark.parametrize(
    ("path", "asked", "arguments"),
    [
        ("/v0/compute/executors/{id}", "/v0/compute/executors/7", ("7",)),
        ("/v0/cluster/partitions/{p}", "/v0/cluster/partitions/3", ("3",)),
        ("/v0/compute/{job}", "/v0/compute/9", ("9",)),
        ("/v0/compute/{job}/stages/{stage}/tasks", "/v0/compute/9/stages/2/tasks", ("9", "2")),
        (
            "/v0/compute/{job}/stages/{stage}/tasks/{task}",
            "/v0/compute/9/stages/2/tasks/5",
            ("9", "2", "5"),
        ),
    ],
)
def test_any_shape_is_found(path: str, asked: str, arguments: tuple[str, ...]) -> None:
    assert found(routes(path), asked) == (path, arguments)
    together = routes(
        "/v0/compute/executors/{id}",
        "/v0/cluster/partitions/{p}",
        "/v0/compute/{job}",
        "/v0/compute/{job}/stages/{stage}/tasks",
        "/v0/compute/{job}/stages/{stage}/tasks/{task}",
    )
    assert found(together, asked) == (path, arguments)
    assert together.find(f"{asked}/more/of/it") is None


def test_literal_segments_win_over_arguments_whatever_the_method() -> None:
    table = routes("GET /jobs/{id}", "POST /jobs/prune", "POST /jobs/{id}/cancel")
    match = table.find("/jobs/prune")
    assert match is not None
    assert list(match[0]) == ["POST"]  # so that a GET of it is a 405
    assert found(table, "/jobs/7") == ("/jobs/{id}", ("7",))
    assert found(table, "/jobs/prune/cancel", "POST") == ("/jobs/{id}/cancel", ("prune",))


def test_an_argument_holds_slashes_only_where_the_route_says_so() -> None:
    table = routes("/jobs/{id}/signal", "/jobs/by-key/{key...}/signal", "/jobs/by-key/{key...}")
    by_key = "/jobs/by-key/{key...}/signal"
    assert found(table, "/jobs/a/b/signal") is None
    assert found(table, "/jobs/by-key/a/signal") == (by_key, ("a",))
    assert found(table, "/jobs/by-key/a/b//c/signal") == (by_key, ("a/b//c",))
    assert found(table, "/jobs/by-key/signal/signal") == (by_key, ("signal",))
    assert found(table, "/jobs/by-key/a/b") == ("/jobs/by-key/{key...}", ("a/b",))
    # What the literal leads to is too short for it: it is an id like any other.
    assert found(routes("/jobs/{id}/signal", by_key), "/jobs/by-key/signal") == (
        "/jobs/{id}/signal",
        ("by-key",),
    )


def test_a_slash_at_the_end_adds_nothing_and_an_argument_may_be_empty() -> None:
    table = routes("/topics", "/topics/{topic}/diff")
    assert found(table, "/topics/") == ("/topics", ())
    assert found(table, "/topics//diff") == ("/topics/{topic}/diff", ("",))
    assert table.find("/") is None


def test_no_segment_of_a_path_is_taken_for_an_argument() -> None:
    table = routes("/topics/{topic}", "/topics/{topic}/diff")
    assert found(table, "/topics/{topic}") == ("/topics/{topic}", ("{topic}",))


@pytest.mark.parametrize(
    "paths",
    [
        ("/topics/{topic}", "/topics/{name}"),
        ("/topics", "/topics/"),
        ("/jobs/{id}/a", "/jobs/{key}/a"),
        ("/jobs/{key...}", "/jobs/{other...}"),
        ("/two/{a...}/of/{b...}",),
    ],
)
def test_routes_that_collide_are_refused(paths: tuple[str, ...]) -> None:
    with pytest.raises(InvalidConfig, match=r"are one path|guess"):
        routes(*paths)


def test_paths_of_one_shape_may_differ_in_their_methods() -> None:
    table = routes("GET /topics/{topic}", "PUT /topics/{name}")
    assert found(table, "/topics/a", "PUT") == ("/topics/{name}", ("a",))


def test_found_paths_are_remembered_and_no_more_than_so_many() -> None:
    table = routes("/topics/{topic}")
    assert table.find("/topics/a") is table.find("/topics/a")
    for at in range(2 * PATHS_REMEMBERED):
        assert found(table, f"/topics/{at}") == ("/topics/{topic}", (str(at),))
        assert table.find(f"/nothing/at/{at}") is None
        assert table.remembered <= PATHS_REMEMBERED


def test_a_path_of_many_segments_is_looked_up_as_fast_as_any() -> None:
    table = routes("/a/{b...}/c", "/a/{b...}", "/a/{b...}/{c}/d", "/{a}/{b...}/e")
    path = "/a" + "/x" * 100_000
    assert found(table, path) == ("/a/{b...}", (path[3:],))


def test_a_template_is_the_path_without_marks() -> None:
    assert Route("GET", "/a/{b...}/{c}", nothing, "").template == "/a/{b}/{c}"
