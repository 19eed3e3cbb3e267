"""What is told of errors and values that are not ours: short, and so that it can be written. Pure.

An error may say what no encoding has, more than a journal takes, or fail when it is asked; a value
as well. None of that may be the end of whoever tells of it.
"""

from __future__ import annotations

import traceback
from typing import Any, Final

SAID_MAX: Final = 10_000
"""Characters that are told of an error."""
TRACED_MAX: Final = 4_000
"""Characters of a traceback."""
FRAMES_MAX: Final = 20
BRIEF_MAX: Final = 80
_UNTELLABLE: Final = "(what it says cannot be told)"
_of: Final = type.__getattribute__
"""An attribute of a class, as it is: a metaclass is user code as well."""


def is_a(error: BaseException | None, *kinds: type[BaseException]) -> bool:
    """Whether it is of one of these kinds: by its type, since `isinstance` may ask for the class
    that it says it has, and that is its own code as well."""
    return issubclass(type(error), kinds)


def is_wild(error: BaseException) -> bool:
    """Whether its own code is asked for any attribute: nobody may look at it, asyncio included."""
    kind = type(error)
    if _of(kind, "__getattribute__") is not BaseException.__getattribute__:
        return True
    return any("__class__" in _of(base, "__dict__") for base in _of(kind, "__mro__")[:-1])


def kind_of(value: object) -> str:
    """The name of its class, whatever the class of that says when it is asked."""
    return writable(_of(type(value), "__name__"))


def said(error: BaseException) -> str:
    """What an error says."""
    try:
        return writable(str(error))
    except BaseException:  # it is asked in its own code, which may raise anything once more
        return _UNTELLABLE


def named(error: BaseException) -> str:
    """An error in a line: its kind, and what it says."""
    text = said(error)
    kind = kind_of(error)
    return f"{kind}: {text}" if text else kind


def traced(error: BaseException) -> str:
    """An error with the lines that led to it; of one that says too much, both ends."""
    try:
        text = "".join(traceback.format_exception(error, limit=-FRAMES_MAX)).strip()
    except BaseException:
        text = named(error)
    if len(text) > TRACED_MAX:
        left_out = f"\n... ({len(text) - TRACED_MAX:,} characters more) ...\n"
        half = (TRACED_MAX - len(left_out)) // 2
        text = text[:half] + left_out + text[-half:]
    return text.encode(errors="backslashreplace").decode()


def writable(text: str) -> str:
    """A text, as far as it can be kept."""
    if len(text) > SAID_MAX:
        text = f"{text[:SAID_MAX]}... ({len(text):,} characters)"
    return text.encode(errors="backslashreplace").decode()


def told(value: object) -> str:
    """What Python shows of a value, as far as it can be kept."""
    return writable(described(value).decode())


def brief(value: object) -> str:
    """The beginning of that, for an error that names what was given."""
    return told(value)[:BRIEF_MAX]


def described(value: Any) -> bytes:
    """What can be told of a value that has no stored form."""
    try:
        return repr(value).encode(errors="backslashreplace")
    except BaseException:
        return f"a {kind_of(value)}".encode(errors="backslashreplace")
