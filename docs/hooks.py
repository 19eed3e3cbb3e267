"""Pages that are kept at the root of the repository, and tests that pages rely on.

`README.md` is the front page, where people look first. Its links are relative to the root, so they
are turned to what the same thing is called here; a link to a file that is not part of the
documentation keeps its text. A page that names a test in `code` is warned of if there is no such
test, which fails a strict build. `<!-- help: topic append -->` becomes what that command prints.
`diagram` draws a table of moves; the diagrams in pages are compared with it by the tests.
"""

from __future__ import annotations

import logging
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Set
    from enum import Enum

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
ADDRESSES = {name: page for page, name in PAGES.items()}
LINK = re.compile(r"\[([^\]]+)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
TEST = re.compile(r"`(?:[\w/.]+::)?(test_\w+)`")
HELP = re.compile(r"<!-- help:(?P<words>[\w ]*) -->")

logger = logging.getLogger("mkdocs.hooks.fairway")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    kept_at_root = PAGES.get(page.file.src_uri)
    if kept_at_root is not None:
        markdown = LINK.sub(_turned, (ROOT / kept_at_root).read_text(encoding="utf-8"))
    for name in missing_tests(markdown):
        logger.warning("%s names %s, and there is no such test", page.file.src_uri, name)
    return HELP.sub(_help, markdown)


def missing_tests(markdown: str) -> list[str]:
    """Tests that a page names and that are not there."""
    return sorted(set(TEST.findall(markdown)) - _tests())


def _help(marker: re.Match[str]) -> str:
    """What a command says of itself, as a terminal of 80 columns shows it."""
    import click

    from fairway.cli import main

    command: click.Command = main
    context = click.Context(command, info_name="fairway", max_content_width=80)
    context.terminal_width = 80
    for word in marker["words"].split():
        assert isinstance(command, click.Group)
        found = command.get_command(context, word)
        assert found is not None, f"there is no command {marker['words']!r}"
        command = found
        context = click.Context(command, info_name=word, parent=context, terminal_width=80)
    return f"```text\n{command.get_help(context)}\n```"


def diagram(moves: Mapping[Enum, Mapping[Enum, str] | Set[Enum]]) -> str:
    """A table of legal moves, from each state to each other and perhaps why, as Mermaid draws it.

    Where there are no reasons, moves go in the order in which the states are declared.
    """
    lines = ["stateDiagram-v2"]
    for state, ways in moves.items():
        name = state.name.lower()
        if isinstance(ways, dict):
            lines += [f"    {name} --> {to.name.lower()}: {why}" for to, why in ways.items()]
        else:
            lines += [f"    {name} --> {to.name.lower()}" for to in type(state) if to in ways]
    return "\n".join(lines)


def _turned(link: re.Match[str]) -> str:
    text, address, anchor = link[1], link[2].removeprefix("./"), link[3] or ""
    if address in ADDRESSES:
        return f"[{text}]({ADDRESSES[address]}{anchor})"
    if address.startswith("docs/") and address.endswith(".md"):
        return f"[{text}]({address.removeprefix('docs/')}{anchor})"
    return text


@cache
def _tests() -> frozenset[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    texts = (path.read_text(encoding="utf-8") for path in files)
    return frozenset(name for text in texts for name in re.findall(r"def (test_\w+)", text))
