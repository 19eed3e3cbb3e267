"""`fairway graph` and `client.graphs` against a real server that watches a folder of graphs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from fairway.cli import main
from fairway.client import AsyncClient, Client, RetryConfig
from fairway.errors import Conflict, InvalidRequest, NotFound, Throttled
from fairway.wire.graphs import FiringsEvent, GraphStateView
from tests.support.graphs_served import graphs_process
from tests.support.server import ROOT
from tests.support.terminal import on_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

QUOTE = '{"bid": 1.0, "ask": 3.0}'
LATE = """
from fairway.graphs.graph import Graph
from fairway.graphs.source import Source

late = Graph("late", when=Source("numbers", int))

@late.node
def times(numbers: int) -> int:
    return numbers * {factor}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    (folder / "late_file.py").write_text(LATE.format(factor=2))
    return folder


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[str]:
    with graphs_process(tmp_path_factory.mktemp("served"), "--graphs", str(folder)) as made:
        yield made


def fairway(url: str, *words: str, input: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["graph", *words], env={"FAIRWAY_URL": url}, input=input)


def good(url: str, *words: str, input: str | None = None) -> str:
    result = fairway(url, *words, input=input)
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(url: str, *words: str) -> list[Any]:
    return [json.loads(line) for line in good(url, *words, "--json").splitlines()]


def test_graphs_are_listed_and_shown(url: str, tmp_path: Path) -> None:
    rows = [line.split("\t") for line in good(url, "ls").splitlines()]
    assert ["both", "", "live", "0", "0", "2", "1", ""] in rows
    assert ["shared", "acme"] in [row[:2] for row in rows]
    assert [one["graph"] for one in as_json(url, "ls", "--tenant", "acme")] == ["shared"]
    good(url, "push", "pricing", "quotes", QUOTE)
    shown = good(url, "show", "pricing")
    assert re.match(r"pricing: live, firing \d+, 0 failures\nfires on quotes, with", shown)
    assert re.search(r"\(quotes\) +passthrough +socket_only +\d+ events?", shown)
    assert re.search(r"\(rates\) +passthrough, input only", shown)
    assert re.search(r"\[mid\] +<- quotes +\d+ runs?, [\d,]+ µs each\n", shown)
    assert re.search(r"\[\[signal\]\] +<- mid, rates\? +\d+ runs?", shown)
    assert good(url, "show", "pricing", "--mermaid").startswith("flowchart LR\n")
    picture = tmp_path / "pricing.svg"
    good(url, "show", "pricing", "--svg", str(picture))
    assert picture.read_text(encoding="utf-8").startswith("<svg ")
    assert "pricing" in on_terminal(url, "graph", "ls")


def test_push_fire_pause_resume_and_state(url: str) -> None:
    assert good(url, "push", "both", "left", "1") == "1 accepted by left of both\n"
    said = good(url, "fire", "both")
    assert re.match(r"firing \d+ \(forced\) took [\d,]+ µs\nno node had all that it takes", said)
    fired = good(url, "fire", "both", "--with", '{"left": 2, "right": 3}')
    assert "(injected)" in fired
    assert fired.endswith("added: 5\n")
    number = int(fired.split()[1])
    assert good(url, "pause", "both") == f"both is paused after firing {number}\n"
    for source in ("left", "right"):
        good(url, "push", "both", source, "7")
    facts = dict(line.split("\t") for line in good(url, "state", "both").splitlines())
    assert (facts["state"], facts["firing"]) == ("live (paused)", str(number))
    assert (facts["news of"], facts["cache.left"]) == ("left, right", "7")
    assert good(url, "resume", "both") == f"both goes on; firing {number + 1} was its last\n"
    (state,) = as_json(url, "state", "both")
    assert (state["paused"], state["cache"]) == (False, {"left": 7, "right": 7})
    assert "cache.left" not in good(url, "state", "both", "--no-cache")
    listed = good(url, "firings", "both", "--limit", "2").splitlines()
    assert listed[0].split("\t")[-1] == '{"added":14}'
    lines = "\n".join(str(n) for n in range(2500))
    assert good(url, "push", "both", "left", "-", input=lines).startswith("2,500 accepted")


