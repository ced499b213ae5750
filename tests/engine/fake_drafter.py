"""A drafter that is right as often as it is told to be, of what the fake backend will sample."""

from __future__ import annotations

from collections.abc import Sequence as Items
from random import Random

from engine.fake_backend import VOCAB, expected_tokens
from headrace.engine.request import Request
from headrace.engine.sequence import Sequence
from headrace.engine.speculation import Ask, Draft


class FakeDrafter:
    """Sometimes drafts nothing or less than it may; each of its tokens is right by a fixed chance."""

    steps = 0

    def __init__(self, random: Random, right: float, silent: float = 0.0):
        self._random = random
        self._right = right
        self._silent = silent
        self._answers: dict[Request, tuple[int, ...]] = {}
        self.known: set[Sequence] = set()
        """Those it was asked for that have not ended."""

    def propose(self, asks: Items[Ask], least_chance: float) -> list[Draft]:
        self.known |= {ask.seq for ask in asks}
        return [self._draft(ask) for ask in asks]

    def forget(self, seq: Sequence) -> None:
        self.known.discard(seq)

    def close(self) -> None:
        pass

    def _draft(self, ask: Ask) -> Draft:
        assert ask.limit > 0
        random, seq = self._random, ask.seq
        if random.random() < self._silent:
            return Draft()
        start = len(seq.tokens) - seq.prompt_length
        coming = self._answer(seq.request)[start : start + ask.limit]
        assert len(coming) == ask.limit, "more was asked for than the request may still be given"
        if random.random() < self._silent:
            coming = coming[: random.randint(1, ask.limit)]
        tokens = tuple(
            token if random.random() < self._right else random.randrange(VOCAB) for token in coming
        )
        return Draft(tokens, tuple(random.randrange(3) for _ in tokens))

    def _answer(self, request: Request) -> tuple[int, ...]:
        if request not in self._answers:
            self._answers[request] = expected_tokens(
                request.prompt,
                request.max_tokens,
                request.sampling.seed,
                penalized=request.sampling.uses_history,
            )
        return self._answers[request]
