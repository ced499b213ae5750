"""Medians and ratios of what was measured, as a table in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from side_by_side.work import Case, Figures, Row

OURS = "headrace"
CALM_SHARE = 0.05
"""The share of the processor's time that other processes may take in a round that counts."""


@dataclass(slots=True)
class Result:
    """What the engines brought in each round of a case, and why some brought nothing."""

    case: Case
    rounds: dict[str, list[Figures]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def engines(self) -> list[str]:
        """Those with at least one round."""
        return [name for name in self.case.engines if self.rounds.get(name)]

    def calm(self, engine: str) -> list[Figures]:
        """The rounds that hardly anybody else disturbed."""
        return [figures for figures in self.rounds.get(engine, []) if figures["others"] <= CALM_SHARE]

    def value(self, engine: str, row: Row) -> float | None:
        """Median over the calm rounds, over all where none was calm; None where there was none at all."""
        rounds = self.calm(engine) or self.rounds.get(engine, [])
        values = [figures[row.figure] for figures in rounds if row.figure in figures]
        return median(values) if values else None

    def ratio(self, peer: str, row: Row) -> float | None:
        """How many times better Headrace is than the peer."""
        ours, theirs = self.value(OURS, row), self.value(peer, row)
        if not ours or not theirs:
            return None
        return theirs / ours if row.lower_is_better else ours / theirs

    def failed_requests(self) -> dict[str, int]:
        """Requests that failed over all rounds, by engine; nothing where none did."""
        counts = {
            name: int(sum(figures.get("failed", 0) for figures in rounds))
            for name, rounds in self.rounds.items()
        }
        return {name: count for name, count in counts.items() if count}

    def as_json(self) -> dict[str, Any]:
        return {
            "case": self.case.name,
            "title": self.case.title,
            "rounds": self.rounds,
            "medians": {
                name: {row.figure: self.value(name, row) for row in self.case.rows} for name in self.engines
            },
            "ratios": {
                name: {row.figure: self.ratio(name, row) for row in self.case.rows}
                for name in self.engines
                if name != OURS
            },
            "failures": self.failures,
        }


def markdown(results: Sequence[Result], about: Mapping[str, Any], plot: str) -> str:
    """The page: how it was measured and on what, the plot, and a table for each case."""
    lines = ["# Side by side with other engines", "", *_how(about), "", f"![Medians by engine]({plot})", ""]
    for result in results:
        lines += [f"## {result.case.title}", "", *table(result), "", *_remarks(result)]
    return "\n".join(lines).rstrip() + "\n"


def table(result: Result) -> list[str]:
    """Medians, and behind each peer's how many times better Headrace is."""
    peers = [name for name in result.engines if name != OURS]
    lines = [_line(["", "unit", "Headrace", *(cell for name in peers for cell in (name, "×"))])]
    lines.append(_line(["---", "---", *["---:"] * (1 + 2 * len(peers))]))
    for row in result.case.rows:
        cells = [row.label, row.unit, shown(result.value(OURS, row))]
        for name in peers:
            ratio = result.ratio(name, row)
            cells += [shown(result.value(name, row)), f"**{ratio:.2f}**" if ratio else "–"]
        lines.append(_line(cells))
    return lines


def shown(value: float | None) -> str:
    """A figure with as many digits as it deserves."""
    if value is None:
        return "–"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _how(about: Mapping[str, Any]) -> list[str]:
    machine = about["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    absent = [f"{name} could not be installed: {why}." for name, why in about["absent"].items()]
    return [
        f"Measured by `make peers` on {about['date']}, {about['threads']} threads on as many cores,"
        " client included; medians of the rounds, the engines taking turns in each. A round counts if other"
        f" processes took at most {CALM_SHARE:.0%} of the processor's time. A bold figure says how many times"
        " better Headrace is, in speed or in time.",
        "",
        f"Machine: {machine['processor']} (family {machine['family']}, model {machine['model']}),"
        f" {machine['cores']} cores, L3 {machine['l3_cache']}, {machine['memory_gib']} GiB of memory;"
        f" {', '.join(machine['instruction_sets'])}. Load average before the run: {about['load']}.",
        "",
        f"Versions: {versions}. Raw figures are in the JSON file beside this page.",
        *absent,
    ]


def _remarks(result: Result) -> list[str]:
    remarks = []
    for name in result.engines:
        calm, rounds = len(result.calm(name)), len(result.rounds[name])
        counted = calm or f"all {rounds}, disturbed,"
        remarks.append(f"{name}: {counted} of {rounds} rounds count.")
    remarks += [f"{name}: {count} requests failed." for name, count in result.failed_requests().items()]
    remarks += [f"{name} brought no figures: {why}." for name, why in result.failures.items()]
    return [" ".join(remarks), ""]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
