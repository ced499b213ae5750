"""Which of a fleet's models will do for a prompt, where the router knows some, by other names perhaps.

Several tiers of the same weights share one estimate. A model that the router does not know gets what
`artefact.first_day` says of its place in the order of costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from headrace.routing import artefact
from headrace.routing.bargain import Bargain
from headrace.routing.estimator import HeldOut
from headrace.routing.risk import Promise, least
from headrace.routing.router import Router


class Judged(NamedTuple):
    """Of one model and prompt: the chance of a good answer, how far it may be off, whether that will do."""

    good: float
    spread: float
    will_do: bool


class Quality:
    """`router`'s estimates by the fleet's names.

    The share that is asked for is one of the best model's among those given, by the mean of its scores: a
    policy passes its own models, also where a request allows fewer, so that the same request means the same
    quality. A promise holds where its best model is that best one. It was set for the router's models in the
    router's order; with fewer of them, or costs in another order, it is a start for what is watched, and no
    proof.
    """

    def __init__(self, router: Router | None, aliases: Mapping[str, str], order: Sequence[str]):
        """`aliases`: for each of the fleet's names whose estimate it has; `order`: the names, cheapest first.

        Without a router nothing is known of any.
        """
        known = [name for name in order if router is not None and aliases[name] in router.models]
        self.router: Router | None = None
        """What is known, by the fleet's names, in the order of costs; None where that is nothing."""
        if router is not None and known:
            self.router = _by_name(router, aliases, known)
        self._guesses: Router | None = None
        unknown = [name for name in order if name not in known]
        if unknown:
            first_day = artefact.first_day(list(dict.fromkeys(aliases[name] for name in order)))
            self._guesses = _by_name(first_day, aliases, unknown)
        self._aliases = dict(aliases)
        self._bargains: dict[tuple[str, ...], Bargain | None] = {}
        self._means = {
            name: float(mean)
            for router in (self.router, self._guesses)
            if router is not None
            for name, mean in zip(router.models, router.estimator.means.tolist(), strict=True)
        }

    def best(self, among: Sequence[str]) -> str:
        """The model of the highest mean score; the first of several."""
        return max(among, key=self._means.__getitem__)

    def promise(self, quality: float, among: Sequence[str]) -> Promise | None:
        """What covers this quality for these models, if anything does."""
        promise = None if self.router is None else self.router.promise(quality)
        if promise is None or self._aliases[promise.best] != self._aliases[self.best(among)]:
            return None
        return promise

    def slack(self, quality: float, among: Sequence[str]) -> float | None:
        """What a promise says, or else the records learnt from; None where neither says anything."""
        promise = self.promise(quality, among)
        if promise is not None:
            return promise.slack
        bargain = self._bargain(tuple(among))
        return None if bargain is None else bargain.slack(quality)

    def _bargain(self, among: tuple[str, ...]) -> Bargain | None:
        """None where some of the models are not known, or all share one estimate."""
        if among not in self._bargains:
            self._bargains[among] = self._made(among)
        return self._bargains[among]

    def _made(self, among: tuple[str, ...]) -> Bargain | None:
        router = self.router
        if router is None or router.estimator.held_out is None or not set(among) <= set(router.models):
            return None
        alike: dict[str, int] = {}
        for place, name in enumerate(router.models):
            if name in among:
                alike.setdefault(self._aliases[name], place)
        if len(alike) < 2:
            return None
        columns = list(alike.values())
        held_out = router.estimator.held_out
        best = list(alike).index(self._aliases[self.best(among)])
        return Bargain.of(HeldOut(held_out.good[:, columns], held_out.scores[:, columns]), best)

    def judge(
        self, prompt: str, quality: float, slack: float | None = None, among: Sequence[str] | None = None
    ) -> dict[str, Judged]:
        """Judges `among`, by default all. `slack`: that of who watches, instead of the promise's.

        The best one always will do, and so will all that share its estimate.
        """
        names = list(self._means) if among is None else among
        estimates = self._estimates(prompt, names)
        best = self.best(names)
        if slack is None:
            slack = self.slack(quality, names)
        enough = least(estimates[best][0], quality, slack)
        return {
            name: Judged(*estimates[name], estimates[name][0] >= enough or self._alike(name, best))
            for name in names
        }

    def _estimates(self, prompt: str, names: Sequence[str]) -> dict[str, tuple[float, float]]:
        found: dict[str, tuple[float, float]] = {}
        for router in (self.router, self._guesses):
            if router is not None and not set(names).isdisjoint(router.models):
                estimate = router.estimator.estimate(prompt)
                pairs = zip(estimate.good.tolist(), estimate.spread.tolist(), strict=True)
                found |= zip(router.models, pairs, strict=True)
        return found

    def _alike(self, one: str, other: str) -> bool:
        return self._aliases[one] == self._aliases[other]


def _by_name(router: Router, aliases: Mapping[str, str], names: Sequence[str]) -> Router:
    """The router of these names: of each, what is known of its alias."""
    columns = [router.models.index(aliases[name]) for name in names]
    estimator = router.estimator
    chosen = {field: getattr(estimator, field)[..., columns] for field in ("duals", "weights", "means")}
    novelty = replace(estimator.novelty, prior=estimator.novelty.prior[columns])
    links = estimator.links[columns]
    cheapest = {aliases[name]: name for name in reversed(names)}
    promises = tuple(
        replace(promise, best=cheapest[promise.best])
        for promise in router.promises
        if promise.best in cheapest
    )
    held_out = estimator.held_out
    if held_out is not None:
        held_out = HeldOut(held_out.good[:, columns], held_out.scores[:, columns])
    taken = replace(estimator, models=tuple(names), links=links, novelty=novelty, held_out=held_out, **chosen)
    return Router(taken, promises)
