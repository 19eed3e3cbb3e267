"""`python -m benchmarks NAME [--quick] [--json FILE]`; without a name, the list of benchmarks."""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import platform
import sys
from pathlib import Path

from benchmarks.harness import Report

HERE = Path(__file__).resolve().parent


def available(folder: Path = HERE) -> dict[str, str]:
    """Each module that defines `run`, with the first line of its docstring. Nothing is imported."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        if any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", help="which benchmark; leave it out for the list")
    parser.add_argument("--quick", action="store_true", help="fewer rounds of the same sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    chosen = parser.parse_args(arguments)

    benchmarks = available()
    if chosen.name is None:
        width = max(map(len, benchmarks), default=0)
        for name, purpose in benchmarks.items():
            print(f"{name:{width}}  {purpose}")
        return 0
    if chosen.name not in benchmarks:
        parser.error(f"no benchmark {chosen.name!r}; there are: {', '.join(benchmarks)}")

    report = Report(chosen.name, quick=chosen.quick)
    importlib.import_module(f"benchmarks.{chosen.name}").run(report, chosen.quick)
    print(f"{chosen.name}: {machine()}\n")
    print(report.table())
    if chosen.json is not None:
        report.write_json(chosen.json)
    return 0


def machine() -> str:
    """What the numbers were measured on: they mean little without it."""
    return (
        f"{platform.python_implementation()} {platform.python_version()},"
        f" {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    sys.exit(main())
