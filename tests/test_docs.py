"""What the documentation shows runs, and what it lists is what the code has.

Every example is run, the README's Python as pasted, and each `sh` block that calls a server against
a real one. A table behind `<!-- fields: module:Class -->` and its kin is compared with the code.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?:python|py)\b.*?\n(.*?)^```", re.MULTILINE | re.DOTALL)
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("FAIRWAY_")},
    # Where `fairway` is, though the environment of the tests may not be activated.
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": "",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# Python


def snippets(page: Path) -> list[str]:
    return FENCE.findall(page.read_text(encoding="utf-8"))


def run(script: Path, cwd: Path) -> None:
    """Run `script` as a reader would, in an empty directory and with warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=cwd,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    run(example, tmp_path)


def test_readme_snippets_run_as_pasted(tmp_path: Path) -> None:
    pasted = snippets(ROOT / "README.md")
    assert pasted, "the README opens with an example that runs"
    for number, snippet in enumerate(pasted):
        script = tmp_path / f"snippet_{number}.py"
        script.write_text(snippet, encoding="utf-8")
        run(script, tmp_path)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_python_in_a_page_is_included_from_examples(page: Path) -> None:
    for snippet in snippets(page):
        assert re.fullmatch(r'\s*--8<-- "examples/[\w/.:-]+"\s*', snippet), (
            f"{page.relative_to(ROOT)} holds Python that no test runs:\n{snippet}"
        )


# The shell

