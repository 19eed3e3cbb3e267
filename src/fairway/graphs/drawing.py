"""Draws a graph: as Mermaid for documents, and as an SVG that needs nothing else to be seen."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Final
from unicodedata import east_asian_width
from zlib import crc32

from fairway.graphs.layout import lay_out
from fairway.graphs.node import named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairway.graphs.layout import Box, Line, Point
    from fairway.graphs.wiring import Edge, Wiring

RESERVED: Final = {
    *("call", "class", "classdef", "click", "default", "direction", "end", "flowchart", "graph"),
    *("href", "interpolate", "linkstyle", "style", "subgraph"),
}
"""Words that Mermaid does not take as the name of a node."""

# Text is measured by its letters, so it is set in a font whose letters are equally wide.
FONT: Final = "ui-monospace,'SF Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace"
NAME_SIZE: Final = 13.0
SMALL_SIZE: Final = 11.0
LETTER: Final = 0.61
"""The width of a letter, of its size."""
NAME_MAX: Final = 36
LABEL_MAX: Final = 28
PADDING: Final = 14.0
ARROW: Final = 8.0

STYLE: Final = """
.fairway-graph{--page:#fff;--ink:#1f2328;--soft:#59636e;--line:#818b98;--node:#f6f8fa;\
--source:#ddf4ff;--source-line:#0969da;--result:#dafbe1;--result-line:#1a7f37;color:var(--ink)}
@media (prefers-color-scheme:dark){.fairway-graph{--page:#0d1117;--ink:#e6edf3;--soft:#9198a1;\
--line:#7d8590;--node:#161b22;--source:#10274a;--source-line:#4493f8;--result:#0d2d1a;\
--result-line:#3fb950}}
.fairway-graph .page{fill:var(--page)}
.fairway-graph .box{fill:var(--node);stroke:var(--line);stroke-width:1.25}
.fairway-graph .source .box{fill:var(--source);stroke:var(--source-line)}
.fairway-graph .terminal .box{fill:var(--result);stroke:var(--result-line);stroke-width:2}
.fairway-graph .edge{fill:none;stroke:var(--line);stroke-width:1.5}
.fairway-graph .optional{stroke-dasharray:5 4}
.fairway-graph .tip{fill:var(--line)}
.fairway-graph text{fill:currentColor;font-family:FONT;font-size:13px;text-anchor:middle}
.fairway-graph .small{fill:var(--soft);font-size:11px}
""".replace("FONT", FONT)


def to_mermaid(wiring: Wiring, kinds: Mapping[str, str] | None = None) -> str:
    """The graph as Mermaid. `kinds` say what each source is.

    Sources are rounded, results have a double border, and a dashed edge may bring nothing. An edge
    that takes only some of what a node gives is labelled with the type.
    """
    kinds = kinds or {}
    names = [*wiring.sources, *(node.name for node in wiring.nodes)]
    ids = {
        name: name if _is_mermaid_id(name) else _unused(f"node_{at}", names)
        for at, name in enumerate(names)
    }
    lines = ["flowchart LR"]
    for name in wiring.sources:
        kind = f"<br/>{_quoted(kinds[name])}" if kinds.get(name) else ""
        lines.append(f'    {ids[name]}(["{_quoted(name)}{kind}"])')
    for node in wiring.nodes:
        opening, closing = ("[[", "]]") if node.name in wiring.terminal else ("[", "]")
        lines.append(f'    {ids[node.name]}{opening}"{_quoted(node.name)}"{closing}')
    for edge in wiring.edges:
        label = _quoted(_types(edge))
        if edge.optional:
            arrow = f'-. "{label}" .->' if label else "-.->"
        else:
            arrow = f'-- "{label}" -->' if label else "-->"
        lines.append(f"    {ids[edge.source]} {arrow} {ids[edge.node]}")
    return "\n".join(lines) + "\n"


def to_svg(
    wiring: Wiring,
    kinds: Mapping[str, str] | None = None,
    numbers: Mapping[str, str] | None = None,
) -> str:
    """The graph as one SVG element, drawn as `to_mermaid` says.

    `numbers` are short texts, such as rates, that stand with a source or node by its name, and with
    an edge by `"a->b"`. Every box has `data-name` and every line `data-edge`, for a page that wants
    to find them; a page may set the colours as well, which are variables of `.fairway-graph`.
    """
    kinds, numbers = kinds or {}, numbers or {}
    below = {name: _joined(kinds.get(name), numbers.get(name)) for name in wiring.sources}
    below.update({node.name: numbers.get(node.name, "") for node in wiring.nodes})
    sizes = {name: _size(name, text) for name, text in below.items()}
    texts = {(e.source, e.node): _edge_label(e, numbers) for e in wiring.edges}
    labels = {key: _width(_cut(text, LABEL_MAX), SMALL_SIZE) for key, text in texts.items() if text}
    layout = lay_out(wiring.sources, sizes, texts, labels)
    own = f"{crc32(wiring.name.encode(errors='replace')):08x}"
    width, height = f"{layout.width:.0f}", f"{layout.height:.0f}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fairway-graph" role="img"'
        f' aria-labelledby="title-{own} desc-{own}" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}">',
        f'<title id="title-{own}">{_xml(f"Graph {wiring.name}")}</title>',
        f'<desc id="desc-{own}">{_xml(_described(wiring, kinds))}</desc>',
        f"<style>{STYLE}</style>",
        f'<defs><marker id="tip-{own}" markerWidth="{ARROW:g}" markerHeight="{ARROW:g}" refX="0"'
        f' refY="{ARROW / 2:g}" orient="auto" markerUnits="userSpaceOnUse"><polygon class="tip"'
        f' points="0,0 {ARROW:g},{ARROW / 2:g} 0,{ARROW:g}"/></marker></defs>',
        f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
    ]
    for edge in wiring.edges:
        line = layout.lines[edge.source, edge.node]
        parts += _line(edge, line, texts[edge.source, edge.node], own)
    for name, box in layout.boxes.items():
        kind = "source" if name in wiring.sources else "node"
        kind += " terminal" if name in wiring.terminal else ""
        parts.append(_box(name, below[name], box, kind))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _types(edge: Edge) -> str:
    """The types that pass, without the modules they are in."""
    if not edge.routed:
        return ""
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", " | ".join(named(each) for each in edge.accepts))


# Mermaid


def _is_mermaid_id(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) is not None and name.lower() not in RESERVED


def _unused(name: str, names: list[str]) -> str:
    while name in names:
        name += "_"
    return name


def _quoted(text: str) -> str:
    """A text within quotes; `#` begins what Mermaid calls an entity code."""
    return re.sub(r"[#\"<>&`\\]", lambda found: f"#{ord(found[0])};", " ".join(text.split()))


# SVG


def _joined(*texts: str | None) -> str:
    return " · ".join(text for text in texts if text)


def _edge_label(edge: Edge, numbers: Mapping[str, str]) -> str:
    return _joined(_types(edge), numbers.get(f"{edge.source}->{edge.node}"))


def _size(name: str, below: str) -> tuple[float, float]:
    width = max(
        _width(_cut(name, NAME_MAX), NAME_SIZE), _width(_cut(below, NAME_MAX), SMALL_SIZE), 40.0
    )
    return width + 2 * PADDING, 46.0 if below else 34.0


def _width(text: str, size: float) -> float:
    letters = sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)
    return letters * size * LETTER


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _line(edge: Edge, line: Line, text: str, own: str) -> list[str]:
    kind = "edge optional" if edge.optional else "edge"
    name = _xml(f"{edge.source}->{edge.node}")
    hint = _xml(f"{edge.source} to {edge.node}" + (f": {text}" if text else ""))
    parts = [
        f'<path class="{kind}" data-edge="{name}" d="{_path(line.points)}"'
        f' marker-end="url(#tip-{own})"><title>{hint}</title></path>'
    ]
    if line.label is not None:
        x, y = line.label.middle.x, line.label.y + line.label.height - 2
        parts.append(
            f'<text class="small" data-edge="{name}" x="{x:.1f}" y="{y:.1f}">'
            f"{_xml(_cut(text, LABEL_MAX))}</text>"
        )
    return parts


def _path(points: tuple[Point, ...]) -> str:
    """Level lines and curves between them, up to where the tip of the arrow begins."""
    before = points[0]
    steps = [f"M{before.x:.1f},{before.y:.1f}"]
    for at, point in enumerate(points[1:], 2):
        x = point.x - ARROW if at == len(points) else point.x
        if abs(point.y - before.y) < 0.05:
            steps.append(f"H{x:.1f}")
        else:
            half = (before.x + point.x) / 2
            steps.append(
                f"C{half:.1f},{before.y:.1f} {half:.1f},{point.y:.1f} {x:.1f},{point.y:.1f}"
            )
        before = point
    return " ".join(steps)


def _box(name: str, below: str, box: Box, kind: str) -> str:
    x, middle = box.middle
    corner = box.height / 2 if kind == "source" else 6.0
    texts = [(_cut(name, NAME_MAX), "", middle + (-3 if below else 4.5))]
    if below:
        texts.append((_cut(below, NAME_MAX), ' class="small"', middle + 14))
    drawn = "".join(
        f'<text{style} x="{x:.1f}" y="{y:.1f}">{_xml(text)}</text>' for text, style, y in texts
    )
    return (
        f'<g class="{kind}" data-name="{_xml(name)}"><title>{_xml(_joined(name, below))}</title>'
        f'<rect class="box" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}"'
        f' height="{box.height:.1f}" rx="{corner:g}"/>{drawn}</g>'
    )


def _described(wiring: Wiring, kinds: Mapping[str, str]) -> str:
    sources = [f"{n} ({kinds[n]})" if kinds.get(n) else n for n in wiring.sources]
    edges = []
    for edge in wiring.edges:
        note = _joined(_types(edge), "optional" if edge.optional else "")
        edges.append(f"{edge.source} to {edge.node}{f' ({note})' if note else ''}")
    return (
        f"Sources: {', '.join(sources) or 'none'}. Edges: {'; '.join(edges)}."
        f" Results: {', '.join(wiring.terminal)}."
    )


def _xml(text: str) -> str:
    """Text as XML takes it: what it has no letter for, such as control characters, is left out."""
    allowed = re.sub("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", text)
    return escape(allowed, quote=True)
