"""Prefill and decode throughput on a workload that other engines can run too."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from headrace.backends.cpu.backend import choose_isa
from headrace.bench.drive import greedy_requests, timed
from headrace.engine.engine import Engine
from headrace.models.tokenizer import Tokenizer
from headrace.worker.host import usable_cpus
from headrace.worker.loader import load, open_model
from headrace.worker.settings import WorkerSettings

SENTENCE = (
    "The quick brown fox jumps over the lazy dog near the river bank while the sun sets "
    "slowly behind the distant mountains and birds fly home. "
)
BATCHES = (1, 4, 8, 16, 32)
DECODED = 64
"""Tokens of each request whose decoding is timed, after the first one."""


def prompts(batch: int) -> list[str]:
    """About 137 tokens each. The first words differ, so that no prefix is shared."""
    return [_prompt(index) for index in range(batch)]


def _prompt(index: int) -> str:
    return f"{index} " + SENTENCE * 5


def run(
    model: str, threads: int | None = None, batches: Sequence[int] = BATCHES, depth: int | None = None
) -> dict[str, object]:
    """Measure a model at several batch sizes.

    Each batch runs twice: for one token, which is prefill, and for 65, whose additional time is decode. With
    a depth, prompts are of that many tokens and are put into the cache first, whose time is prefill; both
    runs then find them there. Without, the prefix cache is off.

    Returns:
        prefill_tok_s, decode_tok_s: tokens per second of the whole batch, by batch size.
        isa: the instruction set of the kernels. threads: how many computed.
    """
    filled = depth is not None
    settings = WorkerSettings(model=model, threads=threads, max_running=max(batches), prefix_cache=filled)
    opened = open_model(model)
    tokenizer = Tokenizer.from_metadata(opened.weights.metadata)
    loaded = load(opened, settings)
    prefill, decode = dict[str, float](), dict[str, float]()
    try:
        _seconds(loaded.engine, _encoded(tokenizer, range(2)), 8)
        start = 0
        for batch in batches:
            encoded, size = _encoded(tokenizer, range(start, start + batch), depth), str(batch)
            prefill[size], decode[size] = _measure(loaded.engine, encoded, filled=filled)
            start += batch if filled else 0  # a later batch must not find its prompts in the cache already
            line = f"batch {batch:3d}  prefill {prefill[size]:8.1f} tok/s  decode {decode[size]:8.1f} tok/s"
            print(line, file=sys.stderr, flush=True)
    finally:
        loaded.close()
    return {
        "prefill_tok_s": prefill,
        "decode_tok_s": decode,
        "isa": choose_isa()[0],
        "threads": threads or usable_cpus(),
    }


def _encoded(tokenizer: Tokenizer, indices: Iterable[int], depth: int | None = None) -> list[list[int]]:
    """Prompts of these numbers, repeated and cut to exactly `depth` tokens where there is one."""
    encoded = [tokenizer.encode(_prompt(index)) for index in indices]
    if depth is None:
        return encoded
    return [(prompt * (1 + depth // len(prompt)))[:depth] for prompt in encoded]


def _measure(engine: Engine, batch: Sequence[Sequence[int]], *, filled: bool) -> tuple[float, float]:
    """Prefill and decode of a batch in tokens per second; `filled` takes the prompts from the cache."""
    reused = engine.stats.cached_tokens
    fill = _seconds(engine, batch, 1, prefix_cache=filled)
    first = _seconds(engine, batch, 1, prefix_cache=True) if filled else fill
    while (whole := _seconds(engine, batch, 1 + DECODED, prefix_cache=filled)) <= first:
        # Something else had the cores meanwhile.
        first = _seconds(engine, batch, 1, prefix_cache=filled)
        fill = fill if filled else first
    assert filled or engine.stats.cached_tokens == reused, "the prefix cache was to be off"
    prompt_tokens = sum(map(len, batch))
    return round(prompt_tokens / fill, 1), round(len(batch) * DECODED / (whole - first), 1)


def _seconds(
    engine: Engine, batch: Sequence[Sequence[int]], new_tokens: int, *, prefix_cache: bool = False
) -> float:
    """Seconds that a batch of prompts takes."""
    timings = timed(engine, greedy_requests(batch, new_tokens, prefix_cache=prefix_cache))
    return max(timing.last for timing in timings.values())
