"""What is told of errors and values that are not ours: short, and so that it can be written. Pure.

An error may say what no encoding has, more than a journal takes, or fail when it is asked; a value
as well. None of that may be the end of whoever tells of it.
"""

from __future__ import annotations

from typing import Any, Final

SAID_MAX: Final = 10_000
"""Characters that are told of an error."""


def said(error: BaseException) -> str:
    """What an error says."""
    try:
        return writable(str(error))
    except Exception:
        return "(what it says cannot be told)"


def writable(text: str) -> str:
    """A text, as far as it can be kept."""
    if len(text) > SAID_MAX:
        text = f"{text[:SAID_MAX]}... ({len(text):,} characters)"
    return text.encode(errors="backslashreplace").decode()


def described(value: Any) -> bytes:
    """What can be told of a value that has no stored form."""
    try:
        return repr(value).encode(errors="backslashreplace")
    except Exception:
        return f"a {type(value).__name__}".encode()
