"""Speculative decoding: tokens are drafted cheaply, and the model verifies several of them in one step.

A row's token is a function of the tokens before it alone: logits do not depend on the batch, sampling noise
is keyed by position. So each drafted token is a row like any other, and the tokens sampled are kept as far
as they equal the draft, and one more; the output is what it would have been, bit for bit, sampled or greedy.
(Leviathan et al., "Fast inference from transformers via speculative decoding", 2023, accept by chance.)

How much to draft decides only how fast it goes. The length is chosen for the most expected tokens a second
(after Liu et al., "Optimizing speculative decoding for serving large language models using goodput", 2024).
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from itertools import accumulate
from operator import mul
from typing import NamedTuple, Protocol

from headrace.engine.acceptance import Acceptance
from headrace.engine.sequence import Sequence
from headrace.engine.step_cost import StepCost

_LEAST_BENEFIT = 0.95
"""Below it drafting is paused. Only what is expected to pay is drafted, so it hovers about 1 in hard text."""
_BENEFIT_MEMORY = 0.1
"""Weight of the newest step in it."""
_FORGETTING = 0.99
"""A step of the drafter's seems cheaper with every step in which it was too dear, until it is tried again."""
_LONGEST_PAUSE = 256
"""Steps without drafts, at most, before it is tried again whether they pay."""


class Draft(NamedTuple):
    """Tokens that a sequence may go on with."""

    tokens: tuple[int, ...] = ()
    grades: tuple[int, ...] = ()
    """For each token how well founded it is, from 0 up; what a grade is worth is learned."""


class Ask(NamedTuple):
    """A sequence to draft for."""

    seq: Sequence
    limit: int
    """The most tokens that are of use, at least 1."""


class Drafter(Protocol):
    """Guesses how sequences go on. What it guessed before, and whether rightly, it sees by their tokens."""

    @property
    def steps(self) -> int:
        """Steps of a backend's that the last `propose` took; -1 where they are no measure of the usual."""
        ...

    def propose(self, asks: Items[Ask], least_chance: float) -> list[Draft]:
        """A draft for each, perhaps an empty one.

        `least_chance` is the chance of being right below which a token is not worth a step of the drafter's.
        """
        ...

    def forget(self, seq: Sequence) -> None:
        """The sequence has ended."""
        ...

    def close(self) -> None:
        """Release threads and memory."""
        ...


def count_accepted(sampled: Items[int], drafted: Items[int]) -> int:
    """How many drafted tokens, from the first on, are what the model sampled in their place."""
    for count, (mine, theirs) in enumerate(zip(sampled, drafted, strict=False)):
        if mine != theirs:
            return count
    return min(len(sampled), len(drafted))


