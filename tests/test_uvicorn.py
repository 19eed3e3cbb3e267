"""What of uvicorn's inside we stand on. When a release moves it, a test here says what and where.

uvicorn promises nothing about these names, so `pyproject.toml` admits only the releases that were
read. To take a newer one: raise the bound, see what fails here, read those places, run the suite.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"

IMPORTED = {
    "uvicorn": {"Config", "Server"},
    "uvicorn._types": {"ASGI3Application", "HTTPScope"},
    "uvicorn.config": {"Config"},
    "uvicorn.protocols.http.flow_control": {"HIGH_WATER_LIMIT"},
    "uvicorn.protocols.http.httptools_impl": {
        *("HEADER_RE", "HEADER_VALUE_RE", "STATUS_LINE"),
        *("HttpToolsProtocol", "RequestResponseCycle"),
    },
    "uvicorn.protocols.websockets.websockets_sansio_impl": {"WebSocketsSansIOProtocol"},
    "uvicorn.server": {"ServerState"},
}
"""What `src` imports, also for types alone."""


@dataclass(frozen=True)
class Extended:
    """A class of uvicorn's that one of ours extends."""

    module: str
    name: str
    ours: str
    """Our class, wherever in `src` it stands."""
    overridden: dict[str, list[str]]
    """The base's methods that ours replaces or wraps, with the parameters that we count on."""
    attributes: set[str]
    """The base's other names that ours reads or sets."""

    def __str__(self) -> str:
        return f"{self.name}-{self.ours}"


EXTENDED = [
    Extended(
        "uvicorn.protocols.http.httptools_impl",
        "HttpToolsProtocol",
        ours="HttpProtocol",
        overridden={
            "__init__": ["config", "server_state", "app_state", "_loop"],
            "_should_upgrade": [],
            "_start_asgi_task": ["cycle", "app"],
            "connection_lost": ["exc"],
            "connection_made": ["transport"],
            "data_received": ["data"],
            "eof_received": [],
            "on_body": ["body"],
            "on_header": ["name", "value"],
            "on_headers_complete": [],
            "on_message_begin": [],
            "on_message_complete": [],
            "on_response_complete": [],
            "on_url": ["url"],
            "pause_writing": [],
            "resume_writing": [],
            "shutdown": [],
        },
        attributes={
            *("app", "app_state", "client", "connections", "cycle", "expect_100_continue", "flow"),
            *("handle_websocket_upgrade", "headers", "logger", "loop", "parser", "pipeline"),
            *("root_path", "scheme", "scope", "server_state", "transport", "url"),
        },
    ),
    Extended(
        "uvicorn.protocols.http.httptools_impl",
        "RequestResponseCycle",
        ours="ResponseCycle",
        overridden={
            "__init__": [
                *("scope", "transport", "flow", "logger", "access_logger", "access_log"),
                *("default_headers", "message_event", "expect_100_continue", "keep_alive"),
                "on_response",
            ],
            "receive": [],
            "run_asgi": ["app"],
            "send": ["message"],
            "send_500_response": [],
        },
        attributes={
            *("access_log", "body", "chunked_encoding", "default_headers", "disconnected", "flow"),
            *("keep_alive", "logger", "message_event", "more_body", "on_response"),
            *("response_complete", "response_started", "scope", "transport"),
            "waiting_for_100_continue",
        },
    ),
    Extended(
        "uvicorn.protocols.websockets.websockets_sansio_impl",
        "WebSocketsSansIOProtocol",
        ours="SocketProtocol",
        overridden={
            "__init__": ["config", "server_state", "app_state", "_loop"],
            "connection_lost": ["exc"],
            "connection_made": ["transport"],
            "data_received": ["data"],
            "handle_connect": ["event"],
            "keepalive_timeout": [],
            "receive": [],
            "resume_writing": [],
            "run_asgi": [],
            "send": ["message"],
        },
        attributes={
            *("app", "close_sent", "conn", "default_headers", "disconnected"),
            *("handshake_complete", "loop", "read_paused", "transport", "writable"),
        },
    ),
    Extended(
        "uvicorn.server",
        "Server",
        ours="HttpListener",
        overridden={"__init__": ["config"], "capture_signals": [], "startup": ["sockets"]},
        attributes={"config", "lifespan", "serve", "server_state", "servers"},
    ),
]

USED: list[tuple[str, str, str, set[str]]] = [
    (
        "uvicorn.protocols.http.flow_control",
        "FlowControl",
        "flow",
        {"drain", "pause_reading", "read_paused", "resume_reading", "write_paused"},
    ),
    ("uvicorn.server", "ServerState", "server_state", {"default_headers", "total_requests"}),
    ("uvicorn.config", "Config", "config", {"http_protocol_class"}),
    ("uvicorn.lifespan.off", "LifespanOff", "lifespan", {"state"}),
]
"""Further objects of uvicorn's: their class, the attribute by which ours hold them, and the names
that are asked of it there (`self.flow.drain`)."""

NOT_IN_INIT = {"access_log", "access_logger", "expected_content_length"}
"""What the base's constructor sets and ours leaves, as all methods that read it are overridden."""


def test_the_bound_admits_only_releases_that_were_read() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (uvicorn,) = (each for each in project["dependencies"] if each.startswith("uvicorn"))
    assert "<" in uvicorn, (
        "we override its inside: a release that nobody read may not come by itself"
    )


