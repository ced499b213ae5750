"""The arithmetic of the accuracy bench, and the accuracy of real models through the engine that serves."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headrace.bench.accuracy import Passage, logprob_changes, read_golden, run
from headrace.errors import ConfigError

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1"
QWEN = "qwen2.5-coder-0.5b-instruct-q4_k_m"


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 3, (6, 11)).astype(np.float32)


@pytest.fixture
def passage(logits: np.ndarray) -> Passage:
    ids = [3, 1, 4, 1, 5, 9]
    logprobs = log_softmax(logits.astype(np.float64))
    return Passage(
        token_ids=ids,
        argmax=logits.argmax(axis=1).tolist(),
        gap=[1.0] * 6,
        target_logprob=[float(logprobs[i, ids[i + 1]]) for i in range(5)],
    )


def test_the_logits_that_golden_values_were_made_from_change_nothing(logits, passage):
    assert np.abs(logprob_changes(logits, passage, 0)).max() < 1e-12


def test_chunks_give_the_changes_of_the_whole(logits, passage):
    other = logits + np.linspace(0, 1, 11, dtype=np.float32)
    whole = logprob_changes(other, passage, 0)
    chunks = [logprob_changes(other[start : start + 4], passage, start) for start in (0, 4)]
    assert np.array_equal(np.concatenate(chunks), whole)
    assert len(whole) == 5


def test_a_file_that_holds_no_golden_values_is_refused_by_name(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"passages": [{"token_ids": "none"}]}')
    with pytest.raises(ConfigError, match=r"other\.json"):
        read_golden(path)


@pytest.mark.parametrize(
    ("name", "values", "change", "agreement"),
    [("smollm2-135m", SMOLLM2, 0.075, 0.99), ("qwen2.5-coder-0.5b", QWEN, 0.03, 0.998)],
)
@pytest.mark.parametrize("kv_dtype", ["f16", "int8"])
def test_models_stay_as_near_to_float32_as_int8_activations_allow(
    golden, model_path, tmp_path, name, values, change, agreement, kv_dtype
):
    path = tmp_path / "golden.json"
    path.write_text(json.dumps(golden(values)))
    measured = run(str(model_path(name)), path, kv_dtype=kv_dtype)
    assert measured["mean_abs_logprob_change"] <= change
    assert measured["argmax_agreement_gap_0.2"] >= agreement
    assert measured["positions"] == sum(len(p["token_ids"]) for p in golden(values)["passages"])
