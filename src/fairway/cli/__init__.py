"""The `fairway` command."""

from __future__ import annotations

from fairway.cli.main import main

__all__ = ["main"]
