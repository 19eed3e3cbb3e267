"""What the pages about jobs say is what the code has, and what they show runs.

Tables of fields, examples and commands in general are checked by `test_docs.py`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import re
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fairway.jobs.context import Context
from fairway.jobs.job import Status
from tests.support.postgres import postgres_url
from tests.test_docs import ENVIRONMENT, PAGES, ROOT, code_in, fields_of, label, load, tables

if TYPE_CHECKING:
    from pathlib import Path

    from tests.test_docs import Table

KNOBS = [
    "fairway.jobs.clockwork:FiringRecovery",
    "fairway.jobs.feeder:FeederConfig",
    "fairway.jobs.job:Limits",
    "fairway.jobs.kinds:Options",
    "fairway.jobs.kinds:Unique",
    "fairway.jobs.schedule:CatchupConfig",
    "fairway.jobs.upkeep:Upkeep",
    "fairway.jobs.worker:WorkerConfig",
]
TUTORIAL = ROOT / "docs/tutorial/first-job.md"
DIAGRAM = re.compile(r"<!-- moves: (\S+) -->\n+```mermaid\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^```sh\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)


def knobs() -> list[Table]:
    return [table for table in tables("fields") if table.subject in KNOBS]


def test_every_knob_has_its_table() -> None:
    assert sorted(table.subject for table in knobs()) == KNOBS


@pytest.mark.parametrize("table", knobs(), ids=label)
def test_every_default_is_shown_unless_it_is_a_configuration_of_its_own(table: Table) -> None:
    """That what is shown is right, and no field left out, is tested with all other tables."""
    fields = fields_of(load(table.subject))
    for name, cell in zip(table.column("field"), table.column("default"), strict=True):
        default = fields[code_in(name)]
        composed = default is dataclasses.MISSING or dataclasses.is_dataclass(default)
        assert bool(cell) != composed, f"{table.subject}.{name}"


@pytest.mark.parametrize(
    "table", [table for table in knobs() if "option" in table.columns], ids=label
)
def test_options_of_the_worker_have_the_defaults_of_their_fields(table: Table) -> None:
    from fairway.cli.remote import DURATION
    from fairway.cli.worker import worker

    options = {name: option for option in worker.params for name in option.opts}
    fields = fields_of(load(table.subject))
    for name, cell in zip(table.column("field"), table.column("option"), strict=True):
        for shown in re.findall(r"`(--[\w-]+)", cell):
            option = options[shown]
            if shown != "--queue":
                value = option.type_cast_value(None, option.default)  # type: ignore[arg-type]
                # The option is told in milliseconds, the field kept in nanoseconds.
                scale = 1_000_000 if option.type is DURATION else 1
                assert value * scale == fields[code_in(name)], shown


def diagrams() -> list[tuple[str, str]]:
    return [found for page in PAGES for found in DIAGRAM.findall(page.read_text(encoding="utf-8"))]


def hooks() -> Any:
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs/hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_the_tests_that_a_page_names_are_there(page: Path) -> None:
    assert not hooks().missing_tests(page.read_text(encoding="utf-8"))


def test_diagrams_are_drawn_from_the_tables_of_moves() -> None:
    drawn = diagrams()
    subjects = {subject for subject, _ in drawn}
    assert subjects == {"fairway.jobs.moves:MOVES", "fairway.jobs.workflow:MOVES"}
    for subject, shown in drawn:
        assert shown.rstrip() == hooks().diagram(load(subject)), subject


def test_the_page_lists_every_status() -> None:
    (table,) = tables("statuses")
    assert [code_in(cell) for cell in table.column("status")] == [one.word for one in Status]


def test_the_page_lists_every_outcome_with_its_parameters() -> None:
    (table,) = tables("outcomes")
    shown = dict(
        re.fullmatch(r"ctx\.(\w+)\((.*)\)", code_in(cell)).groups()  # type: ignore[union-attr]
        for cell in table.column("outcome")
    )
    found = {}
    for name, method in vars(Context).items():
        if inspect.isfunction(method) and "outcome." in str(method.__annotations__.get("return")):
            _, *parameters = inspect.signature(method).parameters.values()
            stars = ["*" * (one.kind is one.VAR_POSITIONAL) for one in parameters]
            given = [f"{star}{one.name}" for star, one in zip(stars, parameters, strict=True)]
            found[name] = ", ".join(given)
    assert shown == found


def test_the_page_names_every_rule_and_every_way_to_compare() -> None:
    from fairway.jobs import rules

    page = (ROOT / "docs/how-to/workflows.md").read_text(encoding="utf-8")
    known = ["always", "success", "failed", "skipped", "context", "all_of", "any_of", "none_of"]
    for name in known:
        assert callable(getattr(rules, name))
        assert f"`{name}(" in page, name
    for way in rules.OPS:
        assert f"`{way}`" in page, way


def test_the_tutorial_shows_what_its_programs_print(tmp_path: Path) -> None:
    blocks = SHOWN.findall(TUTORIAL.read_text(encoding="utf-8"))
    ran = 0
    for commands, shown in blocks:
        if (found := re.fullmatch(r"python (\w+\.py)\n", commands)) is not None:
            done = subprocess.run(
                [sys.executable, str(ROOT / "examples" / found[1])],
                cwd=_empty(tmp_path / found[1]),
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                timeout=60,
                check=True,
            )
            assert done.stdout == shown
            ran += 1
    assert ran == 2


def test_the_worker_of_the_tutorial_works(tmp_path: Path) -> None:
    """It starts as shown, runs what another process enqueued, and stops when told to."""
    blocks = dict(SHOWN.findall(TUTORIAL.read_text(encoding="utf-8")))
    shown = blocks["fairway worker first_job:app\n"]
    shutil.copy(ROOT / "examples/first_job.py", tmp_path)
    enqueue = (
        "import asyncio\n"
        "from first_job import total\n"
        "from fairway.jobs.engine import Jobs, Kinds\n"
        "from fairway.jobs.part import store_at\n"
        "async def main():\n"
        "    store = store_at('fairway-data')\n"
        "    await store.open()\n"
        "    jobs = Jobs(store, Kinds())\n"
        "    (job,) = await jobs.enqueue([total.order(prices=[1, 2]).job])\n"
        "    print(await jobs.result(job.id, 30))\n"
        "    await store.aclose()\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-m", "fairway", "worker", "first_job:app"]
    where: dict[str, Any] = {"cwd": tmp_path, "env": ENVIRONMENT, "text": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, **where) as worker:
        assert worker.stdout is not None
        try:
            assert worker.stdout.readline() == shown
            found = subprocess.check_output([sys.executable, "-c", enqueue], timeout=60, **where)
            assert found == "3\n"
        finally:
            worker.send_signal(signal.SIGINT)
            assert worker.wait(timeout=30) == 0


def test_transactions_of_postgresql_run(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples/transactions.py"), postgres_url()],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )


def test_settings_of_a_pooler_name_every_startup_parameter() -> None:
    """What connections ask for is what a pooler has to let pass."""
    page = (ROOT / "docs/how-to/deploy-workers.md").read_text(encoding="utf-8")
    found = re.search(r"^ignore_startup_parameters = (.*)$", page, re.MULTILINE)
    assert found is not None
    from fairway.jobs.stores.postgres import PostgresStore

    store = PostgresStore("postgresql://nowhere/none")
    asked = {*store._connections._settings, *store._relaxed._settings} - {"application_name"}
    heartbeat = inspect.getsource(sys.modules["fairway.jobs.stores.postgres.heartbeat"])
    asked |= {"options", *re.findall(r"-c (\w+)=", heartbeat)}
    assert set(found[1].split(", ")) == asked


def _empty(directory: Path) -> Path:
    directory.mkdir()
    return directory
