"""A report in tables, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.routing.report import Foreseen, Report


@dataclass(frozen=True)
class Table:
    """A title, the columns' names, perhaps empty, and rows as long; the first column stands left."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """In columns."""
        lines = [self.head, *self.rows] if any(self.head) else self.rows
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.head))]
        written = [
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([self.title, *(f"  {line}" for line in written)])


def tables(report: Report) -> list[Table]:
    """Everything that is known; what is not has no table."""
    made = (_summary, _models, _kept, _foreseen, _calibration, _spend)
    return [table for make in made if (table := make(report)).rows]


def _summary(report: Report) -> Table:
    rows = [["answers", str(report.answers)]]
    if report.statuses:
        rows.append(["not given in full", _counts(report.statuses)])
    counted = {"cascaded": report.cascaded, "hedged": report.hedged, "fell back": report.fell_back}
    rows += [[name, str(count)] for name, count in counted.items() if count]
    savings = report.savings
    if report.answers:
        rows.append(["cost of the answers", f"{sum(model.cost for model in report.models):.4g}"])
    if savings.saved is not None:
        if savings.answers < report.answers:
            rows.append(["compared with the best model", str(savings.answers)])
            rows.append(["cost of these", f"{savings.cost:.4g}"])
        rows.append(["the best model alone, as predicted", f"{savings.best_cost:.4g}"])
        rows.append(["saved", f"{savings.saved:.1%}"])
    if report.route is not None:
        rows.append(["quality, estimated", f"{report.route.quality:.3f}"])
        rows.append(["cost of an answer", f"{report.route.cost:.4g}"])
    if report.mixing is not None:
        rows.append(["at random, for that quality", f"{report.mixing:.4g}"])
    if (regret := report.regret) is not None:
        rows.append(["scored for several models", str(regret.requests)])
        rows.append(["regret in quality", f"{regret.quality:.3f}"])
        rows.append(["regret in cost of an answer", f"{regret.cost:+.4g}"])
    return Table("Summary", ["", ""], rows)


def _models(report: Report) -> Table:
    head = ["model", "answers", "share", "cost", "alone: cost", "quality"]
    head += ["scored", "score", "feedback", "mean"]
    rows = []
    for model in report.models:
        alone = model.alone
        rows.append(
            [
                model.name,
                str(model.answers),
                f"{model.share:.1%}",
                f"{model.cost:.4g}",
                _maybe(None if alone is None else alone.cost, "{:.4g}"),
                _maybe(None if alone is None else alone.quality, "{:.3f}"),
                str(model.scored),
                _maybe(model.score, "{:.3f}"),
                str(model.feedback),
                _maybe(model.received, "{:.3f}"),
            ]
        )
    return Table("Models (alone: had each answered everything)", head, rows)


def _kept(report: Report) -> Table:
    rows = [
        [f"{k.asked:g}", f"{k.realised:.3f}", f"{k.lowest:.3f} to {k.highest:.3f}", str(k.samples)]
        for k in report.kept
    ]
    return Table("Quality as a share of the best model's", ["asked", "realised", "95%", "scored"], rows)


def _foreseen(report: Report) -> Table:
    def row(name: str, foreseen: Foreseen) -> list[str]:
        told = [f"{foreseen.ratio:.2f}", f"{foreseen.error:.0%}", f"{foreseen.within_25:.0%}"]
        return [name, *told, str(foreseen.answers)]

    named = (("first token", report.first_token), ("output tokens", report.output_tokens))
    rows = [row(name, foreseen) for name, foreseen in named if foreseen is not None]
    head = ["", "measured / predicted", "off by (median)", "within 25%", "answers"]
    return Table("Predictions", head, rows)


def _calibration(report: Report) -> Table:
    rows = [[f"{each.chance:.3f}", f"{each.score:.3f}", str(each.answers)] for each in report.calibration]
    return Table("Estimated chances of a good answer", ["chance", "mean score", "scored"], rows)


def _spend(report: Report) -> Table:
    rows = [[each.day, each.key, f"{each.amount:.6f}"] for each in report.spend]
    return Table("Spend (UTC)", ["day", "key", "amount"], rows)


def _maybe(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _counts(statuses: dict[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
