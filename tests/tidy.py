"""House rules, read with `ast`: who may import whom, and what only one place may do.

Each rule is a function from a repository root to complaints; `test_tidy.py` applies them all.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

CODE = ("src", "tests", "benchmarks", "examples", "docs", "tools")

Rule = Callable[[Path], Iterator[str]]
RULES: list[Rule] = []


def rule(check: Rule) -> Rule:
    RULES.append(check)
    return check


# --- the direction of imports

BASE = {"errors", "masking", "settings", "wire"}  # importable by all but core
FEATURES = {"topics", "streams", "jobs", "compute", "graphs"}  # never import each other
GROUND = {"core", "runtime", "storage", "replication", "kernel"}  # what features stand on

MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "errors": set(),
    "masking": set(),
    "wire": {"errors"},
    "settings": {"core", "errors", "masking", "wire"},
    "runtime": BASE | {"core"},
    "storage": BASE | {"core", "runtime"},
    "replication": BASE | {"core", "runtime", "storage"},
    "kernel": BASE | {"core", "runtime", "storage", "replication"},
    **dict.fromkeys(FEATURES, BASE | GROUND),
    "parts": BASE | GROUND | FEATURES,
    "app": BASE | GROUND | {"parts"} | FEATURES,
    "server": BASE | GROUND | {"app"} | FEATURES,
    "cli": BASE | GROUND | {"app", "server", "client"} | FEATURES,
    "client": BASE | {"core"},
    "__main__": {"cli", "runtime"},
}
MAY_IMPORT["__init__"] = set(MAY_IMPORT) - {"cli", "server", "__main__"}  # the names users import
MAY_IMPORT["testing"] = set(MAY_IMPORT) | {"__init__"}  # anything; and nothing imports testing

LOG_PLACES = {"storage", "kernel", "app", "__init__", "testing"}  # who may know the concrete log
APP_LOG = re.compile(r"\bapp\.log$")

ROOMS = {("server", "http"), ("server", "access")}  # of the server, which know no part
WIRE_OF_ALL = {"encoding", "integers", "requests", "server"}  # messages that are of no part

# --- what makes core impure

PURE_MODULES = {
    *("__future__", "abc", "dataclasses", "enum", "types", "typing"),
    *("array", "bisect", "collections", "heapq", "re", "string", "struct", "zlib"),
    *("decimal", "fractions", "math", "numbers", "statistics"),
    *("functools", "itertools", "operator"),
}
IMPURE_BUILTINS = {"__import__", "breakpoint", "eval", "exec", "input", "open", "print"}

# --- what belongs to one place only

TASK_STARTERS = {
    f"asyncio.{name}"
    for name in ("create_task", "ensure_future", "gather", "run_coroutine_threadsafe")
}
THREAD_STARTERS = {"asyncio.to_thread", "threading.Thread", "threading.Timer", "os.fork"}
THREAD_METHODS = {"run_in_executor", "add_signal_handler"}
THREAD_MODULES = {"_thread", "concurrent", "multiprocessing", "signal", "subprocess"}
TIMERS = ("clock_gettime", "monotonic", "perf_counter", "process_time", "thread_time", "time")
CLOCKS = {
    *(f"time.{timer}{unit}" for timer in TIMERS for unit in ("", "_ns")),
    *(f"time.{name}" for name in ("ctime", "gmtime", "localtime", "sleep")),
    *(f"datetime.datetime.{name}" for name in ("now", "today", "utcnow")),
    "datetime.date.today",
}
CLOCK_PLACES = {("runtime", "clock"), ("client", "clock")}
LOOP_CLOCK = re.compile(r"loop(\(\))?\.time$")
ENVIRONMENT = {f"os.{name}" for name in ("environ", "environb", "getenv", "getenvb", "putenv")}

BARE_NAMES = {"scheduler", "manager", "handler", "util", "utils", "helper", "helpers"}
GENERATED = ("client", "sync")  # from client/aio, with the same names
SHARED_CLASS_NAMES: dict[str, str] = {
    "Record": "what a reader is given: the same noun in a process and to a client",
}
"""Public class names that stand in several modules all the same, each with its reason."""
GLOSSARY = Path("docs/reference/glossary.md")
RETIRED_WORD = re.compile(r"^\| `(\w+)` \| \S", re.MULTILINE)
RETIRED_NAMES_THAT_STAY: dict[str, str] = {}
"""Names that others rely on (of a wire format, say) though a word of theirs is retired, and why."""
PARTS_OF_A_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
NAMED_TEST = re.compile(r"`(test_\w+)`")
NAMED_MODULE = re.compile(r"\bfairway(?:\.\w+)+")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")

# Written in pieces, or this file would be its own first violation.
MACHINE = re.compile(
    r"(?<![\w./-])/(?:wor[k]|roo[t]|opt/(?:pyp[i]|wheel[s]))(?![\w-])"
    r"|pypi\.or[g]|pythonhosted\.or[g]|registry\.npmj[s]"
)
LOCK_LEAK = re.compile(
    r"^\s*(-i|-f|--(extra-)?index-url|--find-links|--trusted-host)\b|://|@ file:"
)


@dataclass(frozen=True)
class Import:
    line: int
    module: str
    """Absolute dotted name; for `from a import b` it is `a.b`, since b may be a module."""
    for_types_only: bool


@dataclass(frozen=True)
class Source:
    """One Python file: where it is, what it says, and what the names in it mean."""

    root: Path
    path: Path
    text: str
    tree: ast.Module

    def at(self, line: int, complaint: str) -> str:
        return f"{self.path.relative_to(self.root)}:{line}: {complaint}"

    @cached_property
    def place(self) -> tuple[str, ...]:
        """The path below `src/fairway`, without suffix; empty for files outside it."""
        package = self.root / "src" / "fairway"
        if not self.path.is_relative_to(package):
            return ()
        return self.path.relative_to(package).with_suffix("").parts

    @property
    def unit(self) -> str:
        """The package or root module that the arrows are drawn between."""
        return self.place[0]

    @cached_property
    def imports(self) -> list[Import]:
        return list(self._imports(self.tree, for_types_only=False))

    def _imports(self, node: ast.AST, *, for_types_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
                body, orelse = ast.Module(child.body, []), ast.Module(child.orelse, [])
                yield from self._imports(body, for_types_only=True)
                yield from self._imports(orelse, for_types_only=for_types_only)
                continue
            if isinstance(child, ast.Import | ast.ImportFrom | ast.Call):
                for name in self._imported_by(child):
                    yield Import(child.lineno, name, for_types_only)
            yield from self._imports(child, for_types_only=for_types_only)

    def _imported_by(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                here = ("fairway", *self.place)[: -node.level]
                module = ".".join((*here, module) if module else here)
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            function, first = ast.unparse(node.func), node.args[0]
            dynamic = function.endswith("import_module") or function == "__import__"
            if dynamic and isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value

    @cached_property
    def aliases(self) -> dict[str, str]:
        """What the imported names of this file stand for, so that renaming hides nothing."""
        meanings = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname:
                        meanings[alias.asname] = alias.name
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    meanings[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return meanings

    def dotted(self, node: ast.AST) -> str:
        """The full name an expression goes by, with calls written as `()`; empty if it has none."""
        match node:
            case ast.Name(id=name):
                return self.aliases.get(name, name)
            case ast.Attribute(value=value, attr=attr):
                return f"{self.dotted(value)}.{attr}"
            case ast.Call(func=func):
                return f"{self.dotted(func)}()"
        return ""

    @cached_property
    def uses(self) -> list[tuple[int, str]]:
        """Every name and attribute that is read, called or passed on, by its full name."""
        found = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name | ast.Attribute):
                found.append((node.lineno, self.dotted(node)))
        return found

    @property
    def calls(self) -> Iterator[ast.Call]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))


def sources(root: Path, *folders: str) -> Iterator[Source]:
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            yield parsed(root, path, path.read_text(encoding="utf-8"))


@cache
def parsed(root: Path, path: Path, text: str) -> Source:
    """Kept, and with it what was found out about it: most rules read the same files."""
    return Source(root, path, text, ast.parse(text, filename=str(path)))


def product(root: Path) -> Iterator[Source]:
    return sources(root, "src/fairway")


# --- the rules


@rule
def arrows_point_down(root: Path) -> Iterator[str]:
    """Imports follow the arrows of the layout; an arrow counts under TYPE_CHECKING as well."""
    for source in product(root):
        if source.unit not in MAY_IMPORT:
            yield source.at(1, f"{source.unit} is not a part of the layout; draw its arrows first")
            continue
        for imported in source.imports:
            top, _, rest = imported.module.partition(".")
            other = rest.partition(".")[0] or "__init__"
            if top != "fairway" or other == source.unit or other in MAY_IMPORT[source.unit]:
                continue
            if other not in MAY_IMPORT or other == "__init__":
                other = "the front door; name the module itself"
            yield source.at(imported.line, f"{source.unit} may not import {other}")


@rule
def the_log_is_behind_the_kernel(root: Path) -> Iterator[str]:
    """The app opens a log and the kernel has it: parts see `Partitions`, the server the kernel."""
    for source in product(root):
        if source.unit in LOG_PLACES:
            continue
        for imported in source.imports:
            if f"{imported.module}.".startswith("fairway.storage.log."):
                yield source.at(imported.line, f"{source.unit} may not hold the log itself")
        for line, name in source.uses:
            if source.unit in ("server", "cli") and APP_LOG.search(name):
                yield source.at(line, f"{name}: ask the kernel")


@rule
def rooms_know_no_part(root: Path) -> Iterator[str]:
    """How requests come in, and who may ask, is the same for every part; a part's face is a front.

    Of what clients and servers exchange, the rooms have what belongs to no part.
    """
    for source in product(root):
        if source.place[:2] not in ROOMS:
            continue
        for imported in source.imports:
            match imported.module.split("."):
                case ["fairway", "wire", module, *_] if module not in WIRE_OF_ALL:
                    of = f"wire.{module}"
                case ["fairway", "server", "fronts", *_]:
                    of = "a front"
                case ["fairway", part, *_] if part in FEATURES | {"app", "parts"}:
                    of = part
                case _:
                    continue
            room = "/".join(source.place[:2])
            yield source.at(imported.line, f"{room} may not know {of}")


@rule
def core_is_pure(root: Path) -> Iterator[str]:
    """Core has no clock, task, thread, I/O or randomness of its own, only data structures."""
    for source in product(root):
        if source.unit != "core":
            continue
        for imported in source.imports:
            top = imported.module.partition(".")[0]
            if not imported.for_types_only and top not in PURE_MODULES | {"fairway"}:
                yield source.at(imported.line, f"core may not import {top}")
        for call in source.calls:
            if (name := source.dotted(call.func)) in IMPURE_BUILTINS:
                yield source.at(call.lineno, f"core may not call {name}")
        for node in ast.walk(source.tree):
            if isinstance(node, ast.AsyncFunctionDef | ast.Await):
                yield source.at(node.lineno, "core may not wait")


@rule
def tasks_start_in_a_group(root: Path) -> Iterator[str]:
    """Work starts only inside a TaskGroup: no gather, no bare create_task.

    Two places make tasks that a group must not wait for: of user code, which may not want to end.
    """
    for source in product(root):
        if source.place in (("runtime", "usercode"), ("runtime", "eager")):
            continue
        groups = set(task_groups(source))
        for line, name in source.uses:
            if name in TASK_STARTERS:
                yield source.at(line, f"{name} starts work outside a TaskGroup")
        for call in source.calls:
            receiver, _, method = source.dotted(call.func).rpartition(".")
            if (receiver, method) == ("asyncio", "Task"):  # as a type or a base class it is welcome
                yield source.at(call.lineno, "asyncio.Task starts work outside a TaskGroup")
            if method != "create_task" or receiver == "asyncio":
                continue
            if receiver.rpartition(".")[2] not in groups:
                yield source.at(call.lineno, f"{receiver}.create_task: not known to be a TaskGroup")


def task_groups(source: Source) -> Iterator[str]:
    """The last part of every name that this file binds to a TaskGroup or annotates as one."""
    for node in ast.walk(source.tree):
        match node:
            case ast.withitem(context_expr=value, optional_vars=ast.AST() as target):
                pass
            case ast.Assign(targets=[target], value=value):
                pass
            case ast.AnnAssign(target=target, annotation=value):
                pass
            case ast.arg(arg=name, annotation=ast.AST() as value):
                target = ast.Name(name)
            case _:
                continue
        if re.search(r"\bTaskGroup\b", ast.unparse(value)):
            yield ast.unparse(target).rpartition(".")[2]


@rule
def threads_belong_to_runtime(root: Path) -> Iterator[str]:
    """Runtime starts threads and processes and hears signals; others may use its pools."""
    for source in product(root):
        if source.unit in ("runtime", "testing"):
            continue
        for imported in source.imports:
            top = imported.module.partition(".")[0]
            if top in THREAD_MODULES and not imported.for_types_only:
                yield source.at(imported.line, f"{top} belongs to runtime")
        for line, name in source.uses:
            if name in THREAD_STARTERS or name.rpartition(".")[2] in THREAD_METHODS:
                yield source.at(line, f"{name} belongs to runtime")


@rule
def time_comes_from_the_clock(root: Path) -> Iterator[str]:
    """Only runtime/clock.py reads the time; everybody else is given a clock.

    The client lives in other people's processes, without the runtime: it has a clock of its own.
    """
    for source in product(root):
        if source.place in CLOCK_PLACES or source.unit == "testing":
            continue
        for line, name in source.uses:
            loop_clock = source.unit != "runtime" and LOOP_CLOCK.search(name)
            if name in CLOCKS or loop_clock:
                yield source.at(line, f"{name}: ask the clock you were given")


@rule
def environment_is_read_in_settings(root: Path) -> Iterator[str]:
    for source in product(root):
        if source.place == ("settings",):
            continue
        for line, name in source.uses:
            if name in ENVIRONMENT:
                yield source.at(line, f"{name}: only settings.py reads the environment")


@rule
def names_say_something(root: Path) -> Iterator[str]:
    """Nothing is called just Scheduler, Manager, Handler, utils or helpers."""
    for source in sources(root, *CODE):
        module = source.path.parent.name if source.path.stem == "__init__" else source.path.stem
        if module.lower() in BARE_NAMES:
            yield source.at(1, f"module {module}: name what it is about")
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and node.name.lower() in BARE_NAMES:
                yield source.at(node.lineno, f"class {node.name}: name what it is about")


@rule
def public_class_names_are_unique(root: Path) -> Iterator[str]:
    """A public class is the only one of its name: who reads it anywhere knows which it is."""
    first: dict[str, Path] = {}
    for source in product(root):
        if source.place[:2] == GENERATED:
            continue
        for node in source.tree.body:
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            other = first.get(node.name)
            if other is None:
                first[node.name] = source.path.relative_to(root)
            elif node.name not in SHARED_CLASS_NAMES:
                yield source.at(node.lineno, f"class {node.name}: {other} has one of that name")


@rule
def retired_words_stay_retired(root: Path) -> Iterator[str]:
    """No name of the product holds a word that the glossary retired."""
    retired = retired_words(root)
    for source in product(root):
        if source.place[:2] == GENERATED:
            continue
        for line, name in given_names(source):
            if name in RETIRED_NAMES_THAT_STAY:
                continue
            parts = parts_of(name)
            for word, of_it in retired.items():
                if any(parts[at : at + len(of_it)] == of_it for at in range(len(parts))):
                    yield source.at(line, f"{name}: the glossary retired `{word}`")


def retired_words(root: Path) -> dict[str, list[str]]:
    """The first column of the glossary's table of retired words, each with its parts.

    A tree without a glossary has that of this repository.
    """
    page = root / GLOSSARY
    if not page.exists():
        page = Path(__file__).resolve().parent.parent / GLOSSARY
    _, _, section = page.read_text(encoding="utf-8").partition("\n## Retired words\n")
    words = RETIRED_WORD.findall(section.partition("\n## ")[0])
    assert words, f"{GLOSSARY} has no table of retired words"
    return {word: parts_of(word) for word in words}


def parts_of(name: str) -> list[str]:
    """The words of an identifier, in lower case: of `_leaseTTL_ns` they are lease, ttl, ns."""
    return [part.lower() for part in PARTS_OF_A_NAME.findall(name)]


def given_names(source: Source) -> Iterator[tuple[int, str]]:
    """Every name that a file gives to something others see: what is local to a function is not."""
    module = source.path.parent.name if source.path.stem == "__init__" else source.path.stem
    yield 1, module
    scopes: list[ast.Module | ast.ClassDef] = [source.tree]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef):
            scopes.append(node)
            yield node.lineno, node.name
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
    for statement in (each for scope in scopes for each in scope.body):
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.lineno, node.id


@rule
def product_is_finished(root: Path) -> Iterator[str]:
    for source in product(root):
        for number, line in enumerate(source.text.splitlines(), 1):
            if found := UNFINISHED.search(line):
                yield source.at(number, f"{found[1]}: finish it or leave it out")
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.Raise) or node.exc is None:
                continue
            if source.dotted(node.exc).removesuffix("()") == "NotImplementedError":
                yield source.at(node.lineno, "NotImplementedError: finish it or leave it out")


@rule
def no_test_sleeps(root: Path) -> Iterator[str]:
    """Nothing sleeps to wait for something; on the virtual loop a sleep is exact and instant."""
    for source in sources(root, "tests"):
        virtual = any(imported.module.startswith("fairway.testing") for imported in source.imports)
        for call in source.calls:
            name = source.dotted(call.func)
            waits = name == "time.sleep" or (name == "asyncio.sleep" and not virtual)
            if waits and call.args and is_fixed_delay(call.args[0]):
                yield source.at(call.lineno, f"{name}: wait for the condition, not for a while")


def is_fixed_delay(node: ast.expr) -> bool:
    """True for a number written in place, other than zero. A named delay may be what is tested."""
    variable = any(isinstance(part, ast.Name | ast.Attribute) for part in ast.walk(node))
    return not variable and ast.unparse(node) not in ("0", "0.0")


@rule
def unit_tests_mirror_the_source(root: Path) -> Iterator[str]:
    """A test module in tests/unit stands in the folder of the package that it tests.

    It is named after a module of that package, or imports one. A test of a module in no package,
    such as settings.py, is named after it and stands at the top.
    """
    package, tests = root / "src" / "fairway", root / "tests" / "unit"
    for source in sources(root, "tests/unit"):
        folder = source.path.parent.relative_to(tests)
        if not (package / folder).is_dir():
            yield source.at(1, f"there is no package {folder} in src/fairway")
        elif source.path.stem == "conftest" or is_namesake(source.path.stem, package / folder):
            continue
        elif folder == Path():
            yield source.at(1, "src/fairway has no module of that name: whose folder is it for?")
        elif folder not in (named := packages_named(source, package)):
            others = ", ".join(sorted(map(str, named))) or "no package"
            yield source.at(1, f"it names {others} and nothing in {folder}")


def is_namesake(test: str, package: Path) -> bool:
    module = test.removeprefix("test_")
    return any((package / f"{name}.py").exists() for name in (module, f"__{module}__"))


def packages_named(source: Source, package: Path) -> set[Path]:
    """The folders, below `package`, of the modules that a file imports or names in a text."""
    names = {imported.module for imported in source.imports}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.update(NAMED_MODULE.findall(node.value))
    found = set()
    for name in names:
        top, *parts = name.split(".")
        path = Path()
        if top != "fairway":
            continue
        while parts and (package / path / parts[0]).is_dir():
            path /= parts.pop(0)
        found.add(path)
    return found


STORES = Path("src/fairway/jobs/stores")
OF_ONE_STORE = {
    "sqlite": {
        "calls": "one connection writes: which calls are in its next transaction",
        "writer": "and the thread that it writes in",
        "transaction": "what happens to single jobs, where a round trip costs nothing",
        "writer_queue": "whose turn it is to write, among processes: SQLite's lock has no queue",
        "mark": "how far the file was ever synced: it ends silently at a damaged frame",
        "tenants": "whose jobs a command is about, so that it waits in the right lane",
    },
    "postgres": {
        "statements": "SQL that decides for many jobs in one round trip, by name",
        "migrations": "a schema that others may look into, in files of SQL",
        "history": "jobs that ended, in a table for each day, which is dropped whole",
        "locks": "partition keys as advisory locks of a session",
        "attempts": "runs as rows of arrays: one statement keeps those of many jobs",
        "waiting": "a line for unique keys that transactions of others hold, which SQLite has not",
    },
}
"""Which files a store has that the other has not, and why. All the others have equal names."""


@rule
def stores_have_equal_file_names(root: Path) -> Iterator[str]:
    """The two job stores in databases have a file for each noun that both have, by one name."""
    files = {
        store: {
            path.stem: path.relative_to(root)
            for path in sorted((root / STORES / store).glob("[a-z]*"))
        }
        for store in OF_ONE_STORE
    }
    for store, own in files.items():
        (other,) = (names for name, names in files.items() if name != store)
        alone = {name: path for name, path in own.items() if name not in other}
        for name, path in alone.items():
            if name not in OF_ONE_STORE[store]:
                yield f"{path}: no other store has one, and nothing says why"
        for name in OF_ONE_STORE[store].keys() - alone.keys() if own and other else ():
            yield f"{STORES / store}/{name}: it is said to be in this store alone"


@rule
def files_name_no_machine(root: Path) -> Iterator[str]:
    """No path or package host of somebody's machine is written down."""
    for path in tracked(root):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # not text, or deleted and not yet recorded so
        for number, line in enumerate(lines, 1):
            if found := MACHINE.search(line):
                yield f"{path.relative_to(root)}:{number}: names {found[0]}"


