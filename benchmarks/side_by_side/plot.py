"""The medians as bars, as an SVG without anything but text and rectangles."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from side_by_side.report import Result, shown
from side_by_side.work import Row

_WIDTH, _LABELS, _BARS = 860, 200, 470
_BAR, _GAP, _HEAD = 11, 9, 34
_COLORS = {"headrace": "#1f6feb", "llama.cpp": "#c9510c", "OpenVINO": "#6f42c1", "vLLM": "#57606a"}


def svg(results: Sequence[Result]) -> str:
    """Each row has a scale of its own: its longest bar fills the width."""
    shapes: list[str] = []
    y = _legend(shapes)
    for result in results:
        if result.engines:
            y = _case(shapes, result, y)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" viewBox="0 0 {_WIDTH} {y}"'
        ' font-family="sans-serif" font-size="11">'
    )
    return (
        "\n".join([head, f'<rect width="{_WIDTH}" height="{y}" fill="#ffffff"/>', *shapes, "</svg>"]) + "\n"
    )


def _legend(shapes: list[str]) -> int:
    x = _LABELS
    for name, color in _COLORS.items():
        shapes.append(f'<rect x="{x}" y="14" width="{_BAR}" height="{_BAR}" fill="{color}"/>')
        shapes.append(_text(x + 16, 23, name))
        x += 100
    return _HEAD


def _case(shapes: list[str], result: Result, y: int) -> int:
    shapes.append(_text(12, y + 18, result.case.title, weight="bold", size=12))
    y += _HEAD
    for row in result.case.rows:
        values = {name: result.value(name, row) for name in result.engines}
        present = {name: value for name, value in values.items() if value}
        if not present:
            continue
        note = f"{row.label} ({row.unit}{', less is better' if row.lower_is_better else ''})"
        shapes.append(_text(_LABELS - 8, y + 9, note, anchor="end"))
        longest = max(present.values())
        for name, value in present.items():
            width = max(1, round(_BARS * value / longest))
            shapes.append(
                f'<rect x="{_LABELS}" y="{y}" width="{width}" height="{_BAR - 1}" fill="{_COLORS[name]}"/>'
            )
            shapes.append(_text(_LABELS + width + 5, y + 9, _figure(result, name, row, value)))
            y += _BAR
        y += _GAP
    return y + _GAP


def _figure(result: Result, name: str, row: Row, value: float) -> str:
    ratio = None if name == "headrace" else result.ratio(name, row)
    return f"{shown(value)} (Headrace: {ratio:.2f} ×)" if ratio else shown(value)


def _text(x: int, y: int, text: str, *, anchor: str = "start", weight: str = "normal", size: int = 11) -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" font-size="{size}" fill="#1f2328"'
    return f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>'
