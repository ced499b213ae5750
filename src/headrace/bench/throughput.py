"""Prefill and decode throughput on a workload that other engines can run too."""

from __future__ import annotations

import sys
from collections.abc import Sequence

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
    return [f"{index} " + SENTENCE * 5 for index in range(batch)]


def run(model: str, threads: int | None = None, batches: Sequence[int] = BATCHES) -> dict[str, object]:
    """Measure a model at several batch sizes, the prefix cache off.

    Each batch runs twice: for one token, which is prefill, and for 65, whose additional time is decode.

    Returns:
        prefill_tok_s, decode_tok_s: tokens per second of the whole batch, by batch size.
        isa: the instruction set of the kernels. threads: how many computed.
    """
    settings = WorkerSettings(model=model, threads=threads, max_running=max(batches), prefix_cache=False)
    opened = open_model(model)
    tokenizer = Tokenizer.from_metadata(opened.weights.metadata)
    loaded = load(opened, settings)
    prefill, decode = dict[str, float](), dict[str, float]()
    try:
        encoded = [tokenizer.encode(prompt) for prompt in prompts(max(2, *batches))]
        _seconds(loaded.engine, encoded[:2], 8)
        for batch in batches:
            first = _seconds(loaded.engine, encoded[:batch], 1)
            whole = _seconds(loaded.engine, encoded[:batch], 1 + DECODED)
            prompt_tokens = sum(map(len, encoded[:batch]))
            size = str(batch)
            prefill[size] = round(prompt_tokens / first, 1)
            decode[size] = round(batch * DECODED / (whole - first), 1)
            line = f"batch {batch:3d}  prefill {prefill[size]:8.1f} tok/s  decode {decode[size]:8.1f} tok/s"
            print(line, file=sys.stderr, flush=True)
        assert loaded.engine.stats.cached_tokens == 0, "the prefix cache was to be off"
    finally:
        loaded.close()
    return {
        "prefill_tok_s": prefill,
        "decode_tok_s": decode,
        "isa": choose_isa()[0],
        "threads": threads or usable_cpus(),
    }


def _seconds(engine: Engine, batch: Sequence[Sequence[int]], new_tokens: int) -> float:
    """Seconds that a batch of prompts takes."""
    timings = timed(engine, greedy_requests(batch, new_tokens, prefix_cache=False))
    return max(timing.last for timing in timings.values())
