"""What speculation gains on given prompts, and whether the tokens are what they are without it."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from time import perf_counter

from headrace.bench.drive import greedy_requests
from headrace.engine.engine import Engine
from headrace.engine.request import Request
from headrace.engine.speculation import Speculation
from headrace.errors import ConfigError
from headrace.models.tokenizer import Tokenizer
from headrace.worker.host import usable_cpus
from headrace.worker.loader import load, open_model
from headrace.worker.settings import WorkerSettings


def run(settings: WorkerSettings, prompts: Path, *, limit: int | None, tokens: int) -> dict[str, object]:
    """Continue each prompt greedily and alone, without speculation and with it in turn, on one loaded model.

    Args:
        settings: the model and the speculation.
        prompts: a file of JSON lines with the key "prompt", as HumanEval's; gzip-compressed if named .gz.
        limit: take only so many of its prompts.
        tokens: how many to generate, whatever the model says of an end.

    Returns:
        plain_tok_s, tok_s: decoded tokens per second without and with speculation, the first tokens apart.
        speedup: their ratio, over all prompts together.
        tokens_per_step, drafted, accepted, acceptance: with speculation.
        equal: whether every prompt's tokens were the same.
        prompts, threads: how many there were.
    """
    opened = open_model(settings.model)
    tokenizer = Tokenizer.from_metadata(opened.weights.metadata)
    encoded = [tokenizer.encode(text) for text in read_prompts(prompts)[:limit]]
    loaded = load(opened, settings)
    engine, speculation = loaded.engine, loaded.engine.speculation
    assert speculation is not None
    seconds = {False: 0.0, True: 0.0}
    steps, equal = 0, True
    try:
        requests = greedy_requests(encoded, tokens, prefix_cache=False)
        for number, request in enumerate(requests, start=1):
            plain, duration, _ = _decode(engine, request, None)
            seconds[False] += duration
            found, duration, taken = _decode(engine, request, speculation)
            seconds[True] += duration
            steps += taken
            equal = equal and found == plain
            ratio = seconds[False] / seconds[True]
            print(f"{number} prompts: {ratio:.3f} times as fast", file=sys.stderr, flush=True)
        stats = engine.stats
    finally:
        loaded.close()
    decoded = len(encoded) * (tokens - 1)
    return {
        "plain_tok_s": round(decoded / seconds[False], 2),
        "tok_s": round(decoded / seconds[True], 2),
        "speedup": round(seconds[False] / seconds[True], 3),
        "tokens_per_step": round(decoded / steps, 3),
        "drafted": stats.drafted_tokens,
        "accepted": stats.accepted_tokens,
        "acceptance": round(stats.accepted_tokens / max(stats.drafted_tokens, 1), 3),
        "equal": equal,
        "prompts": len(encoded),
        "threads": settings.threads or usable_cpus(),
    }


def read_prompts(path: Path) -> list[str]:
    """Raises ConfigError where the file is not what it should be."""
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        prompts = [json.loads(line)["prompt"] for line in text.splitlines() if line.strip()]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f'prompts: {path} is not JSON lines with the key "prompt" ({error})') from error
    if not prompts or not all(isinstance(prompt, str) and prompt for prompt in prompts):
        raise ConfigError(f'prompts: {path} must hold a text under "prompt" in every line')
    return prompts


def _decode(
    engine: Engine, request: Request, speculation: Speculation | None
) -> tuple[list[int], float, int]:
    """The request's tokens, the seconds from the first of them to the last, and the steps in between."""
    engine.speculation = speculation
    engine.add(request)
    found: list[int] = []
    first = 0.0
    steps = 0
    while True:
        began = perf_counter()
        if not engine.submit():
            return found, began - first, steps
        submitted = perf_counter()
        outputs = engine.collect()
        collected = perf_counter()
        engine.observe(submitted - began, collected - submitted)
        if found:
            steps += 1
        for output in outputs:
            first = first if found else collected
            found += output.token_ids
