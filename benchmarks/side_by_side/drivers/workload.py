"""Runs B prompts for one token, then for 65: the first is prefill, the additional time decode."""

import json
import os
import sys
from collections.abc import Callable

DECODED = 64

Generate = Callable[[list[str], int], tuple[float, int]]
"""Prompts and the tokens to make of each, in; seconds and the prompts' tokens, out."""


def run(prepare: Callable[[dict], Generate]) -> None:
    """Take the work, JSON on standard input; answer with 'prefill B' and 'decode B' in tok/s, JSON too."""
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # standard output is for the answer alone; engines and their children log there too
        work = json.load(sys.stdin)
        json.dump(_measure(work, prepare(work)), answer)


def _measure(work: dict, generate: Generate) -> dict[str, float]:
    generate(work["prompts"][:2], 8)
    figures = {}
    for batch in work["batches"]:
        prompts = work["prompts"][:batch]
        first, prompt_tokens = generate(prompts, 1)
        whole, _ = generate(prompts, 1 + DECODED)
        figures[f"prefill {batch}"] = prompt_tokens / first
        figures[f"decode {batch}"] = batch * DECODED / (whole - first)
    return figures
