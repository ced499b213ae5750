"""What a shared prefix saves: time to first token and computed tokens, with and without it in the cache."""

from __future__ import annotations

from statistics import median

from headrace.bench.drive import greedy_requests, timed
from headrace.bench.throughput import SENTENCE
from headrace.engine.engine import Engine
from headrace.models.tokenizer import Tokenizer
from headrace.worker.loader import load, open_model
from headrace.worker.settings import WorkerSettings

PREFIX_TOKENS = 1000
QUESTIONS = ("Who jumps?", "Over whom?", "Where is the dog?", "When do the birds fly home?")
REPEATS = 3


def run(model: str, threads: int | None = None) -> dict[str, float | int]:
    """Send requests that share a prefix of 1000 tokens, one after another and four at once.

    Returns:
        first_ttft_ms, second_ttft_ms: medians over several prefixes, milliseconds.
        speedup: how many times sooner the second request's first token comes.
        first_computed_tokens, second_computed_tokens: rows computed for each.
        four_computed_tokens: for four requests at once with one new prefix.
        four_prompt_tokens: what they would be if each computed its own.
    """
    opened = open_model(model)
    tokenizer = Tokenizer.from_metadata(opened.weights.metadata)
    loaded = load(opened, WorkerSettings(model=model, threads=threads))
    try:
        _ask(loaded.engine, _prompts(tokenizer, 0)[:1])
        firsts, seconds = [], []
        for number in range(1, 1 + REPEATS):
            prompts = _prompts(tokenizer, number)
            firsts.append(_ask(loaded.engine, prompts[:1]))
            seconds.append(_ask(loaded.engine, prompts[1:2]))
        four = _prompts(tokenizer, 1 + REPEATS)
        _, four_computed = _ask(loaded.engine, four)
    finally:
        loaded.close()
    first, second = (median(ttft for ttft, _ in asked) for asked in (firsts, seconds))
    return {
        "first_ttft_ms": round(first * 1e3, 2),
        "second_ttft_ms": round(second * 1e3, 2),
        "speedup": round(first / second, 2),
        "first_computed_tokens": firsts[-1][1],
        "second_computed_tokens": seconds[-1][1],
        "four_computed_tokens": four_computed,
        "four_prompt_tokens": sum(map(len, four)),
    }


def _prompts(tokenizer: Tokenizer, number: int) -> list[list[int]]:
    """QUESTIONS behind exactly PREFIX_TOKENS tokens; another number gives others, from the first on."""
    prefix = tokenizer.encode(f"{number} " + SENTENCE * 50)
    assert len(prefix) >= PREFIX_TOKENS
    return [prefix[:PREFIX_TOKENS] + tokenizer.encode(f"\n{question}") for question in QUESTIONS]


def _ask(engine: Engine, prompts: list[list[int]]) -> tuple[float, int]:
    """Seconds to the last of the requests' first tokens, and the rows computed for them."""
    before = engine.stats.computed_tokens
    timings = timed(engine, greedy_requests(prompts, 1, prefix_cache=True))
    return max(timing.first for timing in timings.values()), engine.stats.computed_tokens - before
