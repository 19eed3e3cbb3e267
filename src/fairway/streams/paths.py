"""Where a stream is kept: which paths can name one, and the topic of each of them. Pure."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from fairway.errors import InvalidRequest, NotFound

NAMESPACE: Final = "ds:"
"""Topics of streams whose path can be read from their name."""
HASHED: Final = "dsh:"
"""Topics of streams whose path cannot be a name: its digest is, and the path is kept inside."""
RESERVED: Final = "__ds"
PATH_BYTES_MAX: Final = 2048

_READABLE = re.compile(r"[A-Za-z0-9._/-]{1,250}")


def check_path(path: str) -> None:
    """Raise `InvalidRequest` if `path` cannot name a stream, `NotFound` if it is reserved."""
    if path.partition("/")[0] == RESERVED:
        raise NotFound("stream", path)  # subscriptions are not offered here
    if len(path.encode("utf-8", "surrogatepass")) > PATH_BYTES_MAX:
        raise InvalidRequest(f"a stream's path has at most {PATH_BYTES_MAX} bytes")
    if not path.isprintable():
        raise InvalidRequest("a stream's path has no control characters")


def topic_name(path: str) -> str:
    """The topic that keeps the stream at `path`: readable where that is reversible."""
    if _READABLE.fullmatch(path):
        return NAMESPACE + path.replace("/", ":")
    return HASHED + sha256(path.encode()).hexdigest()


def resource_name(path: str) -> str:
    """What a key's prefixes are compared with: as if every path could be read from its topic."""
    return NAMESPACE + path.replace("/", ":")


def keeps_stream(topic: str) -> bool:
    """Whether a topic of that name is a stream's, or will be once it is made."""
    return topic.startswith((NAMESPACE, HASHED))


def path_in(topic: str) -> str:
    """The path of the stream that a topic keeps, or "" if its name does not say."""
    return topic.removeprefix(NAMESPACE).replace(":", "/") if topic.startswith(NAMESPACE) else ""
