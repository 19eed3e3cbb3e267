"""What may be shown of a text that somebody configured: all of it but the secrets.

Every address, error and log line that leaves the process goes through `masked`. It knows the shapes
in which secrets are written; whoever has a value in hand that is one does not print it at all.
"""

from __future__ import annotations

import logging
import re
import sys
from traceback import format_exception
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType

MASK: Final = "***"

# A database's address, when it is all there is: a password that should have been percent-encoded
# may hold anything, an @ and spaces included, so the last @ ends it.
_ADDRESS: Final = re.compile(r"(?is)\A(\s*(?!https?:)[a-z][a-z0-9+.-]*:/{1,2}[^/?#@:]*):.*@")
# The same inside of a sentence, where a space or a quote ends it.
_IN_TEXT: Final = re.compile(
    r"(?i)\b((?!https?:)[a-z][a-z0-9+.-]{0,31}:/{1,2}[^/?#@:\s'\"]*):[^\s'\"]*@"
)
_WEB: Final = re.compile(r"(?i)\b(https?://[^/?#@:\s]*):[^/?#@\s]*@")
_WORD: Final = r"(?:pass(?:word|wd|phrase)|pwd|secret|token|ticket|credentials?|api[_.-]?keys?)"
_VALUE: Final = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s&;'"})\]]+)"""
# password=x, sslpassword='x y', PGPASSWORD=x, ?password=x&…, sasl.password=x
# What comes before the word is not looked at: for each character of a long text it would be anew.
_PAIR: Final = re.compile(rf"(?i)({_WORD}\s*=\s*){_VALUE}")
# {"password": "x"}, {'sasl.password': 'x'}
_FIELD: Final = re.compile(rf"""(?i)((["'])[\w.-]*{_WORD}\2\s*:\s*){_VALUE}""")
_BEARER: Final = re.compile(r"(?i)\b(bearer\s+)[!-~]+")


def masked(text: object) -> str:
    """`text` with every password, key and token that it can be seen to hold replaced by `***`."""
    shown = str(text)
    for pattern in (_ADDRESS, _IN_TEXT, _WEB):
        shown = pattern.sub(rf"\1:{MASK}@", shown)
    for pattern in (_PAIR, _FIELD, _BEARER):
        shown = pattern.sub(rf"\1{MASK}", shown)
    return shown


class MaskedFormatter(logging.Formatter):
    """Log lines without secrets, tracebacks and all: drivers put addresses into their errors."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


def log_masked(form: str, level: int) -> None:
    """Log to standard error, masked, unless the process has handlers of its own."""
    handler = logging.StreamHandler()
    handler.setFormatter(MaskedFormatter(form))
    logging.basicConfig(handlers=[handler], level=level)


def mask_tracebacks() -> None:
    """What ends the process uncaught is printed without secrets, too."""

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stderr.write(masked("".join(format_exception(kind, error, trace))))

    sys.excepthook = show
