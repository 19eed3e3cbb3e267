"""`fairway graph replay`: a graph of this machine over what a server recorded, or over a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from fairway.cli import main
from fairway.client import Client
from tests.support.graphs_served import graphs_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

VERSIONS = """
import msgspec
from fairway import Graph, Source

class Quote(msgspec.Struct):
    bid: float
    ask: float

def make(factor):
    graph = Graph("kept", when=Source("quotes", Quote))

    def spread(quotes: Quote) -> float:
        return (quotes.ask - quotes.bid) * factor

    graph.add(spread)
    return graph

same, changed, undefined = make(1), make(2), make(float("nan"))
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with graphs_process(tmp_path_factory.mktemp("replayed")) as made:
        with Client(made) as client:
            for at in range(5):
                client.graphs.push("kept", "quotes", {"bid": 1.0, "ask": 2.0 + at})
                client.topic("quotes").append({"bid": 1.0, "ask": 3.0 + at})
        yield made


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"versions_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(VERSIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def replay(url: str, *words: str) -> Result:
    return CliRunner().invoke(main, ["graph", "replay", *words], env={"FAIRWAY_URL": url})


def test_the_same_code_gives_what_was_recorded(url: str, modules: str) -> None:
    result = replay(url, f"{modules}:same", "--journal", "kept")
    assert result.exit_code == 0, result.output
    assert "5 firings" in result.stderr
    assert "all the same" in result.stderr
    assert not result.stdout


def test_other_code_is_told_by_its_differences(url: str, modules: str) -> None:
    result = replay(url, f"{modules}:changed", "--journal", "kept")
    assert result.exit_code == 1
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["firing"] for line in lines] == [1, 2, 3, 4, 5]
    assert lines[1] == {
        "firing": 2,
        "inputs": {"quotes": {"bid": 1.0, "ask": 3.0}},
        "before": {"spread": 2.0},
        "after": {"spread": 4.0},
    }
    assert "5 differ, 0 failed" in result.stderr


def test_an_output_that_json_has_no_number_for_is_shown_as_text(url: str, modules: str) -> None:
    result = replay(url, f"{modules}:undefined", "--journal", "kept")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["after"] for line in lines] == [{"spread": "nan"}] * 5
    against = ("--against", f"{modules}:undefined")
    result = replay(url, f"{modules}:undefined", "--journal", "kept", *against)
    assert result.exit_code == 0, "nan is the same as nan"


def test_two_versions_are_compared_over_a_topic_and_a_file(
    url: str, modules: str, tmp_path: Path
) -> None:
    against = ("--against", f"{modules}:changed")
    result = replay(
        url, f"{modules}:same", "--topic", "quotes", "--from", "2", "--to", "4", *against
    )
    assert result.exit_code == 1
    found = [json.loads(line)["after"]["spread"] for line in result.stdout.splitlines()]
    assert found == [8.0, 10.0]
    assert replay(url, f"{modules}:same", "--topic", "quotes").exit_code == 0

    file = tmp_path / "events.jsonl"
    file.write_text('{"source": "quotes", "data": {"bid": 1, "ask": 2}}\n')
    result = replay(url, f"{modules}:same", "--file", str(file), "--outputs")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"firing": 1, "outputs": {"spread": 1.0}}
    file.write_text("nonsense\n")
    result = replay(url, f"{modules}:same", "--file", str(file))
    assert result.exit_code == 1
    assert "line 1:" in result.stderr


def test_what_is_wrong_is_said(url: str, modules: str) -> None:
    assert "one of --journal" in replay(url, f"{modules}:same").stderr
    assert "has no 'other'" in replay(url, f"{modules}:other", "--journal", "kept").stderr
    refused = replay(url, f"{modules}:same", "--journal", "pricing")
    assert refused.exit_code == 1
    assert "not checkpointed" in refused.stderr


def test_a_file_that_fails_while_it_is_read_is_one_line(url: str, modules: str) -> None:
    result = replay(url, f"{modules}:same", "--file", "/proc/self/mem")
    assert result.exit_code == 1, result.output
    assert result.stderr == "Error: /proc/self/mem cannot be read: Input/output error\n"
