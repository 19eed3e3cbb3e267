"""Finds declarations of graphs: by name in a module, and in the files of a folder as they change.

A file that does not import, or declares what cannot run, changes nothing: what ran goes on, and
what is wrong is logged once and kept in `problems`.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Final

from fairway.errors import Backpressure, Closing, FairwayError, InvalidConfig, NotFound
from fairway.graphs.graph import Graph
from fairway.runtime.clock import sleep_ns
from fairway.runtime.usercode import may_be_interrupt
from fairway.runtime.words import kind_of, message_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from fairway.graphs.engine import Graphs
    from fairway.runtime.blocking import BlockingPool

logger = logging.getLogger("fairway.graphs.loading")

SECOND_NS: Final = 1_000_000_000
_NOT_SHOWN: Final = (str(Path(__file__).parents[1]), str(Path(importlib.__file__).parent))
"""Where an import that fails did not go wrong: here, and in the machinery of Python."""


def graph_at(reference: str, fresh: bool = False) -> Graph:
    """The graph that `module:name` means; `fresh` imports the module anew. Blocking.

    Raises `InvalidConfig` and says what is wrong.
    """
    module, colon, name = reference.partition(":")
    if not colon or not module or not name:
        raise InvalidConfig(f"{reference!r}: name the graph as module:graph")
    found: object = _imported(module, fresh)
    for part in name.split("."):
        if not hasattr(found, part):
            known = ", ".join(_names(found)) or "none"
            raise InvalidConfig(f"module {module!r} has no {name!r}; its graphs: {known}")
        found = getattr(found, part)
    if not isinstance(found, Graph):
        what = type(found).__name__
        article = "an" if what[0] in "aeiouAEIOU" else "a"
        raise InvalidConfig(f"{reference} is {article} {what}, not a Graph")
    return found


def _imported(module: str, fresh: bool) -> ModuleType:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    before = sys.modules.pop(module, None) if fresh else None
    try:
        return importlib.import_module(module)
    except BaseException as error:
        if before is not None:
            sys.modules[module] = before
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            raise InvalidConfig(f"there is no module {missing!r}") from None
        raise _wrong(f"module {module!r}", error) from error


def _names(found: object) -> list[str]:
    return [name for name, value in vars(found).items() if isinstance(value, Graph)]


def _wrong(what: str, error: BaseException) -> BaseException:
    """What an import that failed means, whatever it raised; an interrupt means itself."""
    if may_be_interrupt(error):
        return error
    place = "" if isinstance(error, SyntaxError) else _place(error)  # which says it by itself
    return InvalidConfig(f"{what} cannot be imported: {kind_of(error)}: {message_of(error)}{place}")


def _place(error: BaseException) -> str:
    """The line that it came from: the last that is neither Fairway's nor of the importing."""
    for frame in reversed(extract_tb(error.__traceback__)):
        if not frame.filename.startswith(("<", *_NOT_SHOWN)):
            return f" ({Path(frame.filename).name}, line {frame.lineno})"
    return ""


