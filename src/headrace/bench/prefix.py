"""What a shared prefix saves: time to first token and computed tokens, with and without it in the cache."""

from __future__ import annotations

from statistics import median

from headrace.bench.drive import greedy_requests, timed
from headrace.bench.throughput import SENTENCE
from headrace.worker.loader import LoadedModel, load
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
    loaded = load(WorkerSettings(model=model, threads=threads))
    try:
        _ask(loaded, _prefix(loaded, 0), QUESTIONS[:1])
        firsts, seconds = [], []
        for number in range(1, 1 + REPEATS):
            prefix = _prefix(loaded, number)
            firsts.append(_ask(loaded, prefix, QUESTIONS[:1]))
            seconds.append(_ask(loaded, prefix, QUESTIONS[1:2]))
        prefix = _prefix(loaded, 1 + REPEATS)
        _, four_computed = _ask(loaded, prefix, QUESTIONS)
        four_prompts = sum(len(_prompt(loaded, prefix, question)) for question in QUESTIONS)
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
        "four_prompt_tokens": four_prompts,
    }


def _prefix(loaded: LoadedModel, number: int) -> list[int]:
    """Exactly PREFIX_TOKENS tokens; another number gives others, from the first on."""
    ids = loaded.tokenizer.encode(f"{number} " + SENTENCE * 50)
    assert len(ids) >= PREFIX_TOKENS
    return ids[:PREFIX_TOKENS]


def _prompt(loaded: LoadedModel, prefix: list[int], question: str) -> list[int]:
    return prefix + loaded.tokenizer.encode(f"\n{question}")


def _ask(loaded: LoadedModel, prefix: list[int], questions: tuple[str, ...]) -> tuple[float, int]:
    """Seconds to the last of the requests' first tokens, and the rows computed for them."""
    prompts = [_prompt(loaded, prefix, question) for question in questions]
    before = loaded.engine.stats.computed_tokens
    timings = timed(loaded.engine, greedy_requests(prompts, 1, prefix_cache=True))
    computed = loaded.engine.stats.computed_tokens - before
    return max(timing.first for timing in timings.values()), computed
