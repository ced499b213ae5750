"""The report as text: tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isnan
from typing import Any

Plain = dict[str, Any]


def shown(found: Plain) -> str:
    """All suites, one after the other."""
    return "\n".join(line for suite, told in found.items() for line in _suite(suite, told))


def _suite(suite: str, told: Plain) -> Iterable[str]:
    yield f"\n# {suite}: {told['questions']} questions; costs in the best model's, {told['best']}\n"
    yield from _rows(
        ("model", "quality", "cost"),
        ([name, _share(each["quality"]), f"{each['cost']:.3f}"] for name, each in told["models"].items()),
    )
    yield "\nCost at equal quality, and how much of the way from random mixing to the oracle is recovered\n"
    yield from _rows(
        ("policy", "of the best's quality", "mixing", "oracle", "policy", "recovered", "95%"),
        (
            [name, _share(at["share"]), *_costs(at), _share(at["recovered"]), _interval(at)]
            for name, policy in told["policies"].items()
            for at in policy["equal quality"]
        ),
    )
    yield "\nWith the setting chosen beforehand, on what was learnt from\n"
    yield from _rows(
        ("policy", "asked", "came", "mixing", "oracle", "policy", "recovered"),
        (
            [name, _share(at["share"]), _share(at["quality"]), *_costs(at), _share(at["recovered"])]
            for name, policy in told["policies"].items()
            for at in policy["set beforehand"]
        ),
    )
    yield "\nChances told of questions held out, and what came\n"
    yield from _rows(
        ("told from", "of", "AUC", "skill", "error", "told : came, in five bins"),
        (
            [source, name, f"{of['auc']:.2f}", f"{of['skill']:.2f}", f"{of['error']:.3f}", _bins(of)]
            for source, each in told["calibration"].items()
            for name, of in each.items()
        ),
    )
    yield "\nAUC of the chances told from the prompt, by the number of records learnt from\n"
    yield from _rows(
        ("records", *told["models"]),
        ([each["records"], *(f"{value:.2f}" for value in each["auc"])] for each in told["learning"]),
    )
    yield "\nWhat cascades would recover whose judge never erred\n"
    yield from _rows(
        ("cascade", "of the best's quality", "sees the first answer's score", "and the next one's"),
        (
            [name, *(_share(at[field]) for field in ("share", "own", "both"))]
            for name, judged in told["perfect judges"].items()
            for at in judged
        ),
    )
    if "noise" in told:
        yield from _chance(told)


def _chance(told: Plain) -> Iterable[str]:
    yield "\nThe same questions several times at temperature 0.7\n"
    yield from _rows(
        ("model", "questions", "samples", "quality", "variance that is chance", "best AUC"),
        (
            [
                name,
                of["questions"],
                of["samples"],
                _share(of["quality"]),
                _share(of["chance"]),
                f"{of['best_auc']:.2f}",
            ]
            for name, of in told["noise"].items()
        ),
    )
    if "ceiling" not in told:
        return
    yield "\nOne model for each prompt, chosen by who knows how often each answers it well\n"
    yield from _rows(
        ("of the best's quality", "mixing", "oracle", "cost", "recovered", "95%"),
        (
            [_share(at["share"]), *_costs(at), _share(at["recovered"]), _interval(at)]
            for at in told["ceiling"]
        ),
    )


def _rows(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterable[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def _costs(at: Plain) -> list[str]:
    return [f"{at[name]:.2f}" for name in ("mixing", "oracle", "policy")]


def _interval(at: Plain) -> str:
    return f"{_share(at['low'])} to {_share(at['high'])}"


def _bins(of: Plain) -> str:
    return ", ".join(f"{each['told']:.2f} : {each['came']:.2f}" for each in of["bins"])


def _share(value: float | None) -> str:
    if value is None:
        return "all"
    return "–" if isnan(value) else f"{100 * value:.0f}%"