class Folder:
    """A service that runs the graphs which the Python files of a directory declare.

    Each `*.py` whose name begins with no underscore or dot is imported as a module of its name, so
    that files can import each other. A file that changed is taken once it looks the same twice: one
    that is being written may be anything.
    """

    name = "graph-folder"

    def __init__(
        self, graphs: Graphs, path: Path, *, pool: BlockingPool, period_ns: int = SECOND_NS
    ) -> None:
        self.path = path
        self.problems: dict[str, str] = {}
        """What is wrong with a file, by its name."""
        self._graphs = graphs
        self._pool = pool
        self._period_ns = period_ns
        self._taken: dict[str, bytes] = {}  # what was last imported, or tried
        self._seen: dict[str, bytes] = {}
        self._loaded: dict[str, list[tuple[str, str]]] = {}

    async def run(self) -> None:
        """Look at the directory once in each period, until cancelled."""
        while True:
            await sleep_ns(self._period_ns)
            try:
                await self.look()
            except (Backpressure, Closing):
                continue  # the pool is full or the app is closing; the files will be there

    async def look(self, *, at_once: bool = False) -> None:
        """Look now. With `at_once`, what changed is not looked at twice."""
        try:
            found = await self._pool.run(_files_in, self.path)
        except OSError as error:  # a mount that is gone is no reason to stop what runs
            self._problem(
                str(self.path), f"the directory cannot be read: {error.strerror or error}"
            )
            return
        self.problems.pop(str(self.path), None)
        seen, self._seen = self._seen, found
        for name in [name for name in self._taken if name not in found]:
            del self._taken[name]
            self.problems.pop(name, None)
            await self._unload(name)
        for name, text in sorted(found.items()):
            steady = at_once or seen.get(name) == text
            if steady and self._taken.get(name) != text:
                self._taken[name] = text
                await self._take(name, text)

    async def _take(self, name: str, text: bytes) -> None:
        try:
            declared = await self._pool.run(_declared_in, self.path / name, text)
            self._check(name, declared)
        except InvalidConfig as error:
            self._problem(name, str(error))
            return
        self.problems.pop(name, None)
        await self._unload(name)
        for graph in declared:
            try:
                managed = await self._graphs.load(graph, wait=False)
            except FairwayError as error:
                self._problem(name, str(error))
                continue
            self._loaded.setdefault(name, []).append(managed.key)
            logger.info("%s: graph %s runs", name, graph.name)

    def _check(self, name: str, declared: Iterable[Graph]) -> None:
        """Whether all of it can take the place of what the file declared before."""
        own = set(self._loaded.get(name, ()))
        others = {managed.key for managed in self._graphs} - own
        for graph in declared:
            graph.build()
            if (graph.tenant, graph.name) in others:
                raise InvalidConfig(f"graph {graph.name!r} is loaded already, from elsewhere")
            others.add((graph.tenant, graph.name))

    async def _unload(self, name: str) -> None:
        for tenant, graph in self._loaded.pop(name, ()):
            try:
                await self._graphs.unload(graph, tenant)
                logger.info("%s: graph %s is unloaded", name, graph)
            except NotFound:
                continue  # somebody unloaded it by command

    def _problem(self, name: str, text: str) -> None:
        if self.problems.get(name) != text:
            self.problems[name] = text
            logger.error("graphs of %s stay as they were: %s", name, text)


def _files_in(path: Path) -> dict[str, bytes]:
    """The Python files of a directory. Read whole: their dates would miss quick changes."""
    return {
        each.name: each.read_bytes()
        for each in path.iterdir()
        if each.suffix == ".py" and each.name[0] not in "_." and each.is_file()
    }


def _declared_in(path: Path, text: bytes) -> list[Graph]:
    """The graphs that a file declares. Raises `InvalidConfig`; then the module is as it was."""
    name = path.stem
    if not name.isidentifier():
        raise InvalidConfig(
            f"{path.name} is imported as a module: its name must be one of Python's"
        )
    if (folder := str(path.parent.resolve())) not in sys.path:
        sys.path.append(folder)  # last: no file of the folder stands in the way of another module
    _check_own(name, path)
    before = sys.modules.get(name)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        # Not by its loader, which would take a stale cache for a file that changed within a second.
        exec(compile(text, str(path), "exec"), module.__dict__)
    except BaseException as error:
        if before is not None:
            sys.modules[name] = before
        else:
            del sys.modules[name]
        raise _wrong(path.name, error) from error
    found = {id(each): each for each in vars(module).values() if isinstance(each, Graph)}
    return list(found.values())


def _check_own(name: str, path: Path) -> None:
    """Whether nobody else has, or could have, a module of that name."""
    importlib.invalidate_caches()
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module that says nothing of where it is from
        spec = None
        other = name in sys.modules
    else:
        origin = spec.origin if spec is not None else None
        other = spec is not None and (origin is None or Path(origin).resolve() != path.resolve())
    if other:
        raise InvalidConfig(f"there is another module {name!r}: rename {path.name}")