def test_what_is_imported_is_there() -> None:
    found: dict[str, set[str]] = {}
    for _, node in nodes():
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "uvicorn":
            found.setdefault(str(node.module), set()).update(each.name for each in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "uvicorn":
            found.setdefault("uvicorn", set()).add(node.attr)
    assert found == IMPORTED, "the table above does not say what src imports"
    gone = [
        f"{module}.{name}"
        for module, names in IMPORTED.items()
        for name in names
        if not hasattr(importlib.import_module(module), name)
    ]
    assert not gone, f"uvicorn has these no more: {gone}"


@pytest.mark.parametrize("base", EXTENDED, ids=str)
def test_what_is_overridden_is_there_with_its_parameters(base: Extended) -> None:
    theirs, ours = class_of(base.module, base.name), our_class(base.ours)
    moved = []
    for name, parameters in base.overridden.items():
        where = place(ours, name)
        if name not in vars(theirs):
            moved.append(f"{base.name}.{name} is gone; {where} overrides it")
        elif (now := list(inspect.signature(vars(theirs)[name]).parameters)[1:]) != parameters:
            moved.append(f"{base.name}.{name} takes {now} instead of {parameters}; see {where}")
    assert not moved, "uvicorn has moved:\n" + "\n".join(moved)
    functions = {name for name, value in vars(ours).items() if callable(value)}
    found = {name for name in functions & vars(theirs).keys() if name != "__init_subclass__"}
    assert found == base.overridden.keys(), f"the table above is not what {base.ours} overrides"


@pytest.mark.parametrize("base", EXTENDED, ids=str)
def test_the_attributes_that_are_used_are_there(base: Extended) -> None:
    theirs, ours = class_of(base.module, base.name), our_class(base.ours)
    has, used = names_of(theirs), set(own_names(ours))
    gone = [
        f"{base.name}.{name} is gone; {place(ours, name)} uses it"
        for name in sorted(base.attributes - has)
    ]
    assert not gone, "uvicorn has moved:\n" + "\n".join(gone)
    slots = set(vars(ours).get("__slots__", ()))  # some hold the base's
    stored = set(own_names(ours, ast.Store))
    stale = slots - has - stored
    assert not stale, f"slots of {base.ours} that neither class fills: {sorted(stale)}"
    own = vars(ours).keys() - slots
    defined = {*own, *stored, *inspect.get_annotations(ours)}
    declared = {name for name in own if not name.startswith("__")}
    found = ((used | declared) & has | (used - defined)) - base.overridden.keys()
    assert found == base.attributes, f"the table above is not what {base.ours} uses"


def test_a_response_cycle_sets_all_that_the_base_would() -> None:
    """Its constructor does not call the base's: what a release sets there, ours has to set too."""
    base = next(each for each in EXTENDED if each.ours == "ResponseCycle")
    theirs = vars(class_of(base.module, base.name))["__init__"]
    sets = set(own_names(theirs, ast.Store)) - NOT_IN_INIT
    ours = set(own_names(vars(our_class("ResponseCycle"))["__init__"], ast.Store))
    assert sets <= ours, f"{base.name}.__init__ also sets {sorted(sets - ours)}"


@pytest.mark.parametrize(
    ("module", "name", "held_as", "names"), USED, ids=[name for _, name, *_ in USED]
)
def test_what_is_asked_of_its_other_objects_is_there(
    module: str, name: str, held_as: str, names: set[str]
) -> None:
    where = {
        each.attr: f"{path.relative_to(SRC)}:{each.lineno}"
        for path, each in nodes("server")
        if isinstance(each, ast.Attribute)
        and isinstance(each.value, ast.Attribute)
        and each.value.attr == held_as
        and ast.unparse(each.value.value) in ("self", "protocol", "cycle", "self._protocol")
    }
    has = names_of(class_of(module, name))
    gone = [f"{name}.{each} is gone; {where.get(each)} uses it" for each in sorted(names - has)]
    assert not gone, "uvicorn has moved:\n" + "\n".join(gone)
    assert where.keys() == names, f"the table above is not what is asked of {name}"


# --- reading sources


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def nodes(folder: str = "") -> Iterator[tuple[Path, ast.AST]]:
    for path in sorted((SRC / "fairway" / folder).rglob("*.py")):
        if "uvicorn" in path.read_text(encoding="utf-8") or folder:
            for node in ast.walk(parsed(path)):
                yield path, node


def class_of(module: str, name: str) -> type:
    found: type | None = getattr(importlib.import_module(module), name, None)
    assert found is not None, f"uvicorn has moved: {module}.{name} is gone"
    return found


def our_class(name: str) -> type:
    for path, node in nodes("server"):
        if isinstance(node, ast.ClassDef) and node.name == name:
            module = ".".join(path.relative_to(SRC).with_suffix("").parts)
            return class_of(module, name)
    raise AssertionError(f"src has no class {name}")


def own_names(source: Any, context: type[ast.expr_context] = ast.expr_context) -> Iterator[str]:
    """The `x` of each `self.x` in a class or function."""
    for node, _ in selfs(source):
        if isinstance(node.ctx, context):
            yield node.attr


def selfs(source: Any) -> Iterator[tuple[ast.Attribute, int]]:
    lines, first = inspect.getsourcelines(source)
    for node in ast.walk(ast.parse(inspect.cleandoc("\n" + "".join(lines)))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            yield node, first + node.lineno - 1


def names_of(theirs: type) -> set[str]:
    """All names of a class: in its body, by annotation, and set by its methods."""
    return {*vars(theirs), *inspect.get_annotations(theirs), *own_names(theirs, ast.Store)}


def place(ours: type, name: str) -> str:
    """Where our class defines a name, or else uses it first."""
    module: ModuleType = importlib.import_module(ours.__module__)
    path = Path(str(module.__file__)).relative_to(SRC)
    if inspect.isroutine(found := vars(ours).get(name)):
        return f"{path}:{inspect.getsourcelines(found)[1]} {ours.__name__}.{name}"
    lines = [line for node, line in selfs(ours) if node.attr == name]
    return f"{path}:{min(lines, default=0)} {ours.__name__}"
