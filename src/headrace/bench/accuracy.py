"""How far the engine that serves is from float32, in log-probabilities and in greedy choices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.backends.step import Float32
from headrace.bench.drive import greedy_requests, outputs
from headrace.errors import ConfigError
from headrace.worker.loader import load, open_model
from headrace.worker.settings import WorkerSettings

CLEAR_GAP = 0.2
"""Where the runner-up is nearer than this (natural logarithm), the choice between the two is a toss-up."""


class Passage(msgspec.Struct, frozen=True):
    """A text, and what a float32 computation of the model makes of it."""

    token_ids: list[int]
    argmax: list[int]
    """The most likely token after each of token_ids."""
    gap: list[float]
    """By how much its log-probability exceeds the runner-up's."""
    target_logprob: list[float]
    """Log-probability of token i + 1 after tokens 0 … i; one fewer than token_ids."""


class Golden(msgspec.Struct, frozen=True):
    """A file of golden values; other keys are ignored."""

    passages: list[Passage]


def run(
    model: str, golden: Path, threads: int | None = None, kv_dtype: Literal["f16", "int8"] = "f16"
) -> dict[str, float | int]:
    """Compare a model, through scheduler, paged cache and kernels, with the passages of a golden file.

    Returns:
        mean_abs_logprob_change: of the true next token, natural logarithm.
        argmax_agreement: the part of all positions where the most likely token is the golden one.
        argmax_agreement_gap_0.2: the same where the golden gap exceeds 0.2.
        positions: how many there are.
    """
    passages = read_golden(golden).passages
    settings = WorkerSettings(model=model, threads=threads, kv_dtype=kv_dtype, prefix_cache=False)
    loaded = load(open_model(model), settings)
    try:
        requests = [
            replace(request, prompt_logits=True)
            for request in greedy_requests([p.token_ids for p in passages], 1, prefix_cache=False)
        ]
        changes: list[NDArray[np.float64]] = []
        agreements: list[NDArray[np.bool_]] = []
        clear: list[NDArray[np.bool_]] = []
        for output in outputs(loaded.engine, requests):
            if output.prompt_logits is not None and len(output.prompt_logits):
                passage, start = passages[int(output.id)], output.logits_start
                span = slice(start, start + len(output.prompt_logits))
                changes.append(logprob_changes(output.prompt_logits, passage, start))
                agreements.append(output.prompt_logits.argmax(axis=1) == np.array(passage.argmax[span]))
                clear.append(np.array(passage.gap[span]) > CLEAR_GAP)
    finally:
        loaded.close()
    change, agree, is_clear = (np.concatenate(parts) for parts in (changes, agreements, clear))
    assert len(agree) == sum(len(p.token_ids) for p in passages), "a position was not computed"
    return {
        "mean_abs_logprob_change": float(np.abs(change).mean()),
        "argmax_agreement": float(agree.mean()),
        "argmax_agreement_gap_0.2": float(agree[is_clear].mean()),
        "positions": len(agree),
    }


def read_golden(path: Path) -> Golden:
    """Raises ConfigError where the file is not what it should be."""
    try:
        return msgspec.convert(json.loads(path.read_text(encoding="utf-8")), Golden)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise ConfigError(f"golden: {path} holds no golden values ({error})") from error


def logprob_changes(logits: Float32, passage: Passage, start: int) -> NDArray[np.float64]:
    """[n] our log-probability of each true next token less the golden one; logits are [n, vocab].

    The passage's last position has no next token and is left out. Rows are taken one at a time: in float64
    all of them would be twice a step's logits.
    """
    count = min(len(logits), len(passage.token_ids) - 1 - start)
    changes = np.empty(count)
    for row in range(count):
        exact = logits[row].astype(np.float64)
        exact -= exact.max()
        target = passage.token_ids[start + row + 1]
        changes[row] = exact[target] - np.log(np.exp(exact).sum()) - passage.target_logprob[start + row]
    return changes
