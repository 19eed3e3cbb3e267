"""The repository keeps its house rules, and each rule finds the violations planted for it here.

The second half is what makes the first worth something: a rule that went blind fails as well.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.tidy import (
    RULES,
    Rule,
    arrows_point_down,
    core_is_pure,
    docs_name_tests_that_exist,
    environment_is_read_in_settings,
    files_name_no_machine,
    locks_are_closed,
    names_say_something,
    no_test_sleeps,
    parsed,
    parts_of,
    product_is_finished,
    prose_wraps_at_one_width,
    public_class_names_are_unique,
    retired_words_stay_retired,
    rooms_know_no_part,
    stores_have_equal_file_names,
    tasks_start_in_a_group,
    the_log_is_behind_the_kernel,
    threads_belong_to_runtime,
    time_comes_from_the_clock,
    tracked,
    unit_tests_mirror_the_source,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.mark.structures import ParameterSet

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module", autouse=True)
def _forgotten() -> Iterator[None]:
    """Trees of the whole repository are large: the tests that come next are spared them."""
    yield
    parsed.cache_clear()


@pytest.mark.parametrize("check", RULES, ids=lambda check: check.__name__)
def test_repository_is_tidy(check: Rule) -> None:
    untidy = list(check(ROOT))
    assert not untidy, "\n" + "\n".join(untidy)


IMPURE_MODULES = [
    "apsw", "asyncio", "datetime", "io", "logging", "os", "pathlib", "random",
    "select", "signal", "socket", "sqlite3", "subprocess", "threading", "time",
]  # fmt: skip

PLANTED: dict[Rule, list[tuple[str, str]]] = {
    arrows_point_down: [
        ("src/fairway/core/a.py", "from fairway.runtime import clock"),
        ("src/fairway/core/a.py", "import fairway.errors"),
        ("src/fairway/runtime/a.py", "from ..storage.wal import Wal"),
        ("src/fairway/runtime/a.py", "from .. import storage"),
        ("src/fairway/storage/wals/a.py", "from ...topics import record"),
        ("src/fairway/storage/a.py", "def f():\n    from fairway import topics"),
        (
            "src/fairway/storage/a.py",
            "import importlib\nimportlib.import_module('fairway.replication.raft')",
        ),
        (
            "src/fairway/storage/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fairway.jobs import Job",
        ),
        ("src/fairway/jobs/a.py", "import fairway.topics.record"),
        ("src/fairway/topics/a.py", "from fairway import Fairway"),
        ("src/fairway/topics/a.py", "import fairway"),
        ("src/fairway/app.py", "from fairway.server import http"),
        ("src/fairway/server/a.py", "from fairway.testing import loop"),
        ("src/fairway/client/a.py", "from fairway.runtime import clock"),
        ("src/fairway/__init__.py", "from fairway.testing import loop"),
        ("src/fairway/wire/a.py", "from fairway.settings import Settings"),
        ("src/fairway/errors.py", "from fairway.core import lease"),
        ("src/fairway/misc/a.py", ""),
    ],
    the_log_is_behind_the_kernel: [
        ("src/fairway/jobs/a.py", "from fairway.storage.log import Log"),
        ("src/fairway/topics/a.py", "from fairway.storage import log"),
        ("src/fairway/parts.py", "import fairway.storage.log"),
        (
            "src/fairway/server/a.py",
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n"
            "    from fairway.storage.log import Log",
        ),
        ("src/fairway/server/a.py", "class A:\n    def f(self): self.app.log.expedite()"),
        ("src/fairway/cli/a.py", "def f(app): return app.log"),
    ],
    rooms_know_no_part: [
        ("src/fairway/server/http/a.py", "from fairway.topics.batch import encode_record"),
        (
            "src/fairway/server/access/a.py",
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n"
            "    from fairway.graphs.engine import Graphs",
        ),
        ("src/fairway/server/access/a.py", "from fairway.wire.graphs import AuditEntry"),
        ("src/fairway/server/http/a.py", "from fairway.wire import jobs"),
        ("src/fairway/server/http/a.py", "from fairway.server.fronts.topics import api"),
        ("src/fairway/server/http/a.py", "from ..fronts import FRONTS"),
        ("src/fairway/server/access/a.py", "from fairway.app import Fairway"),
    ],
    core_is_pure: [
        ("src/fairway/core/a.py", "from os.path import join"),
        (
            "src/fairway/core/a.py",
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n"
            "    pass\n"
            "else:\n"
            "    import random",
        ),
        ("src/fairway/core/a.py", "open('x')"),
        ("src/fairway/core/a.py", "print('x')"),
        ("src/fairway/core/a.py", "async def f(): ..."),
        *(("src/fairway/core/a.py", f"import {name}") for name in IMPURE_MODULES),
    ],
    tasks_start_in_a_group: [
        ("src/fairway/jobs/a.py", "import asyncio\nasyncio.create_task(f())"),
        ("src/fairway/jobs/a.py", "import asyncio\nasyncio.gather(f())"),
        ("src/fairway/jobs/a.py", "import asyncio as aio\naio.ensure_future(f())"),
        ("src/fairway/jobs/a.py", "from asyncio import gather as g\ng(f())"),
        ("src/fairway/jobs/a.py", "import asyncio\nasyncio.Task(f())"),
        ("src/fairway/runtime/a.py", "loop.create_task(f())"),
        ("src/fairway/runtime/a.py", "import asyncio\nasyncio.get_running_loop().create_task(f())"),
        ("src/fairway/runtime/a.py", "self._loop.create_task(f())"),
    ],
    threads_belong_to_runtime: [
        ("src/fairway/storage/a.py", "import signal"),
        ("src/fairway/storage/a.py", "import multiprocessing.pool"),
        ("src/fairway/storage/a.py", "from concurrent.futures import ThreadPoolExecutor"),
        ("src/fairway/storage/a.py", "import threading\nthreading.Thread(target=f)"),
        ("src/fairway/jobs/a.py", "from asyncio import to_thread\nto_thread(f)"),
        ("src/fairway/jobs/a.py", "loop.run_in_executor(None, f)"),
        ("src/fairway/jobs/a.py", "loop.add_signal_handler(2, f)"),
    ],
    time_comes_from_the_clock: [
        ("src/fairway/jobs/a.py", "import time\ntime.time()"),
        ("src/fairway/jobs/a.py", "import time as t\nread = t.monotonic_ns"),
        ("src/fairway/runtime/a.py", "from time import perf_counter as p\np()"),
        ("src/fairway/storage/a.py", "import time\ntime.sleep(delay)"),
        ("src/fairway/jobs/a.py", "from datetime import datetime\ndatetime.now()"),
        ("src/fairway/jobs/a.py", "import asyncio\nasyncio.get_running_loop().time()"),
    ],
    environment_is_read_in_settings: [
        ("src/fairway/cli/a.py", "import os\nos.environ['HOME']"),
        ("src/fairway/cli/a.py", "from os import getenv\ngetenv('HOME')"),
    ],
    names_say_something: [
        ("src/fairway/jobs/a.py", "class Scheduler: ..."),
        ("src/fairway/jobs/a.py", "class Manager: ..."),
        ("src/fairway/jobs/a.py", "class Handler: ..."),
        ("src/fairway/jobs/utils.py", ""),
        ("tests/helpers/__init__.py", ""),
    ],
    public_class_names_are_unique: [
        ("src/fairway/jobs/a.py", "class Job: ...\nclass Job: ..."),
    ],
    retired_words_stay_retired: [
        ("src/fairway/jobs/bury.py", ""),
        ("src/fairway/jobs/hands/__init__.py", ""),
        ("src/fairway/jobs/a.py", "class FrameHands: ..."),
        ("src/fairway/jobs/a.py", "class _Told: ..."),
        ("src/fairway/jobs/a.py", "def _bury_late(job): ..."),
        ("src/fairway/jobs/a.py", "async def press_on(): ..."),
        ("src/fairway/jobs/a.py", "def f(*, told=None): ..."),
        ("src/fairway/jobs/a.py", "f = lambda told: told"),
        ("src/fairway/jobs/a.py", "class A:\n    def f(self): self._told_of = 1"),
        ("src/fairway/jobs/a.py", "class A:\n    TOLD_MAX: int = 1"),
        ("src/fairway/jobs/a.py", "a, (b, TOLD) = 1, (2, 3)"),
    ],
    product_is_finished: [
        ("src/fairway/jobs/a.py", "# TODO later"),
        ("src/fairway/jobs/a.py", "# FIXME"),
        ("src/fairway/jobs/a.py", "'''XXX'''"),
        ("src/fairway/jobs/a.py", "raise NotImplementedError"),
        ("src/fairway/jobs/a.py", "raise NotImplementedError('later')"),
    ],
    no_test_sleeps: [
        ("tests/unit/test_a.py", "import time\ntime.sleep(0.1)"),
        ("tests/unit/test_a.py", "from time import sleep\nsleep(2 * 5)"),
        ("tests/unit/test_a.py", "import asyncio\nasyncio.sleep(0.1)"),
        ("tests/unit/test_a.py", "import time\nimport fairway.testing\ntime.sleep(1)"),
    ],
    unit_tests_mirror_the_source: [
        (
            "tests/unit/jobs/test_a.py",
            "from fairway.jobs.job import Job",
        ),  # there is no such folder
        ("tests/unit/test_a.py", "import fairway"),  # nor such a module
    ],
    stores_have_equal_file_names: [
        ("src/fairway/jobs/stores/sqlite/ledger.py", ""),
        ("src/fairway/jobs/stores/postgres/writer.py", ""),  # what the other one has alone
        ("src/fairway/jobs/stores/postgres/tables", ""),
    ],
    files_name_no_machine: [  # in pieces, or this file would be the first violation
        ("docs/a.md", "see /wor" + "k/main"),
        ("Makefile", "FIND_LINKS=/opt/pyp" + "i/simple"),
        ("docs/a.md", "cd /roo" + "t"),
        ("docs/a.md", "https://pypi.or" + "g/simple"),
    ],
    docs_name_tests_that_exist: [
        ("docs/a.md", "a refusal names its code (`test_that_was_renamed`)"),
    ],
    prose_wraps_at_one_width: [
        ("docs/a.md", "a word " * 20),
        ("CHANGELOG.md", "- " + "a word " * 20),
        ("docs/how-to/a.md", "```\n```\n1. " + "a word " * 20),
    ],
    locks_are_closed: [
        ("requirements/dev.txt", "apsw==3.54"),
        ("requirements/peers/a.txt", "--index" + "-url https://example.com\n"),
        ("requirements/dev.txt", "a @ file:///x --hash=sha256:0"),
    ],
}

INNOCENT: dict[Rule, list[tuple[str, str]]] = {
    the_log_is_behind_the_kernel: [
        ("src/fairway/kernel/a.py", "from fairway.storage.log import Log"),
        ("src/fairway/jobs/a.py", "from fairway.storage.partitions import Partitions"),
        ("src/fairway/server/a.py", "import logging\nclass A:\n    def f(self): self.app.logs"),
        ("src/fairway/testing/a.py", "def f(app): return app.log"),
    ],
    rooms_know_no_part: [
        ("src/fairway/server/http/a.py", "from fairway.wire.server import Health"),
        ("src/fairway/server/http/a.py", "from fairway.server.context import ServerContext"),
        ("src/fairway/server/fronts/jobs/a.py", "from fairway.jobs.engine import Jobs"),
        ("src/fairway/server/context.py", "from fairway.app import Fairway"),
    ],
    arrows_point_down: [
        ("src/fairway/storage/wals/a.py", "from ..wal import Wal\nimport os"),
        ("src/fairway/storage/__init__.py", "from .wal import Wal"),
        ("src/fairway/cli/a.py", "from fairway import errors\nimport fairway.core.ready"),
        ("src/fairway/testing/a.py", "from fairway.storage import wal\nimport fairway"),
        ("src/fairway/__init__.py", "from fairway.app import Fairway"),
    ],
    core_is_pure: [
        (
            "src/fairway/core/a.py",
            "import heapq\n"
            "from fairway.core.turns import Turns\n"
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n"
            "    from random import Random",
        ),
        ("src/fairway/runtime/a.py", "import asyncio\nasync def f(): ..."),
    ],
    tasks_start_in_a_group: [
        (
            "src/fairway/jobs/a.py",
            "import asyncio\n"
            "async def f():\n"
            "    async with asyncio.TaskGroup() as group:\n"
            "        group.create_task(g())",
        ),
        (
            "src/fairway/jobs/a.py",
            "class A:\n"
            "    def __init__(self, group: 'asyncio.TaskGroup') -> None:\n"
            "        self._group = group\n"
            "        group.create_task(g())",
        ),
        (
            "src/fairway/jobs/a.py",
            "class A:\n"
            "    _group: TaskGroup | None\n"
            "    def f(self):\n"
            "        self._group.create_task(g())",
        ),
        (
            "src/fairway/jobs/a.py",
            "import asyncio\nclass A(asyncio.Task[int]):\n    owner: asyncio.Task[None]",
        ),
    ],
    threads_belong_to_runtime: [
        ("src/fairway/storage/a.py", "import threading\nthreading.Lock()"),
        ("src/fairway/runtime/a.py", "import signal\nimport concurrent.futures"),
    ],
    time_comes_from_the_clock: [
        ("src/fairway/runtime/clock.py", "import time\ntime.monotonic_ns()"),
        ("src/fairway/jobs/a.py", "clock.time()\nself.monotonic()"),
    ],
    environment_is_read_in_settings: [
        ("src/fairway/settings.py", "import os\nos.environ['HOME']"),
    ],
    names_say_something: [
        ("src/fairway/jobs/a.py", "class JobScheduler: ..."),
    ],
    public_class_names_are_unique: [
        ("src/fairway/jobs/a.py", "class Job: ...\nclass Jobs:\n    class Job: ..."),
        ("src/fairway/jobs/a.py", "class _Job: ...\nclass _Job: ..."),
    ],
    retired_words_stay_retired: [
        ("src/fairway/jobs/a.py", "# whoever is told may bury it"),
        ("src/fairway/jobs/a.py", "def hand_over(toldest): ..."),  # other words
        ("src/fairway/jobs/a.py", "def press(on): ..."),  # apart
        ("src/fairway/jobs/a.py", "from library import bury\nbury(told=1)"),  # named by others
        ("src/fairway/jobs/a.py", "def f():\n    told = 1\n    return told"),  # nobody else's
        ("src/fairway/client/sync/a.py", "def bury(job): ..."),  # generated
        ("tests/test_a.py", "def bury(job): ..."),
    ],
    product_is_finished: [
        ("src/fairway/jobs/a.py", "class Unsupported(NotImplementedError): ..."),
        ("tests/test_a.py", "# TODO later"),
    ],
    no_test_sleeps: [
        ("tests/test_a.py", "import asyncio\nasyncio.sleep(0)"),
        ("tests/test_a.py", "import time\ntime.sleep(sync_seconds)"),
        ("tests/test_a.py", "import asyncio\nfrom fairway.testing import run\nasyncio.sleep(5)"),
    ],
    unit_tests_mirror_the_source: [
        ("tests/integration/test_a.py", "from fairway.jobs.job import Job"),
    ],
    stores_have_equal_file_names: [
        ("src/fairway/jobs/stores/sqlite/writer.py", ""),
        ("src/fairway/jobs/stores/sqlite/__init__.py", ""),
        ("src/fairway/jobs/stores/postgres/statements.sql", ""),
        ("src/fairway/jobs/stores/memory/ledger.py", ""),
    ],
    files_name_no_machine: [
        ("docs/a.md", "network/worker, src/work, /workflows, ./root"),
    ],
    docs_name_tests_that_exist: [
        ("docs/a.md", "run `python -m pytest tests/test_a.py`, or `tests/unit/test_a.py`"),
    ],
    prose_wraps_at_one_width: [
        ("docs/a.md", "| " + "a word " * 20 + "|"),
        ("docs/a.md", "```sh\n" + "a word " * 20 + "\n```"),
        ("docs/a.md", "- <https://example.com/" + "a" * 120 + ">"),
        ("README.md", "a word " * 15),
    ],
    locks_are_closed: [
        (
            "requirements/dev.txt",
            "# made by `make lock`\n"
            "apsw==3.54 \\\n"
            "    --hash=sha256:0\n"
            "    # via -r pyproject.toml",
        ),
    ],
}


def plant(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text + "\n")


def cases(table: dict[Rule, list[tuple[str, str]]]) -> list[ParameterSet]:
    return [
        pytest.param(check, path, text, id=f"{check.__name__}: {text or path}")
        for check, planted in table.items()
        for path, text in planted
    ]


@pytest.mark.parametrize(("check", "path", "text"), cases(PLANTED))
def test_planted_violation_is_found(tmp_path: Path, check: Rule, path: str, text: str) -> None:
    plant(tmp_path, path, text)
    complaints = list(check(tmp_path))
    assert complaints
    assert all(complaint.startswith(path) for complaint in complaints)


@pytest.mark.parametrize(("check", "path", "text"), cases(INNOCENT))
def test_innocent_code_is_left_alone(tmp_path: Path, check: Rule, path: str, text: str) -> None:
    plant(tmp_path, path, text)
    assert list(check(tmp_path)) == []


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("tests/unit/jobs/test_a.py", "from fairway.jobs.job import Job", False),
        ("tests/unit/jobs/test_a.py", "from fairway.jobs import job", False),
        ("tests/unit/jobs/test_a.py", "patch('fairway.jobs.job.claim')", False),
        ("tests/unit/jobs/test_a.py", "from fairway.jobs.stores.sql import Rows", True),
        ("tests/unit/jobs/test_a.py", "from fairway.settings import Quota", True),
        ("tests/unit/jobs/test_a.py", "", True),
        ("tests/unit/jobs/stores/test_a.py", "from fairway.jobs.stores.sql import Rows", False),
        ("tests/unit/jobs/stores/test_a.py", "from fairway.jobs import stores", False),
        ("tests/unit/jobs/stores/test_a.py", "from fairway.jobs.job import Job", True),
        ("tests/unit/jobs/stores/test_sql.py", "", False),
        ("tests/unit/jobs/stores/conftest.py", "", False),
        ("tests/unit/test_settings.py", "", False),
        ("tests/unit/test_init.py", "import fairway", False),
        ("tests/unit/test_job.py", "from fairway.jobs.job import Job", True),
    ],
)
def test_a_unit_test_in_the_wrong_folder_is_found(
    tmp_path: Path, path: str, text: str, found: bool
) -> None:
    for module in ("__init__", "settings", "jobs/job", "jobs/stores/sql"):
        plant(tmp_path, f"src/fairway/{module}.py", "")
    plant(tmp_path, path, text)
    assert [complaint.startswith(path) for complaint in unit_tests_mirror_the_source(tmp_path)] == (
        [True] if found else []
    )


def test_a_second_public_class_of_a_name_is_found_wherever_it_is(tmp_path: Path) -> None:
    plant(tmp_path, "src/fairway/client/aio/jobs.py", "class Job: ...")
    plant(tmp_path, "src/fairway/client/sync/jobs.py", "class Job: ...")
    assert list(public_class_names_are_unique(tmp_path)) == []
    plant(tmp_path, "src/fairway/jobs/job.py", "import re\n\n\nclass Job: ...")
    assert list(public_class_names_are_unique(tmp_path)) == [
        "src/fairway/jobs/job.py:4: class Job: src/fairway/client/aio/jobs.py has one of that name"
    ]


def test_retired_words_are_those_of_the_glossary(tmp_path: Path) -> None:
    page = "# Glossary\n\nBury\n:   Here.\n\n| `job` | no |\n\n## Retired words\n\n"
    table = "| word | instead |\n|---|---|\n| `old_word` | `new` |\n| `Hands` | `arms` |\n"
    plant(tmp_path, "docs/reference/glossary.md", f"{page}{table}\n## Others\n\n| `bury` | no |")
    plant(tmp_path, "src/fairway/jobs/a.py", "def bury(job, my_old_words): ...")
    assert list(retired_words_stay_retired(tmp_path)) == []
    plant(tmp_path, "src/fairway/jobs/a.py", "def my_old_word(job): ...\nclass TwoHands: ...")
    assert list(retired_words_stay_retired(tmp_path)) == [
        "src/fairway/jobs/a.py:1: my_old_word: the glossary retired `old_word`",
        "src/fairway/jobs/a.py:2: TwoHands: the glossary retired `Hands`",
    ]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("press_on", ["press", "on"]),
        ("_TOLD_MAX", ["told", "max"]),
        ("HTTPServer2", ["http", "server", "2"]),
        ("_leaseTTL_ns", ["lease", "ttl", "ns"]),
        ("__init__", ["init"]),
    ],
)
def test_a_name_is_split_into_its_words(name: str, parts: list[str]) -> None:
    assert parts_of(name) == parts


def test_every_rule_has_a_planted_violation() -> None:
    assert set(PLANTED) == set(RULES)


def test_tracked_files_of_a_git_tree_include_what_is_not_yet_added(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    plant(tmp_path, ".gitignore", "/site/")
    plant(tmp_path, "site/a.md", "ignored")
    plant(tmp_path, "docs/a.md", "new")
    assert tracked(tmp_path) == [tmp_path / ".gitignore", tmp_path / "docs/a.md"]