def test_dead_letters_and_recoveries(url: str) -> None:
    good(url, "push", "fragile", "quotes", '{"bid": -1, "ask": 0}')
    (line,) = good(url, "dead", "fragile").splitlines()
    _, _, source, reason, data = line.split("\t")
    assert (source, data) == ("(firing)", '{"quotes":{"bid":-1.0,"ask":0.0}}')
    assert "below zero" in reason
    (letter,) = as_json(url, "dead", "fragile")
    assert letter["data"]["quotes"]["base64"]
    quiet = fairway(url, "recoveries", "fragile")
    assert (quiet.exit_code, quiet.stdout) == (0, "")
    assert "no recoveries" in quiet.stderr
    assert good(url, "restart", "fragile") == "fragile is live\n"


def test_what_is_wrong_is_said_in_a_line(url: str) -> None:
    for words, code, said in (
        (["show", "none"], 1, "there is no graph 'none'"),
        (["show", "shared"], 1, "'acme', 'globex'; say which with --tenant"),
        (["push", "both", "left", "x"], 2, "DATA is no JSON"),
        (["push", "both", "left", ""], 2, "DATA is no JSON"),
        (["push", "both", "left", '"\udcff"'], 2, "DATA is no JSON"),
        (["push", "both", "left", "[" * 20_000], 2, "DATA is no JSON"),
        (["push", "both", "left", '"x"'], 1, "Expected `int`, got `str`"),
        (["push", "both", "none", "1"], 1, "there is no source 'none'"),
        (["fire", "both", "--with", "[]"], 2, "a JSON object by source"),
        (["fire", "both", "--with", "\udcff"], 2, "a JSON object by source"),
        (["fire", "both", "--with", "[" * 20_000], 2, "a JSON object by source"),
        (["show", "both", "--svg", "/no/such/folder/both.svg"], 1, "No such file"),
        (["fire", "fragile", "--with", '{"quotes": {"bid": -1, "ask": 0}}'], 1, "below zero"),
        (["load", "nowhere:x"], 1, "there is no module 'nowhere'"),
        (["unload", "none"], 1, "there is no graph 'none'"),
    ):
        result = fairway(url, *words)
        assert result.exit_code == code, (words, result.output)
        assert said in result.stderr, (words, result.stderr)
        assert "Traceback" not in result.stderr
    result = fairway(url, "push", "both", "left", "-", input=b"1\n\xff\n")
    assert result.exit_code == 2, result.output
    assert "line 2 is no JSON" in result.stderr


def test_a_graph_of_a_folder_is_unloaded_loaded_and_follows_its_file(
    url: str, folder: Path
) -> None:
    good(url, "push", "late", "numbers", "4")
    (fired,) = as_json(url, "firings", "late", "--limit", "1")
    assert fired["outputs"] == {"times": 8}
    assert good(url, "unload", "late") == "late is unloaded\n"
    assert fairway(url, "show", "late").exit_code == 1
    assert good(url, "load", "late_file:late") == "late is live\n"
    assert "loaded already" in fairway(url, "load", "late_file:late").stderr
    good(url, "unload", "late")  # it came by command, so the folder would not take its place
    with Client(url) as client:
        before = {one.graph for one in client.graphs.list()}
        assert "late" not in before
        (folder / "late_file.py").write_text(LATE.format(factor=5))
        while "late" not in {one.graph for one in client.graphs.list()}:
            pass
        assert client.graphs.fire("late", {"numbers": 3}).outputs == {"times": 15}


