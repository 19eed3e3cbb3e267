"""The diagram of packages in the architecture page, drawn from the imports themselves.

`python -m tests.support.imports` prints it.
"""

from __future__ import annotations

from pathlib import Path

from tests.tidy import product

ROOT = Path(__file__).parents[2]
EVERYWHERE = {"errors", "masking", "settings", "wire"}
"""What all may import; drawing it would hide the rest."""
ASIDE = {"testing", "__init__", "__main__"}


def arrows(root: Path = ROOT) -> dict[str, set[str]]:
    """Which package imports which, while the program runs."""
    found: dict[str, set[str]] = {}
    for source in product(root):
        if source.unit in ASIDE | EVERYWHERE:
            continue
        imported = found.setdefault(source.unit, set())
        for one in source.imports:
            top, _, rest = one.module.partition(".")
            unit = rest.partition(".")[0]
            if top == "fairway" and not one.for_types_only and unit:
                imported.add(unit)
    return {unit: (to & found.keys()) - {unit} for unit, to in found.items()}


def reduced(found: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows without those that a longer way implies."""

    def beyond(unit: str) -> set[str]:
        return found[unit].union(*(beyond(other) for other in found[unit]))

    return sorted(
        (unit, to)
        for unit, several in found.items()
        for to in several
        if not any(to in beyond(other) for other in several - {to})
    )


def diagram(root: Path = ROOT) -> str:
    lines = [f"    {unit} --> {to}" for unit, to in reduced(arrows(root))]
    return "\n".join(["flowchart TD", *lines])


if __name__ == "__main__":
    print(diagram())
