"""POST /v1/feedback: a client says how good a routed answer was that it got not long ago.

The id is the answer's own, or the x-request-id of its response. Only the key that asked may score the answer:
to others it is not there. Who changes their mind sends another score: the last one is kept, but the watch
over the promise hears the first only, for evidence cannot be taken back. Comments are not taken: what people
write has no place where prompts are not kept either.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray
from starlette.routing import Route
from starlette.types import Scope

from headrace.errors import RequestError
from headrace.gateway.json_endpoint import JsonEndpoint
from headrace.gateway.state import Gateway
from headrace.routing.store import Score
from headrace.routing.watch import Watch

MOST_RECENT = 20_000


@dataclass
class Given:
    """A routed answer; `model` and `good`, (M,), as in `watch`."""

    id: str
    """As it is kept."""
    watch: Watch
    model: int
    good: NDArray[np.float64]
    scored: bool = False


class Recent:
    """The last routed answers, by who asked and any of their ids; no text of them."""

    def __init__(self, most: int = MOST_RECENT) -> None:
        self._most = most
        self._given: OrderedDict[tuple[str, str], Given] = OrderedDict()

    def add(self, given: Given, key: str, *ids: str) -> None:
        """An answer that the key of this name got, known to it by each of `ids`."""
        for each in ids:
            self._given[key, each] = given
            self._given.move_to_end((key, each))
        while len(self._given) > self._most:
            self._given.popitem(last=False)

    def find(self, key: str, name: str) -> Given | None:
        """The answer of that id; None where it is not known, any more, or is another key's."""
        return self._given.get((key, name))


class FeedbackRequest(Struct, forbid_unknown_fields=True):
    """POST /v1/feedback"""

    id: Annotated[str, Meta(min_length=1, max_length=256)]
    """Of the answer, or the x-request-id of its response."""
    score: bool | Annotated[float, Meta(ge=0, le=1)]
    """From 0 or false, useless, to 1 or true, as good as can be."""


class FeedbackAnswer(Struct):
    """What was understood."""

    id: str
    model: str
    score: float


def feedback_routes(
    gateway: Gateway, recent: Callable[[], Recent], keep: Callable[[Score], None]
) -> list[Route]:
    """The route. `recent` gives the answers that can be scored now; `keep` is given each score."""

    async def work(scope: Scope, body: FeedbackRequest) -> FeedbackAnswer:
        given = recent().find(gateway.callers.identify(scope).name, body.id)
        if given is None:
            raise RequestError(
                f"No routed answer {body.id!r:.100} is known, or not any more.",
                "id",
                status=404,
                code="answer_not_found",
            )
        score, models = float(body.score), given.watch.models
        if not given.scored:
            given.scored = True
            given.watch.feedback(given.good, given.model, score)
        chances = dict(zip(models, given.good.tolist(), strict=True))
        keep(Score(given.id, models[given.model], score, "feedback", time.time(), chances))
        return FeedbackAnswer(body.id, models[given.model], score)

    return [Route("/v1/feedback", JsonEndpoint(gateway, FeedbackRequest, work), methods=["POST"])]