SHELL = re.compile(
    r"(?P<not_run><!-- not run[^>]*-->\n+)?"
    r"^```sh\n(?P<commands>.*?)^```\n"
    r"(?:\n```text\n(?P<answer>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
ADDRESS = "127.0.0.1:4000"


class Block(NamedTuple):
    """Commands of a page, and the answer it shows below them, if it does."""

    commands: str
    answer: str | None


def shell_blocks(page: Path) -> list[Block]:
    """What a reader can paste while a server runs, in order."""
    found = SHELL.finditer(page.read_text(encoding="utf-8"))
    return [
        Block(block["commands"], block["answer"])
        for block in found
        if ADDRESS in block["commands"] and not block["not_run"]
    ]


@contextmanager
def server(data: Path) -> Iterator[str]:
    """The address of a running `fairway serve`."""
    command = [sys.executable, "-m", "fairway", "serve", "--port", "0", "--data", str(data)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1].removeprefix("http://")
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 0, "a stop is no failure"


def answer_of(commands: str, lines: int | None, cwd: Path) -> str:
    """What commands print: all of it, or so many lines if they go on for ever."""
    with subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as shell:
        assert shell.stdout is not None
        if lines is None:
            answer = shell.stdout.read()
            assert shell.wait(timeout=60) == 0, f"{commands}\n{answer}"
            return answer
        try:
            return "".join(shell.stdout.readline() for _ in range(lines))
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


def pattern_of(answer: str) -> str:
    """An answer as a page shows it: times and epochs differ, an ellipsis stands for anything."""
    pattern = re.escape(answer.strip()).replace("…", ".*?")
    pattern = re.sub(r"0{6}27654982\d\d", r"\\d{16}", pattern)
    pattern = re.sub(r"27654982\d\d", r"\\d{1,10}", pattern)
    return re.sub(r"\d{13}", r"\\d{13}", pattern)


SERVED = [page for page in PAGES if shell_blocks(page)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl on this machine")
@pytest.mark.parametrize("page", SERVED, ids=name_of)
def test_commands_of_a_page_work_as_pasted(page: Path, tmp_path: Path) -> None:
    with server(tmp_path / "data") as address:
        for commands, expected in shell_blocks(page):
            endless = "curl -N" in commands
            assert expected is not None or not endless, "nobody could tell when it is done"
            lines = expected.strip().count("\n") + 1 if expected and endless else None
            answer = answer_of(commands.replace(ADDRESS, address), lines, tmp_path).strip()
            if expected is None:
                assert '{"error":' not in answer, f"{commands}\n{answer}"
            else:
                assert re.fullmatch(pattern_of(expected), answer, re.DOTALL), (
                    f"{commands}\nshown:\n{expected}\nfound:\n{answer}"
                )


def test_the_readme_appends_and_watches() -> None:
    commands = "".join(block.commands for block in shell_blocks(ROOT / "README.md"))
    assert "curl -N" in commands
    assert "records" in commands


# Tables

TABLE = re.compile(
    r"<!-- (?P<kind>\w+)(?:: (?P<subject>\S+))? -->\n+(?P<rows>(?:\|.*\n)+)", re.MULTILINE
)


class Table(NamedTuple):
    page: Path
    kind: str
    subject: str
    columns: list[str]
    rows: list[list[str]]

    def column(self, name: str) -> list[str]:
        at = self.columns.index(name)
        return [row[at] for row in self.rows]


def cells(row: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


def tables(kind: str) -> list[Table]:
    found = []
    for page in PAGES:
        for match in TABLE.finditer(page.read_text(encoding="utf-8")):
            if match["kind"] == kind:
                columns, _, *rows = map(cells, match["rows"].splitlines())
                found.append(Table(page, kind, match["subject"] or "", columns, rows))
    return found


def label(table: Table) -> str:
    return f"{table.page.stem}-{table.subject.rpartition(':')[2]}"


def code_in(cell: str) -> str:
    found = re.match(r"`([^`]+)`", cell)
    assert found, f"{cell!r} begins with no code"
    return found[1]


def load(subject: str) -> Any:
    module, _, name = subject.partition(":")
    found = import_module(module)
    return getattr(found, name) if name else found


def fields_of(kind: Any) -> dict[str, Any]:
    """The fields of a message or a dataclass, and their defaults."""
    if dataclasses.is_dataclass(kind):
        return {field.name: field.default for field in dataclasses.fields(kind)}
    return {field.encode_name: field.default for field in msgspec.structs.fields(kind)}


@pytest.mark.parametrize("table", tables("fields"), ids=label)
def test_a_table_of_fields_is_what_the_code_has(table: Table) -> None:
    fields = fields_of(load(table.subject))
    named = [code_in(cell) for cell in table.column(table.columns[0])]
    assert sorted(named) == sorted(fields)
    if "default" in table.columns:
        shown = dict(zip(named, table.column("default"), strict=True))
        for name, cell in shown.items():
            default = fields[name]
            if isinstance(default, Enum):
                default = default.value
            elif isinstance(default, tuple):
                default = list(default)
            if cell and default not in (msgspec.NODEFAULT, msgspec.UNSET):
                assert default == msgspec.json.decode(code_in(cell)), name


def test_the_page_of_turns_shows_the_whole_budget_and_who_obeys_it() -> None:
    """Every field with its default; and the module that is named reads the field."""
    [table] = [one for one in tables("fields") if one.subject == "fairway.runtime.turn:TurnBudget"]
    assert table.page.stem == "turns"
    assert all(table.column("default"))
    for field, module in zip(table.column("field"), table.column("obeyed by"), strict=True):
        path = ROOT.joinpath("src", "fairway", *code_in(module).split(".")).with_suffix(".py")
        reads = rf"\bturn\.{code_in(field)}\b"
        assert re.search(reads, path.read_text(encoding="utf-8")), (field, module)


@pytest.mark.parametrize("table", tables("constants"), ids=label)
def test_a_table_of_limits_is_what_the_code_has(table: Table) -> None:
    """The first column names what is limited; `constant` names the constant of the value."""
    for value, constant in zip(table.column("value"), table.column("constant"), strict=True):
        module, name = code_in(constant).rsplit(".", 1)
        number = code_in(value).replace(",", "")
        number, _, unit = number.partition(" ")
        factor = {"": 1, "KiB": 1024, "MiB": 1024**2, "s": 10**9, "ms": 10**6}[unit]
        assert float(number) * factor == getattr(import_module(f"fairway.{module}"), name), constant


def test_the_page_lists_every_route() -> None:
    from fairway.server.fronts import FRONTS

    (table,) = tables("routes")
    shown = [tuple(code_in(cell).split(" ", 1)) for cell in table.column("route")]
    assert sorted(shown) == sorted((route.method, route.template) for route in FRONTS.routes.all)


def test_the_page_explains_every_query_parameter() -> None:
    from fairway.server.fronts import FRONTS

    known = {name for route in FRONTS.routes.all for name in route.parameters}
    shown = {code_in(cell) for table in tables("queries") for cell in table.column("query")}
    assert shown == known


def test_the_diagram_of_packages_is_what_is_imported() -> None:
    """`python -m tests.support.imports` draws it."""
    from tests.support.imports import diagram

    page = (ROOT / "docs/explanation/architecture.md").read_text()
    shown = page.partition("<!-- imports -->\n```mermaid\n")[2].partition("\n```")[0]
    assert shown == diagram()


def error_codes() -> set[tuple[str, str]]:
    """(status, code) of every error that a client of HTTP can meet."""
    from fairway.server.fronts.streams.answers import STATUS
    from fairway.server.http import problems, protocol

    found = {(str(status), code) for _, status, code in problems.TABLE if code is not None}
    found |= {(str(status), code) for code, status in problems.STATUS_OF_CODE.items()}
    found |= {(str(status), code) for status, code in STATUS.values()}
    for one in vars(protocol).values():
        if isinstance(one, protocol.HttpRefusal):
            found.add((str(one.status), one.code))
    for path in sorted((ROOT / "src/fairway").rglob("*.py")):
        if "client" in path.relative_to(ROOT).parts:
            continue
        text = path.read_text(encoding="utf-8")
        for status, code in re.findall(r'reply\(\s*(\d{3}),\s*"(\w+)"', text):
            found.add((status, code))
        for kind in re.findall(r'NotFound\("(\w+)"', text):
            found.add(("404", f"{kind}_not_found"))
        for error, code in re.findall(
            r'(InvalidRequest|Conflict)\((?:(?!raise).)*?code="(\w+)"', text, re.DOTALL
        ):
            plain = 400 if error == "InvalidRequest" else 409
            found.add((str(problems.STATUS_OF_CODE.get(code, plain)), code))
    return found


def test_the_page_lists_every_error_code() -> None:
    shown = {
        (status, code_in(code))
        for table in tables("errors")
        for status, code in zip(table.column("status"), table.column("code"), strict=True)
    }
    assert shown == error_codes()


def test_the_page_lists_every_setting() -> None:
    from fairway.cli.serve import serve
    from fairway.settings import _VARIABLES, PART_SETTINGS

    (table,) = tables("settings")
    variables = {code_in(cell) for cell in table.column("variable")}
    of_parts = {one.variable for one in PART_SETTINGS}
    assert variables == {variable for variable, _ in _VARIABLES.values()} | of_parts
    options = {code_in(cell).split()[0] for cell in table.column("option") if cell}
    assert options == {name for option in serve.params for name in option.opts if name[0] == "-"}


def test_the_page_lists_every_metric() -> None:
    """Counters are shown as Prometheus has them."""
    found = set()
    for path in sorted((ROOT / "src/fairway").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for kind, name in re.findall(r'(counter|gauge|histogram)\(\s*"(fairway_\w+)"', text):
            found.add(name + "_total" if kind == "counter" else name)
    shown = {code_in(cell) for table in tables("metrics") for cell in table.column("series")}
    assert {name for name in found if not name.startswith("fairway_log_")} <= shown
    assert shown <= found


def test_the_page_shows_every_command() -> None:
    import click

    from fairway.cli import main

    def below(command: click.Command, words: str) -> Iterator[str]:
        yield words
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from below(found, f"{words} {name}".strip())

    page = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    shown = [words.strip() for words in re.findall(r"<!-- help:([\w ]*) -->", page)]
    assert sorted(shown) == sorted(below(main, ""))
