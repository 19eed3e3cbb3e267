"""Statements kept in files: each headed by a line that names it and says what it is for."""

from __future__ import annotations

import re
from importlib import resources


def named_sql(package: str, file: str) -> dict[str, str]:
    """The statements of a file, by name. A statement begins with `-- name: purpose`."""
    text = resources.files(package).joinpath(file).read_text("utf-8")
    parts = re.split(r"^-- (\w+): .*\n", text, flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}
