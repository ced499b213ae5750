"""Requests on a loaded model, up to the very edge of what its cache holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.backends.cache import BLOCK_TOKENS
from headrace.backends.sampling import SamplingParams
from headrace.errors import ConfigError, RequestError
from headrace.models.vocabulary import Vocabulary
from headrace.worker.generator import Generator
from headrace.worker.loader import LoadedModel, load, open_model
from headrace.worker.messages import Constraint, Submit, TokenEvent
from headrace.worker.settings import WorkerSettings
from synthetic import write_synthetic


@contextmanager
def loaded_with(
    model: Path, cache_tokens: int, context_length: int | None = None
) -> Iterator[tuple[LoadedModel, Generator]]:
    settings = WorkerSettings(
        model=str(model), backend="reference", cache_tokens=cache_tokens, context_length=context_length
    )
    opened = open_model(settings.model)
    with closing(load(opened, settings)) as loaded:
        yield loaded, Generator(loaded, Vocabulary(opened.weights.metadata))


def answered(generator: Generator, request_id: str, prompt: list[int]) -> list[TokenEvent]:
    """The events of a request for more tokens than any context holds."""
    generator.submit(
        Submit(
            id=request_id,
            prompt=prompt,
            max_tokens=10**9,
            sampling=SamplingParams(temperature=0),
            ignore_eos=True,
        )
    )
    events = []
    while generator.begin():
        events += generator.complete()
    return events


@pytest.mark.parametrize("tokens", [2, 15, 16, 17, 33])
def test_a_context_as_small_as_the_cache_can_be_used_to_its_last_token(
    synthetic_model: Path, tokens: int
) -> None:
    with loaded_with(synthetic_model, cache_tokens=tokens, context_length=tokens) as (loaded, generator):
        assert loaded.context_length == tokens <= loaded.engine.longest_request
        for length in {1, tokens // 2, tokens - 1}:
            prompt = list(range(length))
            for attempt in ("new", "cached"):
                events = answered(generator, f"{length} {attempt}", prompt)
                assert sum(len(event.token_ids) for event in events) == tokens - length
                assert events[-1].finish_reason == "length"
        with pytest.raises(RequestError, match=f"context of {tokens} tokens"):
            answered(generator, "long", [1] * tokens)


def test_the_models_context_is_lowered_to_what_the_engine_can_hold(synthetic_model: Path) -> None:
    with loaded_with(synthetic_model, cache_tokens=257) as (loaded, generator):
        assert loaded.context_length == 17 * BLOCK_TOKENS <= loaded.engine.longest_request
        events = answered(generator, "whole", [1] * 17 * (BLOCK_TOKENS - 1))
        assert sum(len(event.token_ids) for event in events) == 17


def test_a_stop_string_ends_the_answer_at_the_same_token_when_several_come_at_once(
    synthetic_model: Path,
) -> None:
    """The model drafts for itself, so that every draft is right."""

    def answer(stop: list[str], **speculation: str) -> tuple[str, list[int], str | None, list[object], str]:
        settings = WorkerSettings(model=str(synthetic_model), threads=1, cache_tokens=512, **speculation)
        opened = open_model(settings.model)
        with closing(load(opened, settings)) as loaded:
            generator = Generator(loaded, Vocabulary(opened.weights.metadata))
            sampling = SamplingParams(temperature=1.0, seed=4)
            generator.submit(Submit("r", [1, 2, 3], 60, sampling, stop=stop, ignore_eos=True, top_logprobs=1))
            events = []
            while generator.begin():
                events += generator.complete()
            if speculation:
                assert loaded.engine.stats.accepted_tokens > 0
        return (
            "".join(event.text for event in events),
            [token for event in events for token in event.token_ids],
            events[-1].finish_reason,
            [entry for event in events for entry in event.logprobs],
            events[-1].stop_string,
        )

    drafting = {"speculate": "draft", "draft_model": str(synthetic_model)}
    text, tokens, _, logprobs, _ = answer([])
    assert len(tokens) == len(logprobs) == 60
    for place in (5, len(text) // 2, len(text) - 6):
        stop = [text[place : place + 3]]
        plain = answer(stop)
        assert plain[2] == "stop" and [plain[4]] == stop and len(plain[1]) == len(plain[3]) < 60
        assert answer(stop, **drafting) == plain


def test_a_draft_model_of_another_vocabulary_is_refused(synthetic_model: Path, tmp_path: Path) -> None:
    other = write_synthetic(tmp_path / "other.gguf", layers=1)
    data = other.read_bytes()
    assert data.count(b"hello") == 1
    other.write_bytes(data.replace(b"hello", b"hallo"))
    settings = WorkerSettings(model=str(synthetic_model), speculate="draft", draft_model=str(other))
    with pytest.raises(ConfigError, match="vocabulary"):
        load(open_model(settings.model), settings)


_WILD = SamplingParams(temperature=1.5, seed=3)
_BIASED = SamplingParams(
    temperature=1.2, top_p=0.95, seed=7, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2
)


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": SamplingParams(temperature=0)},
        {"sampling": _BIASED, "top_logprobs": 2},
        {"sampling": _BIASED, "stop": ["aa", "b c", "e"], "min_tokens": 9},
        {"sampling": _BIASED, "stop": ["zz"], "logit_bias": [(5, 3.0)], "ignore_eos": True},
        {"sampling": _WILD, "constraint": Constraint("regex", "[a-z ]{30,40}")},
    ],
)
def test_a_request_goes_on_after_any_of_its_events_as_if_it_had_begun_here(
    synthetic_model: Path, fields: dict[str, Any]
) -> None:
    submit = Submit(id="whole", prompt=list(range(20)), max_tokens=24, **fields)
    with loaded_with(synthetic_model, cache_tokens=512) as (loaded, generator):
        whole = events_of(generator, submit)
        assert sum(len(event.token_ids) for event in whole) > 2
        for delivered in range(1, len(whole)):
            output = [token for event in whole[:delivered] for token in event.token_ids]
            rest = events_of(generator, msgspec.structs.replace(submit, id=f"{delivered}", output=output))
            assert [told(event) for event in rest] == [told(event) for event in whole[delivered:]]
            assert not any(event.cached_tokens for event in rest)
        loaded.engine.cache.tree.check_integrity()


def told(event: TokenEvent) -> tuple[Any, ...]:
    """What a client gets to know of an event."""
    return event.text, event.token_ids, event.logprobs, event.finish_reason, event.stop_string


def events_of(generator: Generator, submit: Submit) -> list[TokenEvent]:
    generator.submit(submit)
    events = []
    while generator.begin():
        events += generator.complete()
    return events