def test_state_is_followed_until_ctrl_c(url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "fairway", "graph", "state", "pricing", "--follow"],
        cwd=ROOT,
        env={**os.environ, "FAIRWAY_URL": url, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "pricing is live\n"
        good(url, "push", "pricing", "quotes", QUOTE)
        assert re.match(r"firing \d+ \(news; quotes\) [\d,]+ µs\n", child.stdout.readline())
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 130


# The clients


def test_the_client_does_what_the_commands_do(url: str) -> None:
    with Client(url, retry=RetryConfig(deadline_ns=1)) as client:
        graphs = client.graphs
        assert graphs.get("orders").inputs == "sequential"
        assert graphs.pause("orders").paused
        with pytest.raises(Throttled, match="4 of 6 were accepted, and then"):
            graphs.push("orders", "orders", *({"id": n} for n in range(6)), wait_s=0)
        with pytest.raises(Throttled):
            graphs.push("orders", "orders", {"id": 9}, wait_s=0)
        with pytest.raises(InvalidRequest):
            graphs.push("orders", "orders", {"id": "x"})
        with pytest.raises(InvalidRequest, match="nothing to push"):
            graphs.push("orders", "orders")
        assert graphs.fire("orders").outputs == {"done": 0}
        assert graphs.resume("orders").firing == 4
        assert graphs.state("orders").sources[0].refused == 2
        assert [one.outputs["done"] for one in graphs.firings("orders")] == [3, 2, 1, 0]
        assert [one.command for one in graphs.audit("orders")] == ["resume", "force_fire", "pause"]
        with pytest.raises(NotFound):
            graphs.dead("none")
        with pytest.raises(Conflict) as failed:
            graphs.fire("fragile", {"quotes": {"bid": -1, "ask": 0}})
        assert failed.value.code == "firing_failed"
        assert graphs.svg("orders").startswith("<svg ")


def test_the_async_client_watches(url: str) -> None:
    async def scenario() -> None:
        async with AsyncClient(url) as client:
            news = client.graphs.watch("shared", tenant="acme", every_ms=50)
            first = await anext(news)
            assert isinstance(first, GraphStateView)
            quote = {"bid": 1, "ask": 2}
            assert await client.graphs.push("shared", "quotes", quote, tenant="acme") == 1
            told = await anext(news)
            assert isinstance(told, FiringsEvent)
            assert [one.firing for one in told.firings] == [first.firing + 1]
            after = await anext(news)
            assert isinstance(after, GraphStateView)
            assert after.cache == {"quotes": {"bid": 1.0, "ask": 2.0}}
            (globex,) = await client.graphs.list(tenant="globex")
            assert globex.fired == 0

    asyncio.run(scenario())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["--help"], ["graph", "ls"], ["graph", "ls", "--json"]])
def test_output_that_cannot_be_written_is_told_in_a_line(
    url: str, words: list[str], unbuffered: str
) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fairway", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "FAIRWAY_URL": url, "PYTHONUNBUFFERED": unbuffered},
            cwd=ROOT,
            text=True,
            check=False,
        )
    assert done.stderr == "Error: the output cannot be written: No space left on device\n"
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "\udcff"], "is no text that can be sent"),
        (["ls", "--tenant", "\udcff"], "is no text that can be sent"),
        (["push", "both", "\udcff", "1"], "is no text that can be sent"),
        (["show", ""], "'' names neither a graph nor a source"),
        (["push", "both", "..", "1"], "'..' names neither a graph nor a source"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused_in_a_line(
    url: str, words: list[str], said: str
) -> None:
    result = fairway(url, *words)
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_push_waits_no_longer_than_the_server_lets_it(url: str) -> None:
    good(url, "push", "pricing", "quotes", QUOTE, "--wait", "99999999999999d")
    with Client(url) as client:
        assert client.graphs.push("pricing", "quotes", json.loads(QUOTE), wait_s=float("inf")) == 1
        for wrong in (float("nan"), -1, "5", True):
            with pytest.raises(InvalidRequest, match="wait_s is a number of seconds"):
                client.graphs.push("pricing", "quotes", {}, wait_s=wrong)  # type: ignore[arg-type]
