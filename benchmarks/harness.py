"""What every benchmark shares: rounds, figures, ratios, the table and the JSON object.

A machine changes speed under us while we measure. So whatever is compared is measured alternately
in one run, and a ratio is the median of the ratios of each round, with their spread.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parent.parent
ROUNDS_MIN = 3

Measure = Callable[[], float]
"""Takes one sample of one thing and returns it."""


@dataclass(frozen=True, slots=True)
class Target:
    """A bound that a figure or ratio should keep, written as `">= 0.6"` or `"<= 3"`."""

    at_least: bool
    bound: float

    @classmethod
    def parse(cls, text: str) -> Target:
        found = re.fullmatch(r"\s*(>=|<=)\s*(\d+(?:\.\d+)?)\s*", text)
        if not found:
            raise ValueError(f"a target is '>= NUMBER' or '<= NUMBER', not {text!r}")
        return cls(found[1] == ">=", float(found[2]))

    def met_by(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {readable(self.bound)}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: the median of its samples, or the reason why there are none."""

    name: str
    samples: tuple[float, ...]
    unit: str = ""
    note: str = ""
    target: Target | None = None
    reason: str | None = None

    @property
    def value(self) -> float | None:
        return statistics.median(self.samples) if self.samples else None

    @property
    def spread(self) -> str:
        if len(self.samples) < 2:
            return ""
        return f"{readable(min(self.samples))} .. {readable(max(self.samples))}"

    @property
    def verdict(self) -> str:
        if self.target is None or self.value is None:
            return ""
        return f"{self.target} {'met' if self.target.met_by(self.value) else 'MISSED'}"


@dataclass
class Report:
    """What a benchmark fills in while it runs. Progress goes to `progress_to`, apart from it."""

    name: str
    quick: bool = False
    progress_to: TextIO = field(default_factory=lambda: sys.stderr)
    figures: list[Row] = field(default_factory=list)
    ratios: list[Row] = field(default_factory=list)

    def figure(
        self,
        name: str,
        value: float | Sequence[float] | None,
        unit: str = "",
        note: str = "",
        *,
        target: str | None = None,
    ) -> None:
        """Add a measured number: one value, or samples of which the median counts.

        `None` says that it could not be measured; `note` is then the reason and has to be given.
        """
        if value is None:
            self._add(self.figures, Row(name, (), unit, reason=_required(note)))
            return
        samples = tuple(value) if isinstance(value, Sequence) else (value,)
        self._add(self.figures, _row(name, samples, unit, note, target))

    def ratio(
        self,
        name: str,
        numerator: Sequence[float] | None,
        denominator: Sequence[float] | None,
        target: str | None = None,
        note: str = "",
    ) -> None:
        """Add a comparison: samples of two things, taken alternately, one of each per round.

        `None` for either side says that it could not be measured; `note` is then the reason.
        """
        if numerator is None or denominator is None:
            self._add(self.ratios, Row(name, (), reason=_required(note)))
            return
        if len(numerator) != len(denominator) or len(numerator) < ROUNDS_MIN:
            raise ValueError(
                f"{name}: a ratio needs at least {ROUNDS_MIN} rounds with a sample of each,"
                f" not {len(numerator)} and {len(denominator)}"
            )
        pairs = zip(numerator, denominator, strict=True)
        samples = tuple(above / below if below else math.inf for above, below in pairs)
        self._add(self.ratios, _row(name, samples, "x", note, target))

    def rounds(self, full: int) -> int:
        """How many rounds to measure: `full`, or the fewest that give a spread when `--quick`."""
        if full < ROUNDS_MIN:
            raise ValueError(f"at least {ROUNDS_MIN} rounds, not {full}")
        return ROUNDS_MIN if self.quick else full

    def alternate(self, rounds: int, **measures: Measure) -> dict[str, list[float]]:
        """Sample each measure once per round, and return its samples by name.

        Each round starts with another measure, so that none always runs on a rested machine.
        """
        order = list(measures)
        samples: dict[str, list[float]] = {name: [] for name in order}
        for number in range(rounds):
            shift = number % len(order)
            for name in order[shift:] + order[:shift]:
                self.progress(f"round {number + 1}/{rounds}: {name}")
                samples[name].append(measures[name]())
        return samples

    def progress(self, text: str) -> None:
        print(f"{self.name}: {text}", file=self.progress_to, flush=True)

    def as_json(self) -> dict[str, Any]:
        """The one object a program reads: plain numbers, or null with the reason beside it."""
        rows = [*self.figures, *self.ratios]
        made: dict[str, Any] = {
            "name": self.name,
            "figures": {row.name: row.value for row in self.figures},
            "ratios": {row.name: row.value for row in self.ratios},
        }
        if reasons := {row.name: row.reason for row in rows if row.reason}:
            made["reasons"] = reasons
        return made

    def write_json(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_json(), indent=2, allow_nan=False) + "\n")

    def table(self) -> str:
        """What a person reads."""
        lines = [("", "median", "", "min .. max", "target", "")]
        for row in [*self.figures, *self.ratios]:
            median = "-" if row.value is None else readable(row.value)
            remark = f"not measured: {row.reason}" if row.reason else row.note
            lines.append((row.name, median, row.unit, row.spread, row.verdict, remark))
        widths = [max(len(line[column]) for line in lines) for column in range(6)]
        return "\n".join(_aligned(line, widths) for line in lines)

    def _add(self, rows: list[Row], row: Row) -> None:
        if any(row.name == other.name for other in [*self.figures, *self.ratios]):
            raise ValueError(f"{row.name} was reported twice")
        rows.append(row)


