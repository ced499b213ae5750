"""A report as one page of HTML: the picture of cost against quality, and the figures in tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from headrace.routing.alone import Point, mixtures
from headrace.routing.report import Report
from headrace.routing.report_text import Table, tables

_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 20, 50

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>What routing was worth</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 760px; margin: 2em auto; color: #222; }}
table {{ border-collapse: collapse; margin: 1em 0; }}
td, th {{ padding: 2px 14px 2px 0; text-align: right; font-variant-numeric: tabular-nums; }}
td:first-child, th:first-child {{ text-align: left; }}
th {{ border-bottom: 1px solid #999; font-weight: 600; }}
svg text {{ font: 12px system-ui, sans-serif; fill: #333; }}
</style></head><body><h1>What routing was worth</h1>
{picture}
{tables}
</body></html>
"""


def page(report: Report) -> str:
    """The page; it needs nothing else to be shown."""
    written = [_table(table) for table in tables(report)]
    return _PAGE.format(picture=picture(report), tables="\n".join(written))


def picture(report: Report) -> str:
    """Models alone, random choice between them, the route, and the best choice in hindsight, as SVG."""
    models = [(model.name, model.alone) for model in report.models if model.alone is not None]
    others = [("the route", report.route, "#c0392b")]
    if report.regret is not None:
        told = f"best in hindsight ({report.regret.requests} scored)"
        others.append((told, report.regret.hindsight, "#27803b"))
    marked = [(name, point, colour) for name, point, colour in others if point is not None]
    points = [point for _, point in models] + [point for _, point, _ in marked]
    if not points:
        return "<p>No answers to draw.</p>"
    axes = _Axes(points)
    line = " ".join("{:.1f},{:.1f}".format(*axes.at(corner)) for corner in mixtures([p for _, p in models]))
    drawn = [axes.svg(), f'<polyline points="{line}" fill="none" stroke="#888" stroke-dasharray="5 4"/>']
    drawn += [_mark(axes, point, name, "#2c5aa0") for name, point in models]
    drawn += [_mark(axes, point, name, colour) for name, point, colour in marked]
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="cost against quality">'
        f"{''.join(drawn)}</svg><p>Dashed: choosing between models at random.</p>"
    )


class _Axes:
    """Cost from 0 on, quality from a little below the lowest; where a point lies in the picture."""

    def __init__(self, points: Sequence[Point]):
        lowest, highest = min(p.quality for p in points), max(p.quality for p in points)
        margin = max(0.02, 0.15 * (highest - lowest))
        self._low, self._high = max(0.0, lowest - margin), min(1.0, highest + margin)
        self._most = 1.12 * max(p.cost for p in points) or 1.0

    def at(self, point: Point) -> tuple[float, float]:
        across, up = point.cost / self._most, (point.quality - self._low) / (self._high - self._low)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    def svg(self) -> str:
        parts = []
        for step in range(5):
            cost, quality = self._most * step / 4, self._low + (self._high - self._low) * step / 4
            x, y = self.at(Point(cost, quality))
            parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 30}" text-anchor="middle">{cost:.3g}</text>')
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{quality:.3f}</text>')
            lines = f"M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"
            parts.append(f'<path d="{lines}" stroke="#ddd"/>')
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">cost of an answer</text>')
        parts.append(
            f'<text x="14" y="{_HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 14 {_HEIGHT / 2})">'
            "quality</text>"
        )
        return "".join(parts)


def _mark(axes: _Axes, point: Point, name: str, colour: str) -> str:
    x, y = axes.at(point)
    anchor, beside = ("end", -9) if x > 0.7 * _WIDTH else ("start", 9)
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}">'
        f"<title>{escape(name)}: {point.cost:.4g}, {point.quality:.3f}</title></circle>"
        f'<text x="{x + beside:.1f}" y="{y - 8:.1f}" text-anchor="{anchor}">{escape(name)}</text>'
    )


def _table(table: Table) -> str:
    def line(cells: Sequence[str], kind: str) -> str:
        return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"

    rows = "".join(line(row, "td") for row in table.rows)
    head = line(table.head, "th") if any(table.head) else ""
    return f"<h2>{escape(table.title)}</h2><table>{head}{rows}</table>"
