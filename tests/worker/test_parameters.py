"""What a request may ask beside its sampling: biases, a least length, and log-probabilities of its prompt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.backends.reference_sampler import log_softmax
from headrace.backends.sampling import SamplingParams
from headrace.errors import RequestError
from headrace.worker.generator import Generator
from headrace.worker.messages import Submit, TokenEvent
from plans import teacher_forced
from worker.test_constraints import running

GREEDY = SamplingParams(temperature=0)
PROMPT = [(11 * i + 5) % 250 for i in range(70)]
DRAFTS = [{}, {"speculate": "draft"}]


@pytest.fixture(scope="module", params=DRAFTS, ids=["plain", "drafted"])
def generator(request, synthetic_model: Path) -> Iterator[Generator]:
    """The model drafts for itself, if any does, so that drafts are right."""
    draft = {**request.param, "draft_model": str(synthetic_model)} if request.param else {}
    with running(synthetic_model, **draft) as generator:
        yield generator


def run(generator: Generator, **options) -> list[TokenEvent]:
    options = {"prompt": PROMPT, "max_tokens": 30, "sampling": GREEDY, **options}
    generator.submit(Submit(id="r", **options))
    events = []
    while generator.begin():
        events += generator.complete()
    return events


def tokens(events: list[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def text(events: list[TokenEvent]) -> str:
    return "".join(event.text for event in events)


def test_a_bias_is_added_to_every_tokens_logit(generator):
    plain = tokens(run(generator, ignore_eos=True))
    banned = sorted(set(plain))[:3]
    assert not set(tokens(run(generator, ignore_eos=True, logit_bias=[(t, -100.0) for t in banned]))) & set(
        banned
    )
    assert tokens(run(generator, logit_bias=[(7, 100.0)])) == [7] * 30
    assert tokens(run(generator, ignore_eos=True, logit_bias=[(7, 0.0)])) == plain


def test_log_probabilities_are_told_without_the_biases(generator):
    (first, *_) = run(generator, logit_bias=[(7, 100.0)], top_logprobs=1)
    chosen, (best,), _ = first.logprobs[0]
    assert chosen < -1 and best != 7


def test_a_bias_for_a_token_that_is_none_is_refused(generator):
    with pytest.raises(RequestError, match="Token ids must be from 0"):
        run(generator, logit_bias=[(10_000, 1.0)])
    assert generator.live == 0


@pytest.mark.parametrize("least", [0, 1, 2, 9, 30])
def test_no_stop_token_comes_before_min_tokens(generator, least):
    """The stop token would be the most likely one everywhere."""
    found = run(generator, stop_token_ids=[7, 99_999], logit_bias=[(7, 100.0)], min_tokens=least)
    assert len(tokens(found)) == min(least + 1, 30)
    assert 7 not in tokens(found)[:least]
    assert found[-1].finish_reason == ("stop" if least < 30 else "length")


def test_stop_strings_wait_for_min_tokens_and_may_be_told(generator):
    plain = run(generator, ignore_eos=True)
    pieces = [generator._vocabulary.decode([token]) for token in tokens(plain)]
    stop = next(piece for piece in pieces if piece.isascii() and piece.strip())
    whole = text(plain)
    cut = run(generator, ignore_eos=True, stop=[stop])
    assert text(cut) == whole[: whole.index(stop)]
    told = run(generator, ignore_eos=True, stop=[stop], include_stop=True)
    assert text(told) == whole[: whole.index(stop) + len(stop)] and tokens(told) == tokens(cut)
    later = run(generator, ignore_eos=True, stop=[stop], min_tokens=25)
    assert len(tokens(later)) >= 25
    assert (
        run(generator, ignore_eos=True, stop=[stop], min_tokens=len(tokens(cut)))[-1].finish_reason == "stop"
    )


@pytest.mark.parametrize("top", [0, 2])
def test_log_probabilities_of_the_prompt_come_with_the_first_event(generator, top):
    run(generator, prompt=PROMPT[:40])  # whose prefix is cached, and must not be used
    first, *rest = run(generator, prompt_logprobs=top)
    assert not any(event.prompt_logprobs for event in rest)
    assert len(first.prompt_logprobs) == len(PROMPT) - 1 and first.cached_tokens == 0
    with running(generator._loaded.path) as other:
        logits = teacher_forced(other._loaded.backend, PROMPT)
    for row, (token, entry) in enumerate(zip(PROMPT[1:], first.prompt_logprobs, strict=True)):
        expected = log_softmax(logits[row])
        chosen, ids, values = entry
        assert chosen == pytest.approx(expected[token], abs=1e-5)
        assert ids == np.argsort(-logits[row], kind="stable")[:top].tolist()
        assert values == pytest.approx(expected[ids].tolist(), abs=1e-5)


def test_they_do_not_depend_on_how_the_prompt_is_cut(synthetic_model):
    with running(synthetic_model) as whole, running(synthetic_model, max_batch_tokens=13) as cut:
        assert run(whole, prompt_logprobs=3)[0] == run(cut, prompt_logprobs=3)[0]


def test_a_prompt_of_one_token_has_none(generator):
    assert run(generator, prompt=[5], prompt_logprobs=1)[0].prompt_logprobs == []


def test_preempted_requests_tell_each_of_them_once(synthetic_model):
    with running(synthetic_model, cache_tokens=160, context_length=128) as generator:
        for name in "ab":
            options = {"ignore_eos": True, "prompt_logprobs": 0, "priority": ord(name)}
            generator.submit(Submit(name, PROMPT[:60], 40, GREEDY, **options))
        found = {"a": [], "b": []}
        while generator.begin():
            for event in generator.complete():
                found[event.id] += event.prompt_logprobs
        assert generator.stats().preemptions > 0
    assert len(found["a"]) == 59 and found["a"] == found["b"]
