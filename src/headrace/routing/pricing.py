"""What an answer costs: a remote's by its price list, a local one's by the time that it keeps workers busy.

Costs are in the currency of headrace.toml. A ledger keeps them as whole billionths (`nano`), whose sums
are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from headrace.routing.learner import recognised
from headrace.routing.tables import ModelTable

_HALF_LIFE = 120.0
"""Busy seconds after which what was measured counts half."""

_DECODE_BYTES, _PREFILL_BYTES = 30e9, 360e9
"""Of weights, that a processor works through in a second for answers and for prompts: a first guess."""

_SAMPLE_SECONDS = 1.0
"""Busy seconds that make one measurement: enough that requests which end in it are those computed in it."""

_DOUBT = 5.0
"""Busy seconds' worth of trust in how the priors divide the time between prompts and answers."""

_FARTHEST = 10.0
"""So many times, at most, the measured division differs from theirs."""


_SHORTEST = 1e-9
"""Seconds that a token takes at least."""


class Price(Protocol):
    """Of one model."""

    def cost(self, input_tokens: float, cached_tokens: float, output_tokens: float) -> float:
        """Of an answer; `cached_tokens` are those of the input that need not be computed again."""


def price_of(table: ModelTable) -> RemotePrice | LocalPrice:
    """A model's, by its table."""
    if table.input_price is None or table.output_price is None:
        return LocalPrice(table.cost_per_hour, table.replicas or 1)
    cached = table.input_price if table.cached_input_price is None else table.cached_input_price
    return RemotePrice(table.input_price, cached, table.output_price)


def speeds_of(weights_bytes: int) -> tuple[float, float]:
    """Tokens a second of prompts and of answers, guessed from the size of a model's weights."""
    size = max(1, weights_bytes)
    return _PREFILL_BYTES / size, _DECODE_BYTES / size


def nano(cost: float) -> int:
    """A cost in whole billionths, rounded up; what only the float's own rounding added is no reason to."""
    return math.ceil(round(cost * 1e9, 4))


@dataclass(frozen=True)
class RemotePrice:
    """Per million tokens."""

    input: float
    cached_input: float
    output: float

    def cost(self, input_tokens: float, cached_tokens: float, output_tokens: float) -> float:
        """Of an answer; `cached_tokens` are those of the input that the remote says it had."""
        cached = min(max(cached_tokens, 0), input_tokens)
        computed = input_tokens - cached
        return (computed * self.input + cached * self.cached_input + output_tokens * self.output) / 1e6


_Token = Annotated[float, Meta(ge=_SHORTEST, le=1e6)]
_Sum = Annotated[float, Meta(ge=0, le=1e15)]


class _Saved(msgspec.Struct):
    """Of a local price: seconds of tokens alone, where they were measured, and the sums over all samples."""

    alone: tuple[_Token, _Token] | None
    sums: Annotated[list[_Sum], Meta(min_length=6, max_length=6)]