@rule
def docs_name_tests_that_exist(root: Path) -> Iterator[str]:
    """A claim in the docs names the test that shows it, and the test is there to be run."""
    named = [
        (path, number, name)
        for path in sorted((root / "docs").rglob("*.md"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for name in NAMED_TEST.findall(line)
    ]
    if not named:
        return
    there = {
        node.name
        for source in sources(root, "tests")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for path, number, name in named:
        if name not in there:
            yield f"{path.relative_to(root)}:{number}: there is no test {name}"


PROSE_WIDTH = 120
"""Where the prose of pages wraps, so that a diff shows the sentence that changed."""


@rule
def prose_wraps_at_one_width(root: Path) -> Iterator[str]:
    """No line of prose in a page is longer. Tables, code and a link by itself may be."""
    pages = [*sorted((root / "docs").rglob("*.md")), *sorted(root.glob("*.md"))]
    for path in pages:
        code = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            text = line.strip()
            code ^= text.startswith("```")
            breakable = " " in text.lstrip("-*0123456789. ")
            if len(line) > PROSE_WIDTH and breakable and not code and not text.startswith("|"):
                yield f"{path.relative_to(root)}:{number}: prose wraps at {PROSE_WIDTH} characters"


def tracked(root: Path) -> list[Path]:
    """The files git holds or would add; in a tree without git, every file not hidden."""
    if (root / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
        return [root / name for name in listed.stdout.split("\0") if name]
    below = sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return [root / path for path in below if not any(part.startswith(".") for part in path.parts)]


@rule
def locks_are_closed(root: Path) -> Iterator[str]:
    """Every locked requirement carries hashes, and no lock file says where to get it."""
    for path in sorted((root / "requirements").rglob("*.txt")):
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in text.splitlines():
            if not (requirement := line.partition("#")[0].strip()):
                continue
            if LOCK_LEAK.search(requirement):
                yield f"{path.relative_to(root)}: names a source: {requirement}"
            elif "--hash=sha256:" not in requirement:
                yield f"{path.relative_to(root)}: no hash: {requirement}"
