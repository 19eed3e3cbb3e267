"""Makes the blocking client of the one for asyncio: `make client` writes it, `--check` compares.

Every module of `client/aio` becomes one of `client/sync`, word by word: `async` and `await` go, and
`AsyncWatch` becomes `Watch`. What differs by more than a word stands in `client/faces.py`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CLIENT = Path(__file__).parents[1] / "src/fairway/client"
COMMAND = "make client"

WORDS = [
    (re.compile(pattern), word)
    for pattern, word in (
        (r"\basync (?=def|for|with)", ""),
        (r"\bawait ", ""),
        (r"\bAsync(?=[A-Z])", ""),
        (r"\basync_(?=[a-z])", ""),
        (r"\b__a(enter|exit|iter|next)__", r"__\1__"),
        (r"\ba(close|closing|iter_raw|next|read)\b", r"\1"),
        (r"\bclock\.wait_ns\b", "clock.sleep_ns"),
        (r"\bclient\.aio\b", "client.sync"),
        (r"\bTasks may\b", "Threads may"),
    )
]
LEFT = re.compile(r"\b(async|await|asyncio|Async\w+)\b")
"""What a blocking module does not say."""
FIX = (
    *("check", "--fix-only", "--unsafe-fixes", "--select"),
    "I001,UP028",  # imports in order, and `yield from` where a loop did nothing else
    *("--config", "lint.isort.known-first-party=['fairway']"),  # a new module is not there yet
)


def blocking(source: str, name: str) -> str:
    """The blocking twin of a module called `name`, as `ruff` would have it."""
    text = source
    for pattern, word in WORDS:
        text = pattern.sub(word, text)
    if left := LEFT.search(text):
        raise ValueError(f"aio/{name}: no rule for {left[0]!r}; add one, or use client/faces.py")
    head = f"# Generated from aio/{name}: edit that one, then run `{COMMAND}`.\n"
    path = str(CLIENT / "sync" / name)
    return _ruff(_ruff(head + text, *FIX, name=path), "format", name=path)


def _ruff(text: str, *command: str, name: str) -> str:
    ruff = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", name, "-"]
    done = subprocess.run(ruff, input=text, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def stale(client: Path = CLIENT) -> Iterator[tuple[Path, str | None]]:
    """Each blocking module that is not what it should be, with what it should be, if anything."""
    sources = {path.name: path for path in sorted((client / "aio").glob("*.py"))}
    for name, source in sources.items():
        path = client / "sync" / name
        made = blocking(source.read_text(encoding="utf-8"), name)
        if not path.exists() or path.read_text(encoding="utf-8") != made:
            yield path, made
    for path in sorted((client / "sync").glob("*.py")):
        if path.name not in sources:
            yield path, None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it is stale")
    check = parser.parse_args().check
    found = list(stale())
    for path, made in found:
        print(f"{'stale' if check else 'written'}: {path.relative_to(CLIENT.parents[2])}")
        if check:
            continue
        if made is None:
            path.unlink()
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(made, encoding="utf-8")
    if found and check:
        print(f"the blocking client is not what client/aio says: run `{COMMAND}`")
    return 1 if found and check else 0


if __name__ == "__main__":
    sys.exit(main())
