"""A self-contained HTML file: headings, tables, plots as inline SVG, and the data as embedded JSON.

Texts may come from users' prompts and files, so all of them are escaped. Not for deciding what to show.
"""

import html
import json
from collections.abc import Sequence
from math import log
from typing import Any

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24;
  background: #fff }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2.2rem }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #d5dae1; text-align: right }
th:first-child, td:first-child { text-align: left }
.verdict { font-size: 1.15rem; padding: .8rem 1rem; background: #eef3fb; border-left: 4px solid #3451b2 }
.note { color: #57606a; font-size: .9rem }
figure { margin: 0 } svg { max-width: 100%; height: auto }
svg text { font: 13px system-ui, sans-serif; fill: #1b1f24 }
@media (prefers-color-scheme: dark) {
  body { background: #14171c; color: #e6e9ee } svg text { fill: #e6e9ee } .verdict { background: #1d2637 }
  th, td { border-color: #333b47 } .note { color: #9aa4b2 }
}
"""
COLOURS = ("#3451b2", "#c2410c", "#15803d", "#7e22ce", "#0e7490", "#b91c1c", "#a16207", "#475569")


def page(title: str, sections: Sequence[str], data: Any) -> str:
    """A whole document.

    Args:
        sections: HTML made by the functions below.
        data: JSON-ready; embedded in the element with the id ``data``.
    """
    embedded = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{_STYLE}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n{''.join(sections)}\n"
        f'<script type="application/json" id="data">{embedded}</script></body></html>\n'
    )


def escape(text: object) -> str:
    """`text` escaped for HTML."""
    return html.escape(str(text))


def heading(text: str) -> str:
    """The heading of a section."""
    return f"<h2>{escape(text)}</h2>\n"


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; `kind` is ``verdict``, ``note`` or empty."""
    return f'<p class="{kind}">{escape(text)}</p>\n' if kind else f"<p>{escape(text)}</p>\n"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; None is shown as a dash."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(_cell(cell))}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>\n"


def forest(rows: Sequence[tuple[str, float, float | None, float | None]], caption: str) -> str:
    """A forest plot of ratios with their intervals, on a logarithmic axis with a line at 1; empty without rows.

    Args:
        rows: (name, estimate, low, high); the bar is left out without an interval.
    """
    if not rows:
        return ""
    ends = [value for _, ratio, low, high in rows for value in (ratio, low or ratio, high or ratio, 1.0)]
    least, most = min(ends) / 1.05, max(ends) * 1.05
    left, width = 230, 560

    def x(value: float) -> float:
        return left + width * (log(value) - log(least)) / (log(most) - log(least))

    marks = [_line(x(1), 10, x(1), 34 + 28 * len(rows), "#8b949e", 'stroke-dasharray="4 3"')]
    for number, (name, ratio, low, high) in enumerate(rows):
        y = 28 + 28 * number
        if low is not None and high is not None:
            marks.append(_line(x(low), y, x(high), y, COLOURS[0], 'stroke-width="3"'))
        interval = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
        marks.append(f'<circle cx="{x(ratio):.1f}" cy="{y}" r="5" fill="{COLOURS[0]}"/>')
        marks.append(_text(left - 10, y + 4, name, "end"))
        marks.append(_text(left + width + 12, y + 4, f"{ratio:.2f}{interval}"))
    for tick in _ticks(least, most):
        marks.append(_text(x(tick), 52 + 28 * len(rows), f"{tick:g}", "middle"))
    return _figure(left + width + 170, 62 + 28 * len(rows), marks, caption)


def lines(series: Sequence[tuple[str, Sequence[float], Sequence[float]]], caption: str, x_name: str) -> str:
    """A line plot with marked points; the vertical axis begins at 0, or at the least value if that is negative.

    Args:
        series: (name, xs, ys).
    """
    xs = [x for _, points, _ in series for x in points]
    ys = [y for _, _, points in series for y in points]
    if not xs:
        return ""
    left, top, width, height = 60, 16, 620, 240
    low, high = min(0.0, *ys), max(*ys, 1e-9) * 1.08
    span = (max(xs) - min(xs)) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        return left + width * (x - min(xs)) / span, top + height * (1 - (y - low) / (high - low))

    marks = [
        _line(left, top + height, left + width, top + height, "#8b949e"),
        _line(left, top, left, top + height, "#8b949e"),
    ]
    for step in range(5):
        value = low + (high - low) * step / 4
        marks.append(_text(left - 8, at(min(xs), value)[1] + 4, f"{value:.2f}", "end"))
    for value in sorted({min(xs), (min(xs) + max(xs)) / 2, max(xs)}):
        marks.append(_text(at(value, low)[0], top + height + 20, f"{value:g}", "middle"))
    marks.append(_text(left + width / 2, top + height + 40, x_name, "middle"))
    for number, (name, points, values) in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (at(x, y) for x, y in zip(points, values, strict=True)))
        marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y in zip(points, values, strict=True):
            a, b = at(x, y)
            marks.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>')
        marks.append(f'<rect x="{left + width + 16}" y="{top + 22 * number}" width="12" height="12" fill="{colour}"/>')
        marks.append(_text(left + width + 34, top + 11 + 22 * number, name))
    return _figure(left + width + 220, max(top + height + 50, 30 + 22 * len(series)), marks, caption)


def bars(rows: Sequence[tuple[str, float]], caption: str) -> str:
    """A bar chart of fractions between 0 and 1; empty without rows."""
    marks = []
    for number, (name, share) in enumerate(rows):
        y = 14 + 26 * number
        marks.append(_text(220, y + 13, name, "end"))
        marks.append(
            f'<rect x="230" y="{y}" width="{max(1.0, 480 * min(share, 1)):.1f}" height="16" fill="{COLOURS[0]}"/>'
        )
        marks.append(_text(240 + 480 * min(share, 1), y + 13, f"{100 * share:.1f} %"))
    return _figure(800, 24 + 26 * len(rows), marks, caption) if rows else ""


def _figure(width: float, height: float, marks: Sequence[str], caption: str) -> str:
    head = f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(caption)}">'
    return f'<figure>{head}{"".join(marks)}</svg><figcaption class="note">{escape(caption)}</figcaption></figure>\n'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {more}/>'


def _text(x: float, y: float, text: object, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _ticks(least: float, most: float) -> list[float]:
    known = (0.1, 0.2, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 7, 10)
    inside = [tick for tick in known if least <= tick <= most]
    return inside[:: 1 + len(inside) // 8] or [round(least, 2), round(most, 2)]


def _cell(value: object) -> object:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else value