def _row(name: str, samples: tuple[float, ...], unit: str, note: str, target: str | None) -> Row:
    bound = Target.parse(target) if target else None
    if not samples:
        raise ValueError(f"{name}: no samples; report None and the reason instead")
    if not all(math.isfinite(sample) for sample in samples):
        return Row(name, (), unit, target=bound, reason=f"not a finite number: {samples}")
    return Row(name, samples, unit, note, bound)


def _required(note: str) -> str:
    if not note:
        raise ValueError("a number that could not be measured needs its reason as the note")
    return note


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    name, median, *rest = line
    cells = [name.ljust(widths[0]), median.rjust(widths[1])]
    cells += [cell.ljust(width) for cell, width in zip(rest, widths[2:], strict=True)]
    return "  ".join(cells).rstrip()


def readable(number: float) -> str:
    """Three significant digits, with separators instead of exponents."""
    if number == 0 or abs(number) >= 100:
        return f"{number:,.0f}"
    decimals = max(0, 2 - math.floor(math.log10(abs(number))))
    return f"{number:.{decimals}f}"


@dataclass(frozen=True, slots=True)
class PeerEnvironment:
    """The interpreter of a peer's own environment, or the reason why there is none."""

    python: Path | None
    reason: str = ""


LINE_MAX = 100
"""Characters of what a program printed that stand in a reason."""

ADDRESS = re.compile(
    r"""
      \S*[/\\]\S*                                  # a URL or a path
    | \bhost=(?:'[^']*'|"[^"]*"|[^\s,)]+)          # as the HTTP client of pip says it
    | \bport=\d+
    | [^\s('"]+@[^\s)'"]+                          # with credentials
    | \[[0-9a-fA-F:.]*:[0-9a-fA-F:.]*\](?::\d+)?   # IPv6
    | (?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,}[0-9a-fA-F.]*
    | (?<![\w.=])\d+\.\d+\.\d+\.\d+(?::\d+)?      # a version of four numbers stands behind `==`
    | (?<![\w.=-])[\w-]+(?:\.[\w-]+)*:\d{2,5}\b    # a name and a port
    | (?<![\w.=-])[\w-]+(?:\.[\w-]+)+\.[a-z]{2,}\b # a name of three parts, as machines have
    """,
    re.VERBOSE,
)
"""What shows where a machine is, or what it talks to."""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def peer_environment(name: str, *, root: Path = ROOT, run: Run = subprocess.run) -> PeerEnvironment:
    """Make or reuse `.bench/NAME`, holding exactly what `requirements/peers/NAME.txt` locks.

    A peer never shares our environment: its dependencies could change what we measure. The lock
    names all of them, so pip looks for no others: an old one refuses extras that carry hashes.
    """
    lock = root / "requirements" / "peers" / f"{name}.txt"
    if not lock.exists():
        return PeerEnvironment(None, f"no lock file {lock.relative_to(root)}")
    home = root / ".bench" / name
    python, stamp = home / "bin" / "python", home / ".installed"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return PeerEnvironment(python)
    try:
        venv.create(home, clear=True, with_pip=True)
    except (OSError, subprocess.CalledProcessError):
        return PeerEnvironment(None, f"no environment with pip could be made for {name}")
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--require-hashes", "-r", str(lock)]
    done = run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stdout or "").splitlines()
        errors = "\n".join(line for line in lines if line.startswith("ERROR:"))
        return PeerEnvironment(
            None, f"pip could not install {name}: {last_line(errors or done.stdout or '')}"
        )
    stamp.write_text(wanted)
    return PeerEnvironment(python)


def last_line(text: str) -> str:
    """The last line that a program printed, fit for a table: short, and without the addresses and
    paths of the machine that it ran on."""
    line = (text.strip().splitlines() or ["nothing"])[-1].strip()
    line = ADDRESS.sub("…", line)
    return line if len(line) <= LINE_MAX else line[: LINE_MAX - 1] + "…"
