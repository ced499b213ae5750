"""Questions made for tests: how well a model answers one depends on what it is about."""

from __future__ import annotations

import numpy as np

from headrace.routing.records import Records

MODELS = ("small", "large")

_TOPICS = {
    "What is the capital of {}?": (0.95, 0.97),
    "Compute the integral of {} over the unit sphere, then simplify.": (0.25, 0.9),
    "Translate {} into French.": (0.9, 0.6),
    "Statement 1 | {} is prime. Statement 2 | {} is odd.\nA. True\nB. False\nAnswer:": (0.5, 0.8),
}


def questions(count: int, seed: int = 0) -> Records:
    """So many different questions and what the two models made of them."""
    draw = np.random.default_rng(seed)
    kinds = list(_TOPICS.items())
    prompts, chances = [], []
    for number in range(count):
        text, chance = kinds[draw.integers(len(kinds))]
        prompts.append(text.replace("{}", f"item{seed}x{number}"))
        chances.append(chance)
    scores = (draw.random((count, 2)) < np.array(chances)).astype(np.float64)
    return Records(tuple(prompts), MODELS, scores)
