"""How errors and values of users are shown: short, and so that the text can be written. Pure.

An error may hold text that no encoding has, more than a journal takes, or fail when it is shown; a
value as well. None of that may be the end of the code that shows it.
"""

from __future__ import annotations

import traceback
from typing import Any, Final

MESSAGE_MAX: Final = 10_000
"""Characters that are shown of an error."""
TRACED_MAX: Final = 4_000
"""Characters of a traceback."""
FRAMES_MAX: Final = 20
BRIEF_MAX: Final = 80
_UNSHOWABLE: Final = "(its message cannot be shown)"
_of: Final = type.__getattribute__
"""An attribute of a class, as it is: a metaclass is user code as well."""


def is_a(error: BaseException | None, *kinds: type[BaseException]) -> bool:
    """Whether it is of one of these kinds: by its type, since `isinstance` may ask for its
    `__class__`, and that is its own code as well."""
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


def message_of(error: BaseException) -> str:
    """The message of an error."""
    try:
        return writable(str(error))
    except BaseException:  # it is asked in its own code, which may raise anything once more
        return _UNSHOWABLE


def named(error: BaseException) -> str:
    """An error in a line: its kind and its message."""
    text = message_of(error)
    kind = kind_of(error)
    return f"{kind}: {text}" if text else kind


def traced(error: BaseException) -> str:
    """An error with the lines that led to it; of a long one, both ends."""
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
    if len(text) > MESSAGE_MAX:
        text = f"{text[:MESSAGE_MAX]}... ({len(text):,} characters)"
    return text.encode(errors="backslashreplace").decode()


def safe_repr(value: object) -> str:
    """What Python shows of a value, as far as it can be kept."""
    return writable(described(value).decode())


def brief(value: object) -> str:
    """The beginning of that, for an error that names what was given."""
    return safe_repr(value)[:BRIEF_MAX]


def described(value: Any) -> bytes:
    """What can be shown of a value that has no stored form."""
    try:
        return repr(value).encode(errors="backslashreplace")
    except BaseException:
        return f"a {kind_of(value)}".encode(errors="backslashreplace")
