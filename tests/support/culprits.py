"""What user code may raise, each by a name: for tests of the places where it runs."""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
import ctypes
import os
import threading
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGE: Final = "said the culprit"
LONG: Final = 10_000_000
DEEP: Final = 200_000


class Panic(BaseException):
    """As pyo3 raises it when Rust panics: a `BaseException` that is no `Exception`."""


class Unpicklable(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()

    def __reduce__(self) -> NoReturn:
        raise SystemExit("it does not pickle")


class Unspeakable(Exception):
    """It fails, in the worst way, whenever anybody asks what it says."""

    def __str__(self) -> str:
        raise KeyboardInterrupt("in __str__")

    def __repr__(self) -> str:
        raise SystemExit("in __repr__")

    @property
    def __notes__(self) -> Any:
        raise GeneratorExit("in __notes__")


class Classless(Exception):
    """It fails, in the worst way, when anybody asks for its class; `isinstance` does."""

    @property
    def __class__(self) -> Any:
        raise KeyboardInterrupt("in __class__")


class _Nameless(type):
    """A class that fails, in the worst way, when anybody asks what it is called or made of."""

    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__module__", "__mro__", "__getattribute__"):
            raise KeyboardInterrupt(f"in {name}")
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=_Nameless):
    """Its class cannot be found out."""


def _raises(make: Callable[[], BaseException]) -> Callable[[], NoReturn]:
    def culprit() -> NoReturn:
        raise make()

    return culprit


def _made(cls: type[BaseException]) -> BaseException:
    if cls is UnicodeDecodeError:
        return UnicodeDecodeError("utf-8", b"\xff", 0, 1, MESSAGE)
    if cls is UnicodeEncodeError:
        return UnicodeEncodeError("ascii", "\xff", 0, 1, MESSAGE)
    if cls is UnicodeTranslateError:
        return UnicodeTranslateError("\xff", 0, 1, MESSAGE)
    if issubclass(cls, ExceptionGroup):
        return cls(MESSAGE, [ValueError(MESSAGE), OSError(MESSAGE)])
    if issubclass(cls, BaseExceptionGroup):
        return cls(MESSAGE, [KeyboardInterrupt(MESSAGE), SystemExit(MESSAGE), ValueError(MESSAGE)])
    return cls(MESSAGE)


def _recurses() -> NoReturn:
    _recurses()


def _cancels_its_task() -> None:
    task = asyncio.current_task()
    task.cancel()  # type: ignore[union-attr]  # a plain function has none: it fails here


def _in_circles() -> NoReturn:
    first, second = ValueError(MESSAGE), KeyError(MESSAGE)
    first.__cause__, second.__cause__ = second, first
    raise first


def _builtin() -> dict[str, Callable[[], None]]:
    classes = {
        id(each): each
        for each in vars(builtins).values()
        if isinstance(each, type) and issubclass(each, BaseException)
    }
    return {
        cls.__name__: _raises(lambda cls=cls: _made(cls))  # type: ignore[misc]
        for cls in classes.values()
    }


CULPRITS: Final[dict[str, Callable[[], None]]] = {
    **_builtin(),
    "CancelledError": _raises(lambda: asyncio.CancelledError(MESSAGE)),
    "CancelledFuture": _raises(lambda: concurrent.futures.CancelledError(MESSAGE)),
    "SystemExit0": _raises(lambda: SystemExit(0)),
    "Panic": _raises(lambda: Panic(MESSAGE)),
    "Unpicklable": _raises(lambda: Unpicklable(MESSAGE)),
    "Unspeakable": _raises(Unspeakable),
    "Classless": _raises(lambda: Classless(MESSAGE)),
    "Nameless": _raises(lambda: Nameless(MESSAGE)),
    "LongMessage": _raises(lambda: ValueError("x" * LONG)),
    "Unencodable": _raises(lambda: ValueError("\x00 \udc80")),
    "recurses": _recurses,
    "circles": _in_circles,
    "cancels_its_task": _cancels_its_task,
}
"""Calling one raises; but for `cancels_its_task`, after which the caller waits for something."""

WAYS: Final = ("os._exit", "SIGSEGV", "stack overflow")


def ends(way: str) -> None:
    """End the process that this runs in."""
    if way == "os._exit":
        os._exit(13)
    if way == "SIGSEGV":
        ctypes.string_at(0)
    assert way == "stack overflow"
    # The C library's parser of expressions calls itself for each parenthesis, as many do.
    ctypes.CDLL(None).regcomp(ctypes.create_string_buffer(4096), b"(" * DEEP + b")" * DEEP, 1)


def ends_or_not(way: str) -> None:
    """As a node, which notices it."""
    if way != "fine":
        ends(way)