class LocalPrice:
    """Divides a cost per hour among the requests that kept workers busy, by the tokens computed for them.

    A busy second is paid for by the requests of that time: a batch of many shares it, so the price of a token
    falls as the load rises. Time in which nothing runs is billed to nobody: over a day, requests pay the
    cost per hour times the share of it in which workers were busy. Cached tokens cost nothing.

    How long a prompt's token takes, and an answer's, is measured and forgotten exponentially. Until then,
    and where one cannot be told from the other, it is what they take `alone`, or before that is measured,
    what the speeds given here say, in tokens a second; and how much faster or slower than that all `peers`
    together have turned out. A model that is asked seldom has its seconds shared by few; priced by them
    alone it would never be asked again, though its workers have time to spare. So it is taken for no slower
    than all together, against what each takes alone, and the rest of its seconds is billed to nobody, like
    those in which nothing runs.
    """

    def __init__(
        self,
        cost_per_hour: float,
        workers: int = 1,
        prefill_speed: float = 500.0,
        decode_speed: float = 30.0,
        peers: Sequence[LocalPrice] = (),
    ):
        """`cost_per_hour` is that of all its workers together. `peers` may have itself among them."""
        self._peers = peers
        self.cost_per_hour = cost_per_hour
        self.workers = workers
        """How many there are now."""
        self._prior = (1 / prefill_speed, 1 / decode_speed)
        """Busy seconds as below, before any are measured."""
        self._alone = False
        """Whether these are measured."""
        self._seconds = self._prior
        """Busy seconds of one worker, for a token of a prompt and of an answer."""
        self._active = 0
        self._at = 0.0
        self._busy = self._input = self._output = 0.0
        """Of the sample that is being taken."""
        self._sums: tuple[float, ...] = (0.0,) * 6
        """Over all samples, the older the less: busy seconds, tokens of prompts, of answers, and the products
        of these two (first squared, mixed, second squared) over the seconds."""

    def cost(self, input_tokens: float, cached_tokens: float, output_tokens: float) -> float:
        """Of an answer; `cached_tokens` are those of the input that were not computed again."""
        computed = max(0.0, input_tokens - cached_tokens)
        seconds = computed * self._seconds[0] + output_tokens * self._seconds[1]
        seconds *= self._against_peers()
        return seconds * self.cost_per_hour / (3600 * self.workers)

    def _against_peers(self) -> float:
        """What a measured time, or else the guess, is to be multiplied by."""
        busy = sum(peer._sums[0] for peer in self._peers)
        if not busy:
            return 1.0
        own, usual = self.slowness, busy / sum(peer._expected for peer in self._peers)
        return usual if own is None else min(1.0, usual / own)

    @property
    def _expected(self) -> float:
        """The seconds that all which was computed would have taken by the priors."""
        return self._sums[1] * self._prior[0] + self._sums[2] * self._prior[1]

    @property
    def slowness(self) -> float | None:
        """How many times longer its tokens took than the priors say; None before any was measured."""
        busy = self._sums[0]
        return busy / self._expected if busy else None

    def alone(self, prompt_token: float, answer_token: float) -> None:
        """A token of a prompt, and of an answer, took a worker so many seconds that computed nothing else.

        It takes the place of the speeds that were guessed. Of several such measurements the fastest counts:
        whatever disturbs one makes it slower.
        """
        took = (max(prompt_token, _SHORTEST), max(answer_token, _SHORTEST))
        if self._alone:
            took = (min(took[0], self._prior[0]), min(took[1], self._prior[1]))
        self._prior, self._alone = took, True
        self._seconds = self._solved()

    def began(self, now: float) -> None:
        """A worker begins with a request. `now`: seconds of any clock that never goes back."""
        self._pass(now)
        self._active += 1

    def ended(self, now: float, computed_tokens: int, output_tokens: int) -> None:
        """A request has ended, for which so many tokens of its prompt, and of answers, were computed."""
        self._pass(now)
        self._active -= 1
        self._input += computed_tokens
        self._output += output_tokens
        if self._busy >= _SAMPLE_SECONDS:
            self.observed(self._busy, self._input, self._output)
            self._busy = self._input = self._output = 0.0

    def observed(self, busy_seconds: float, computed_tokens: float, output_tokens: float) -> None:
        """So many tokens were computed in so many seconds, those of several workers added up.

        Least squares on the seconds of each sample, weighted by their inverse, as factors on the priors'
        speeds, drawn towards what they have in common; then both are scaled so that all that was paid for
        is billed.
        """
        if busy_seconds <= 0 or computed_tokens + output_tokens <= 0:
            return
        busy, prompts, answers = busy_seconds, computed_tokens, output_tokens
        new = (
            busy,
            prompts,
            answers,
            prompts * prompts / busy,
            prompts * answers / busy,
            answers * answers / busy,
        )
        keep = 0.5 ** (busy / _HALF_LIFE)
        self._sums = tuple(keep * old + each for old, each in zip(self._sums, new, strict=True))
        self._seconds = self._solved()

    def save(self) -> dict[str, Any]:
        """What was measured, as what JSON can hold. It does not change while nothing is observed."""
        saved: dict[str, Any] = msgspec.to_builtins(
            _Saved(self._prior if self._alone else None, list(self._sums))
        )
        return saved

    def load(self, saved: object, now: float) -> bool:
        """Takes up what `save` gave, however long ago. False for anything else."""
        if (known := recognised(saved, _Saved)) is None:
            return False
        busy, prompts, answers, squared, crossed, squared_too = known.sums
        if (busy > 0) != (prompts + answers > 0) or crossed**2 > 1.001 * squared * squared_too:
            return False
        self._sums = tuple(known.sums)
        if known.alone is not None:
            self._prior, self._alone = known.alone, True
        self._seconds = self._solved()
        return True

    def _pass(self, now: float) -> None:
        self._busy += min(self._active, self.workers) * max(0.0, now - self._at)
        self._at = now

    def _solved(self) -> tuple[float, float]:
        common = self.slowness
        if common is None:
            return self._prior
        busy, prompts, answers, squared, crossed, squared_too = self._sums
        prompt, answer = (common * each for each in self._prior)
        x, y = prompt * prompts, answer * answers
        xx, xy, yy = prompt**2 * squared, prompt * answer * crossed, answer**2 * squared_too
        determinant = (xx + _DOUBT) * (yy + _DOUBT) - xy * xy
        first = ((x + _DOUBT) * (yy + _DOUBT) - xy * (y + _DOUBT)) / determinant
        second = ((y + _DOUBT) * (xx + _DOUBT) - xy * (x + _DOUBT)) / determinant
        first, second = (min(max(each, 1 / _FARTHEST), _FARTHEST) for each in (first, second))
        scale = busy / (first * x + second * y)
        return scale * first * prompt, scale * second * answer
