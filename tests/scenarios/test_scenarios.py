"""Replays the text files beside it: commands above a line of dashes, what they answer below.

`REWRITE=1 pytest tests/scenarios` writes today's answers into the files, to be reviewed as a diff.
A file's first command makes the machine: `ready high=2 low=1`, or `groups items=4 size=100`. What
goes as expected is not answered one by one: a block in which everything did says `ok`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairway.core.groups import Groups
from fairway.core.lanes import Drained, LaneLimits
from fairway.core.ready import Ready

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*.txt"))


def options(words: tuple[str, ...]) -> dict[str, int]:
    """`due=30 now=5` as a dictionary."""
    return {name: int(value) for name, _, value in (word.partition("=") for word in words)}


class ReadyCommands:
    """`ready band=weight …`; names after a verb are keys and bands, `now=` and `due=` are times."""

    def __init__(self, *weights: str) -> None:
        self.ready: Ready[str, str] = Ready(options(weights))

    def times(self, words: tuple[str, ...]) -> dict[str, int]:
        return {f"{name}_ns": value for name, value in options(words).items()}

    def mark(self, key: str, band: str, *times: str) -> str | None:
        return None if self.ready.mark(key, band, **self.times(times)) else "as it was"

    def take(self, count: str = "1", *cost: str) -> str:
        return " ".join(str(self.ready.take(**options(cost))) for _ in range(int(count)))

    def release(self, key: str, *times: str) -> str:
        return "waits" if self.ready.release(key, **self.times(times)) else "idle"

    def move(self, key: str, band: str, *times: str) -> None:
        self.ready.move(key, band, **self.times(times))

    def due(self, now_ns: str) -> str:
        told = [
            f"{key} in {band} since {since}" for key, band, since in self.ready.due(int(now_ns))
        ]
        return ", ".join(told) or "nobody"

    def charge(self, band: str, cost: str) -> None:
        self.ready.charge(band, int(cost))

    def withhold(self, band: str) -> None:
        self.ready.withhold(band)

    def restore(self, band: str) -> None:
        self.ready.restore(band)

    def forget(self, key: str) -> None:
        self.ready.forget(key)

    def depths(self) -> str:
        return " ".join(f"{band}={depth}" for band, depth in self.ready.depths().items())

    def check(self) -> None:
        self.ready.check()


class GroupsCommands:
    """`groups items=… size=… [total_items=… total_size=…] [reserve_items=… reserve_size=…]`."""

    def __init__(self, *limits: str) -> None:
        given = options(limits)
        total = None
        if "total_items" in given:
            total = LaneLimits(items=given["total_items"], size=given["total_size"])
        self.groups: Groups[str, str] = Groups(
            LaneLimits(items=given["items"], size=given["size"]),
            total=total,
            reserve=(given.get("reserve_items", 0), given.get("reserve_size", 0)),
        )
        self.held: dict[str, Drained[str, str]] = {}
        self.now_ns = 0

    def at(self, ms: str) -> None:
        self.now_ns = int(ms) * 1_000_000

    def offer(self, key: str, item: str, size: str, finishing: str = "") -> str | None:
        refusal = self.groups.offer(key, item, int(size), self.now_ns, finishing=bool(finishing))
        if refusal is None:
            return None
        retry_ms = refusal.retry_after_ns // 1_000_000
        return f"refused: {refusal.lane} is {refusal.depth} deep, {refusal.limit}; {retry_ms} ms"

    def take(self, *limits: str) -> str:
        group = self.groups.take(**{"keys": 9, "items": 9, "size": 999, **options(limits)})
        self.held |= {part.key: part for part in group}
        parts = [f"{' '.join(part.items)} ({part.size} bytes)" for part in group]
        return ", ".join(parts) or "nothing"

    def settle(self, key: str) -> None:
        self.groups.settle(self.held.pop(key), self.now_ns)

    def withdraw(self, key: str) -> str:
        return " ".join(self.groups.withdraw(key)) or "nothing"

    def depths(self) -> str:
        lanes = [
            f"{key}={items} ({size} bytes)" for key, (items, size) in self.groups.depths().items()
        ]
        return ", ".join(lanes) or "empty"

    def check(self) -> None:
        self.groups.check()


MACHINES = {"ready": ReadyCommands, "groups": GroupsCommands}


def replay(text: str) -> str:
    """The same file with today's answers. Blocks without dashes, and lines from `#`, are prose."""
    machine: ReadyCommands | GroupsCommands | None = None
    blocks = []
    for block in text.strip().split("\n\n"):
        commands, dashes, _ = block.partition("\n----")
        lines = commands.splitlines() if dashes else []
        answers = []
        for line in lines:
            verb, *words = line.partition("#")[0].split()
            if verb in MACHINES:
                machine = MACHINES[verb](*words)
            elif (answer := getattr(machine, verb)(*words)) is not None:
                shown = " ".join((verb, *words))
                answers.append(f"{shown} -> {answer}" if len(lines) > 1 else answer)
            machine.check()
        blocks.append("\n".join([commands, "----", *(answers or ["ok"])]) if dashes else block)
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    answered = replay(text)
    if os.environ.get("REWRITE"):
        path.write_text(answered, encoding="utf-8")
    else:
        assert answered == text


def test_a_changed_answer_is_noticed() -> None:
    assert FILES, "no scenario was found"
    text = "ready a=1\n----\nok\n\nmark k a\n----\nas it was\n"
    assert replay(text) == text.replace("as it was", "ok")
