"""Vectors of prompts: pooled as the model's file says, the same whatever else is computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.backends.cpu import CpuBackend
from headrace.backends.sampling import SamplingParams
from headrace.backends.step import Yield
from headrace.errors import RequestError
from headrace.models.gguf import GgufFile
from headrace.worker.embeddings import Pool, pooling_of
from headrace.worker.messages import Embed, Embedded, Submit
from plans import Rows, blocks_for, step_plan
from worker.test_constraints import running

PROMPTS = {str(length): [(7 * i + length) % 250 for i in range(length)] for length in (1, 16, 70, 150)}
HIDDEN = np.random.default_rng(5).normal(size=(40, 8)).astype(np.float32)


def vectors(generator, prompts: dict[str, list[int]]) -> dict[str, list[float]]:
    for name, prompt in prompts.items():
        generator.embed(Embed(name, prompt))
    while generator.begin():
        generator.complete()
    found = generator.take_messages()
    assert all(isinstance(message, Embedded) for message in found)
    return {message.id: message.vector for message in found}


def test_a_prompts_vector_is_the_mean_of_its_hidden_states(synthetic_model: Path):
    prompt = PROMPTS["70"]
    with GgufFile(synthetic_model) as weights:
        backend = CpuBackend(weights, threads=1)
        backend.allocate_cache([8])
        rows = Rows(prompt, blocks_for(70), kind=Yield.HIDDEN)
        hidden = backend.collect(backend.submit(step_plan(rows))).hidden
    expected = hidden.astype(np.float64).mean(axis=0)
    expected /= np.linalg.norm(expected)
    with running(synthetic_model) as generator:
        found = vectors(generator, {"one": prompt})["one"]
        assert np.allclose(found, expected, atol=1e-6)
        assert np.linalg.norm(found) == pytest.approx(1)
        assert generator.live == 0 and generator.stats().blocks_used == 0


def test_a_vector_does_not_depend_on_the_batch_the_chunks_or_the_cache(synthetic_model: Path):
    with running(synthetic_model) as generator:
        alone = {name: vectors(generator, {name: prompt})[name] for name, prompt in PROMPTS.items()}
        generator.submit(Submit("other", [1, 2, 3], 30, SamplingParams(temperature=0), ignore_eos=True))
        assert vectors(generator, PROMPTS) == alone
    with running(synthetic_model, max_batch_tokens=19) as generator:
        generator.submit(Submit("other", PROMPTS["150"], 30, SamplingParams(temperature=0), ignore_eos=True))
        assert vectors(generator, PROMPTS) == alone


def test_backends_agree_but_for_rounding(synthetic_model: Path):
    with running(synthetic_model) as cpu, running(synthetic_model, backend="reference") as reference:
        found, expected = vectors(cpu, PROMPTS), vectors(reference, PROMPTS)
    for name in PROMPTS:
        assert np.dot(found[name], expected[name]) > 0.999


def test_a_prompt_as_long_as_the_context_is_embedded_and_a_longer_one_refused(synthetic_model: Path):
    with running(synthetic_model, cache_tokens=64, context_length=64) as generator:
        assert vectors(generator, {"whole": [1] * 64})
        with pytest.raises(RequestError, match="room for 64"):
            generator.embed(Embed("long", [1] * 65))


def test_an_embedding_can_be_cancelled(synthetic_model: Path):
    with running(synthetic_model) as generator:
        generator.embed(Embed("gone", PROMPTS["150"]))
        generator.cancel("gone")
        assert vectors(generator, {"16": PROMPTS["16"]}).keys() == {"16"}
        assert generator.live == 0


@pytest.mark.parametrize(
    ("number", "pooling"), [(None, "mean"), (0, "mean"), (1, "mean"), (2, "cls"), (3, "last")]
)
def test_the_file_says_how_states_are_pooled(number, pooling):
    metadata = {"general.architecture": "llama", "llama.pooling_type": number}
    assert pooling_of(metadata) == pooling
    pooled = {"mean": HIDDEN.mean(axis=0), "cls": HIDDEN[0], "last": HIDDEN[-1]}[pooling]
    pool = Pool(pooling)
    pool.add(HIDDEN[:13])
    pool.add(HIDDEN[13:])
    assert np.allclose(pool.vector(), pooled / np.linalg.norm(pooled), atol=1e-6)


def test_another_way_of_pooling_is_refused():
    with pytest.raises(RequestError, match="pooling_type"):
        Pool(pooling_of({"general.architecture": "bert", "bert.pooling_type": 4}))
