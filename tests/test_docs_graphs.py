"""What the pages about graphs say is what the code has, and what they show runs.

Tables of fields and constants, examples and commands in general are checked by `test_docs.py`.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import signal
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairway.core.backoff import BackoffConfig
from fairway.graphs import criteria
from fairway.graphs.context import FiringContext
from fairway.graphs.metrics import HELP
from tests.test_docs import (
    ADDRESS,
    ENVIRONMENT,
    PAGES,
    ROOT,
    SHELL,
    answer_of,
    code_in,
    label,
    load,
    pattern_of,
    tables,
)
from tests.test_docs_jobs import SHOWN, hooks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.test_docs import Table

DIAGRAM = re.compile(r"<!-- states: (\S+) -->\n+```mermaid\n(.*?)^```", re.MULTILINE | re.DOTALL)
OPTIONS = [
    "fairway.graphs.feeds.kafka:kafka",
    "fairway.graphs.feeds.poll:poll",
    "fairway.graphs.feeds.topic:topic",
    "fairway.graphs.graph:Graph",
    "fairway.graphs.node:node_of",
    "fairway.graphs.source:Source",
]
NOT_OPTIONS = {"fairway.graphs.node:node_of": {"function", "scope"}}
"""What a declaration is given by others than its author."""
OF_THE_REACTOR = {"effects", "states", "writes"}
"""What a firing holds for those who run it."""
PROGRAMS = ["first_graph.py", "graph_sequential.py"]
SERVED = ["docs/tutorial/first-graph.md", "docs/how-to/steer-a-graph.md"]


# Tables


def test_every_declaration_has_its_table() -> None:
    assert sorted(table.subject for table in tables("options")) == OPTIONS


@pytest.mark.parametrize("table", tables("options"), ids=label)
def test_a_table_of_options_is_the_signature(table: Table) -> None:
    found = dict(inspect.signature(load(table.subject)).parameters)
    for name in NOT_OPTIONS.get(table.subject, ()):
        del found[name]
    names = [code_in(cell) for cell in table.column(table.columns[0])]
    assert names == list(found)
    for name, cell in zip(names, table.column("default"), strict=True):
        default = found[name].default
        if cell:
            # As JSON has it: an empty tuple is shown as an empty list.
            shown = msgspec.json.decode(code_in(cell))
            assert shown == msgspec.json.decode(msgspec.json.encode(default)), name
        else:
            composed = default is inspect.Parameter.empty or not isinstance(
                default, str | int | float | tuple | None
            )
            assert composed, f"{name} has the default {default!r}, and the page does not say so"


@pytest.mark.parametrize("table", tables("meanings"), ids=label)
def test_the_page_lists_every_state(table: Table) -> None:
    assert [code_in(cell) for cell in table.column("state")] == [
        one.value for one in load(table.subject)
    ]


def test_diagrams_are_drawn_from_the_tables_of_moves() -> None:
    drawn = [each for page in PAGES for each in DIAGRAM.findall(page.read_text(encoding="utf-8"))]
    assert {subject for subject, _ in drawn} == {
        "fairway.graphs.health:SOURCE_MOVES",
        "fairway.graphs.health:REACTOR_MOVES",
    }
    for subject, shown in drawn:
        assert shown.rstrip() == hooks().diagram(load(subject)), subject


def test_the_page_lists_every_criterion_with_its_parameters() -> None:
    (table,) = tables("criteria")
    found = {
        f"{name}({', '.join(_parameters(function))})"
        for name, function in vars(criteria).items()
        if inspect.isfunction(function) and not name.startswith("_") and name != "dataclass"
        if function.__module__ == criteria.__name__
    }
    assert {code_in(cell) for cell in table.column("criterion")} == found


def test_the_page_lists_everything_that_a_firing_offers() -> None:
    (table,) = tables("firing")
    methods = {
        f"{name}({', '.join(_parameters(method)[1:])})"
        for name, method in vars(FiringContext).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }
    shown = {code_in(cell) for cell in table.column(table.columns[0])}
    assert shown == methods | set(FiringContext.__slots__) - OF_THE_REACTOR


def _parameters(function: Any) -> list[str]:
    found = inspect.signature(function).parameters.values()
    return ["*" * (one.kind is one.VAR_POSITIONAL) + one.name for one in found]


def test_waits_are_those_of_the_code() -> None:
    (table,) = tables("backoffs")
    plain = BackoffConfig()
    for row in table.rows:
        _, first, longest, less, tries, forgotten, constant = row
        module, name = code_in(constant).rsplit(".", 1)
        found: BackoffConfig = getattr(import_module(f"fairway.{module}"), name)
        assert (_ns(first), _ns(longest), float(less)) == (
            found.base_ns,
            found.cap_ns,
            found.jitter,
        ), name
        assert (int(tries) if tries else None) == found.attempts_max, name
        assert (_ns(forgotten) if forgotten else plain.reset_after_ns) == found.reset_after_ns, name


def _ns(cell: str) -> int:
    number, unit, *_ = cell.split()
    assert unit == "s"
    return round(float(number) * 1e9)


def test_the_page_lists_every_metric_of_graphs() -> None:
    (table,) = tables("graph_metrics")
    found = {
        (name + "_total" if kind == "counter" else name, kind) for name, (kind, _) in HELP.items()
    }
    series, kinds = table.column("series"), table.column("kind")
    shown = [(code_in(name), kind.split(",")[0]) for name, kind in zip(series, kinds, strict=True)]
    assert len(shown) == len(set(shown))
    assert set(shown) == found


# What is shown


def programs() -> Iterator[tuple[str, str]]:
    """A program of a page about graphs, and what the page says that it prints."""
    for name in ("docs/tutorial/first-graph.md", "docs/how-to/see-every-event.md"):
        for commands, shown in SHOWN.findall((ROOT / name).read_text(encoding="utf-8")):
            if (found := re.fullmatch(r"python (\w+\.py)\n", commands)) is not None:
                yield found[1], shown


@pytest.mark.parametrize(("program", "shown"), list(programs()))
def test_programs_print_what_the_page_shows(program: str, shown: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / program)],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == shown


def test_there_is_a_program_on_each_of_these_pages() -> None:
    assert [program for program, _ in programs()] == PROGRAMS


def test_slow_nodes_say_what_the_page_shows(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/slow-nodes.md").read_text(encoding="utf-8")
    shown = "".join(re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/slow_nodes.py")],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    pattern = re.escape(shown).replace(r"601\ ms", r"\d+\ ms")
    assert re.fullmatch(pattern, done.stdout), done.stdout


@contextlib.contextmanager
def served(cwd: Path) -> Iterator[str]:
    """The address of a server that runs the graph of the tutorial."""
    command = [sys.executable, "-m", "fairway", "serve", "--port", "0", "first_graph:app"]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT / "examples")}
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1].removeprefix("http://")
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 0


@pytest.mark.parametrize("name", SERVED)
def test_commands_of_a_page_work_against_the_app_of_the_tutorial(name: str, tmp_path: Path) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    blocks = [block for block in SHELL.finditer(page) if ADDRESS in block["commands"]]
    assert blocks
    with served(tmp_path) as address:
        for block in blocks:
            commands = block["commands"].replace(ADDRESS, address)
            answer = answer_of(commands, None, tmp_path).strip()
            if block["answer"] is None:
                assert '{"error":' not in answer, f"{commands}\n{answer}"
            else:
                assert re.fullmatch(pattern_of(block["answer"]), answer, re.DOTALL), (
                    f"{commands}\nshown:\n{block['answer']}\nfound:\n{answer}"
                )


def test_the_market_can_be_stopped_and_goes_on_where_it_was(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "examples/market.py"), "--data", "market"]
    options: dict[str, Any] = {"cwd": tmp_path, "env": ENVIRONMENT, "text": True}
    first = subprocess.check_output([*command, "--seconds", "1"], timeout=60, **options)
    fired = re.search(r"^([\d,]+) firings in", first, re.MULTILINE)
    assert fired is not None, first
    with subprocess.Popen([*command, "--forever"], stdout=subprocess.PIPE, **options) as process:
        assert process.stdout is not None
        before = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(timeout=60) == 0, rest
    kept = int(before.split()[-1].replace(",", ""))
    assert kept >= int(fired[1].replace(",", "")) > 0
    assert "orders are in the topic" in rest