class Speculation:
    """Decides how many drafted tokens each decoding sequence has verified in the next step."""

    def __init__(self, drafter: Drafter, draft_tokens: int, row_cost: float = 0.1):
        """At most `draft_tokens` are drafted for a sequence; `row_cost` is as in `StepCost`."""
        self.draft_tokens = draft_tokens
        self._drafter = drafter
        self._cost = StepCost(row_cost)
        self._acceptance = Acceptance()
        self._grades: dict[Sequence, tuple[int, ...]] = {}
        """Of the drafts in flight."""
        self._draft_seconds: float | None = None
        """Of one step of the drafter's."""
        self._rows = self._drafted = self._gained = 0
        """Of the last step: rows without drafts, drafted tokens, and those of them accepted."""
        self._decoding = False
        """Whether all its rows were decoding sequences', who might have drafted."""
        self._draft_steps = 0
        """The drafter's steps for it."""
        self._benefit = 1.0
        """Tokens a second when drafting, as a multiple of those without; a moving average."""
        self._pause = self._next_pause = 0

    def drafts(self, asks: Items[Ask], rows: int, budget: int) -> list[tuple[int, ...]]:
        """For each sequence, the drafted tokens that are worth a row in a step of so many rows without them.

        They are at most `budget` in all.
        """
        self._settle()
        self._rows, self._drafted, self._gained = rows, 0, 0
        self._decoding, self._draft_steps = rows == len(asks), 0
        self._grades.clear()
        if self._pause > 0:
            self._pause -= 1
            return [()] * len(asks)
        if not asks:
            return []
        least_chance = self._least_chance(rows, len(asks))
        if self._draft_seconds is not None and least_chance >= 1:
            self._draft_seconds *= _FORGETTING
        drafts = self._drafter.propose(asks, least_chance)
        self._draft_steps = self._drafter.steps
        lengths = self._lengths(asks, drafts, rows, budget)
        for (seq, _), draft, length in zip(asks, drafts, lengths, strict=True):
            if length:
                self._grades[seq] = draft.grades[:length]
        self._drafted = sum(lengths)
        return [draft.tokens[:length] for draft, length in zip(drafts, lengths, strict=True)]

    def verified(self, seq: Sequence, drafted: int, accepted: int) -> None:
        """Learn how many of a sequence's drafted tokens were right."""
        self._acceptance.learn(seq, self._grades[seq][:drafted], accepted)
        self._gained += accepted

    def observe(self, submit_seconds: float, step_seconds: float) -> None:
        """Learn what the last step cost: making the drafts and the plan, and then computing it."""
        if self._decoding:
            self._cost.observe(self._rows + self._drafted, step_seconds)
        if self._draft_steps > 0:
            seconds, known = submit_seconds / self._draft_steps, self._draft_seconds
            self._draft_seconds = seconds if known is None else known + 0.1 * (seconds - known)

    def forget(self, seq: Sequence) -> None:
        """The sequence has ended."""
        self._drafter.forget(seq)
        self._acceptance.forget(seq)

    def close(self) -> None:
        """Release what the drafter holds."""
        self._drafter.close()

    def _settle(self) -> None:
        """Weigh what drafting brought in the last step, and pause it for a while if it does not pay."""
        if self._draft_steps < 0 or (not self._drafted and not self._draft_steps):
            return
        plain = self._rows / self._cost.seconds(self._rows)
        seconds = self._cost.seconds(self._rows + self._drafted)
        seconds += self._draft_steps * self._seconds_per_draft_step()
        benefit = (self._rows + self._gained) / seconds / plain
        self._benefit += _BENEFIT_MEMORY * (benefit - self._benefit)
        if self._benefit >= 1:
            self._next_pause = 0
        elif self._benefit < _LEAST_BENEFIT:
            self._pause = self._next_pause = min(2 * self._next_pause + 8, _LONGEST_PAUSE)
            self._benefit = (1 + _LEAST_BENEFIT) / 2  # so that a few steps decide when it is tried again

    def _lengths(self, asks: Items[Ask], drafts: list[Draft], rows: int, budget: int) -> list[int]:
        """Token by token takes the likeliest of all, as long as the step's tokens per second grow.

        A row that was scheduled anyhow counts as a token for certain, rows of prompts too: while they keep
        the processor busy a guess must be nearly as sure as they are.
        """
        chances = []
        for index, ((seq, limit), draft) in enumerate(zip(asks, drafts, strict=True)):
            rates = [self._acceptance.rate(seq, grade) for grade in draft.grades[:limit]]
            chances += [(chance, -index) for chance in accumulate(rates, mul)]
        lengths = [0] * len(asks)
        tokens, seconds = float(rows), self._cost.seconds(rows)
        for chance, index in sorted(chances, reverse=True)[:budget]:
            if chance * seconds <= tokens * self._cost.row_seconds:
                break
            tokens += chance
            seconds += self._cost.row_seconds
            lengths[-index] += 1
        return lengths

    def _least_chance(self, rows: int, sequences: int) -> float:
        """Of a further token for each sequence, which costs a step of the drafter's, and their rows.

        It must bring more tokens a second than steps of so many rows have brought of late.
        """
        pace = rows / self._cost.seconds(rows) * max(self._benefit, 1.0)
        return pace * (self._cost.row_seconds + self._seconds_per_draft_step() / sequences)

    def _seconds_per_draft_step(self) -> float:
        if self._draft_seconds is None:
            return 0.3 * self._cost.seconds(1) if self._drafter.steps else 0.0
        return self._draft_seconds
