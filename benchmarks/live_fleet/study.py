"""The measurement itself: what policies cost at equal quality, between random mixing and the oracle."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from live_fleet import policies
from live_fleet.calibration import calibration
from live_fleet.equal_quality import SHARES, SetBeforehand, chosen_setting, compared, set_beforehand
from live_fleet.frontier import Frontier, mixtures, oracle, settings
from live_fleet.judges import judged
from live_fleet.labels import learning
from live_fleet.outlook import divided, divisions
from live_fleet.policies import Played, Policy
from live_fleet.table import Table

Floats = NDArray[np.float64]
Plain = dict[str, Any]


class Study:
    """Of one suite's questions, or of several together; those held out are looked at."""

    def __init__(self, table: Table):
        self.table = table
        self.parts = [divided(table, *rows) for rows in divisions(table.questions)]
        rows = np.concatenate([part.tested.rows for part in self.parts])
        self.scores, self.costs = table.scores[rows], table.costs[rows]
        self.best = int(self.scores.mean(axis=0).argmax())
        self.steps = {f"{table.models[a]} > {table.models[b]}": (a, b) for a, b in self.parts[0].tested.own}

    def report(self) -> Plain:
        """Plain data; costs are shares of what the best model costs."""
        tried: dict[str, Policy] = {"auto": policies.auto, "prompt alone": policies.by_prompt}
        tried |= {name: policies.cascade(step) for name, step in self.steps.items()}
        return {
            "questions": len(self.scores),
            "best": self.table.models[self.best],
            "models": {
                name: {"quality": quality, "cost": cost / self.dearest}
                for name, quality, cost in zip(
                    self.table.models,
                    *(each.mean(axis=0).tolist() for each in (self.scores, self.costs)),
                    strict=True,
                )
            },
            "random mixing": self._line(mixtures(self.scores, self.costs)),
            "oracle": self._line(oracle(self.scores, self.costs)),
            "policies": {name: self._policy(policy) for name, policy in tried.items()},
            "calibration": self._calibration(),
            "learning": [asdict(each) for each in learning(self.table, divisions(self.table.questions))],
            "perfect judges": {
                name: [asdict(each) for each in judged(self.scores, self.costs, *step)]
                for name, step in self.steps.items()
            },
        }

    @property
    def dearest(self) -> float:
        """What an answer of the best model costs."""
        return float(self.costs[:, self.best].mean())

    def _line(self, line: Frontier) -> list[list[float]]:
        return [
            [cost / self.dearest, quality] for quality, cost in zip(line.qualities, line.costs, strict=True)
        ]

    def _policy(self, policy: Policy) -> Plain:
        played = [policies.everywhere(self.table, part, part.tested, policy) for part in self.parts]
        learnt = [policies.everywhere(self.table, part, part.learnt, policy) for part in self.parts]
        whole = policies.joined(played)
        return {
            "equal quality": [asdict(each) for each in compared(self.scores, self.costs, whole)],
            "set beforehand": [asdict(self._beforehand(share, learnt, played)) for share in SHARES],
            "line": self._line(settings(*whole)),
        }

    def _beforehand(self, share: float, learnt: list[Played], played: list[Played]) -> SetBeforehand:
        """With each division's setting chosen on what was learnt from."""
        came = []
        for part, seen, unseen in zip(self.parts, learnt, played, strict=True):
            setting = chosen_setting(self.table.scores[part.learnt.rows], seen, share)
            came.append((unseen[0][setting], unseen[1][setting]))
        return set_beforehand(share, self.scores, self.costs, policies.joined(came))

    def _calibration(self) -> Plain:
        """Of each model's chance before an answer, and of both chances after each first answer."""

        tested = [part.tested for part in self.parts]

        def of(chances: list[Floats], model: int) -> Plain:
            return asdict(calibration(np.concatenate(chances), self.scores[:, model]))

        return {
            "prompt": {
                name: of([each.good[:, model] for each in tested], model)
                for model, name in enumerate(self.table.models)
            },
            "own answer": {
                name: of([each.own[step] for each in tested], step[0]) for name, step in self.steps.items()
            },
            "next answer": {
                name: of([each.following[step] for each in tested], step[1])
                for name, step in self.steps.items()
            },
        }
