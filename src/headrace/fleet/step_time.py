"""How long a step takes a worker, by its rows and by what they read: measured, and assumed to be linear."""

from __future__ import annotations

import msgspec


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """A machine's speed with one model. `headrace bench step-model` measures it."""

    base: float
    """Seconds of a step, whatever it computes: the weights are read once."""
    row: float
    """Seconds for each row: one token of a prompt, or of a stream."""
    context: float = 0.0
    """Seconds for each token of context that a row attends to."""
    slowdown: tuple[float, ...] = ()
    """How many times as long a step takes while 1, 2, 3 ... workers of one host compute at once.

    Empty where each worker has a host, or cores and memory, of its own.
    """

    def seconds(self, rows: float, context: float) -> float:
        """A step of so many rows that attend to so many tokens, of all rows together."""
        return self.base + self.row * rows + self.context * context

    def slower(self, workers: int) -> float:
        """How many times as long a step takes while so many compute; beyond what was measured they share."""
        if not self.slowdown:
            return 1.0
        measured = len(self.slowdown)
        return self.slowdown[min(workers, measured) - 1] * max(workers / measured, 1.0)

    def prefill_seconds(
        self, start: int, tokens: int, budget: int, streams: int = 0, stream_context: float = 0.0
    ) -> float:
        """To compute so many tokens of a prompt from position `start` on, in steps of `budget` rows.

        Each step computes a row of every stream too, which attend to `stream_context` tokens together.
        """
        steps = tokens / max(budget - streams, budget / 4)
        attended = tokens * (start + tokens / 2)
        beside = self.seconds(streams, stream_context)
        return steps * beside + self.row * tokens + self.context * attended
