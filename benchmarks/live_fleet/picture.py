"""Quality against cost as an SVG, a panel for each suite: models, random mixing, the oracle, policies."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

Plain = dict[str, Any]
Points = Sequence[Sequence[float]]

_SIDE, _MARGIN, _HEAD = 300, 46, 60
_COLORS = {"random mixing": "#57606a", "oracle": "#1a7f37", "auto": "#1f6feb", "prompt alone": "#c9510c"}


def svg(found: Plain) -> str:
    """Costs are shares of what the best model costs."""
    width, height = len(found) * (_SIDE + _MARGIN) + 20, _SIDE + _HEAD + 40
    shapes = [f'<rect width="{width}" height="{height}" fill="#ffffff"/>']
    for number, (name, color) in enumerate(_COLORS.items()):
        x = _MARGIN + 120 * number
        shapes.append(f'<rect x="{x}" y="12" width="18" height="3" fill="{color}"/>')
        shapes.append(_text(x + 24, 18, name))
    for number, (suite, told) in enumerate(found.items()):
        shapes += _panel(suite, told, _MARGIN + number * (_SIDE + _MARGIN))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">'
    )
    return "\n".join([head, *shapes, "</svg>"]) + "\n"


def _panel(suite: str, told: Plain, left: int) -> list[str]:
    lines = {"random mixing": told["random mixing"], "oracle": told["oracle"]}
    lines |= {name: told["policies"][name]["line"] for name in ("prompt alone", "auto")}
    dearest = 1.05 * max(1.0, *(each["cost"] for each in told["models"].values()))
    best = 1.05 * max(quality for _, quality in told["oracle"])

    def place(cost: float, quality: float) -> tuple[float, float]:
        x = left + min(cost / dearest, 1.0) * _SIDE
        return round(x, 1), round(_HEAD + (1 - quality / best) * _SIDE, 1)

    def path(points: Points) -> str:
        return " ".join(f"{x},{y}" for x, y in (place(cost, quality) for cost, quality in points))

    frame = f'<rect x="{left}" y="{_HEAD}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#d0d7de"/>'
    shapes = [frame, _text(left, _HEAD - 8, f"{suite}: quality (up to {best:.2f}) against cost")]
    for name, points in lines.items():
        style = f'fill="none" stroke="{_COLORS[name]}" stroke-width="1.6"'
        shapes.append(f'<polyline points="{path(points)}" {style}/>')
    for name, each in told["models"].items():
        x, y = place(each["cost"], each["quality"])
        shapes.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="#24292f"/>')
        anchor = "end" if x > left + _SIDE / 2 else "start"
        shapes.append(_text(x + (-6 if anchor == "end" else 6), y + 13, name, anchor))
    shapes.append(_text(left, _HEAD + _SIDE + 16, "0"))
    shapes.append(_text(left + _SIDE, _HEAD + _SIDE + 16, f"{dearest:.2f} of the best model's cost", "end"))
    return shapes


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="#24292f">{escape(text)}</text>'
