"""Speculation changes no bit of any answer: real backends, with and without drafted tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from headrace.backends.cpu import CpuBackend
from headrace.backends.sampling import SamplingParams
from headrace.engine.engine import Engine, EngineConfig
from headrace.engine.lookup_first import LookupFirst
from headrace.engine.model_drafter import ModelDrafter
from headrace.engine.prompt_lookup import PromptLookup
from headrace.engine.request import Output, PrefixNamespace, Request
from headrace.engine.speculation import Ask, Draft, Drafter, Speculation
from headrace.models.gguf import GgufFile
from synthetic import write_synthetic

GREEDY = SamplingParams(temperature=0)
SAMPLINGS = {
    "greedy": GREEDY,
    "sampled": SamplingParams(temperature=0.8, top_p=0.9, seed=7),
    "cool": SamplingParams(temperature=0.2, top_k=5, seed=8),
    "repetition": SamplingParams(temperature=0, repetition_penalty=1.2),
    "frequency": SamplingParams(temperature=0.5, frequency_penalty=0.4, presence_penalty=0.2, seed=9),
}
PROMPT = tuple(Random(3).choices(range(256), k=40))


class Told:
    """Drafts what it was told comes, with an error now and then."""

    steps = 0

    def __init__(self, answers: dict[str, tuple[int, ...]], wrong: float = 0.15):
        self._answers = answers
        self._random = Random(1)
        self._wrong = wrong

    def propose(self, asks: Sequence[Ask], least_chance: float) -> list[Draft]:
        drafts = []
        for seq, limit in asks:
            start = len(seq.tokens) - seq.prompt_length
            coming = self._answers[seq.request.id][start : start + limit]
            tokens = tuple((t + (self._random.random() < self._wrong)) % 256 for t in coming)
            drafts.append(Draft(tokens, (0,) * len(tokens)))
        return drafts

    def forget(self, seq) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def backend(synthetic_model: Path) -> Iterator[CpuBackend]:
    with GgufFile(synthetic_model) as weights:
        yield CpuBackend(weights, threads=2)


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model of the same vocabulary: like the first it holds, of the last layers, other weights."""
    return write_synthetic(tmp_path_factory.mktemp("draft") / "draft.gguf", layers=1)


@contextmanager
def drafters(
    synthetic_model: Path, other_model: Path
) -> Iterator[dict[str, Callable[[dict[str, tuple[int, ...]]], Drafter]]]:
    with GgufFile(synthetic_model) as same, GgufFile(other_model) as other:
        yield {
            "told": lambda answers: Told(answers),
            "lookup": lambda answers: PromptLookup(),
            "same model": lambda answers: ModelDrafter(CpuBackend(same, threads=1), 64),
            "other model": lambda answers: ModelDrafter(CpuBackend(other, threads=1), 64),
            "both": lambda answers: LookupFirst(ModelDrafter(CpuBackend(other, threads=1), 64)),
            "few blocks": lambda answers: ModelDrafter(CpuBackend(same, threads=1, max_rows=16), 8),
        }


def a_request(name: str, prompt: Sequence[int] = PROMPT, **options) -> Request:
    options = {"max_tokens": 48, "sampling": GREEDY, "top_logprobs": 2, **options}
    return Request(id=name, prompt=tuple(prompt), namespace=PrefixNamespace("m"), **options)


def run(engine: Engine, requests: Sequence[Request]) -> dict[str, list[Output]]:
    outputs: dict[str, list[Output]] = {request.id: [] for request in requests}
    for request in requests:
        engine.add(request)
    while engine.submit():
        for output in engine.collect():
            outputs[output.id].append(output)
    return outputs


def answers(outputs: dict[str, list[Output]]) -> dict[str, tuple]:
    """Tokens, why they ended, and their log-probabilities, to be compared with `==`."""
    return {
        name: (
            tuple(token for part in parts for token in part.token_ids),
            parts[-1].finish_reason,
            [
                (entry.chosen, entry.token_ids.tolist(), entry.logprobs.tolist())
                for part in parts
                for entry in part.logprobs
            ],
        )
        for name, parts in outputs.items()
    }


def engine_of(
    backend: CpuBackend, drafter: Drafter | None = None, row_cost: float = 0.001, **limits
) -> Engine:
    speculation = None if drafter is None else Speculation(drafter, 8, row_cost)
    return Engine(backend, EngineConfig(**{"cache_blocks": 128, **limits}), speculation)


@pytest.mark.parametrize("row_cost", [0.001, 0.2])
@pytest.mark.parametrize("kind", ["told", "lookup", "same model", "other model", "both", "few blocks"])
def test_every_answer_is_the_same_with_and_without(backend, synthetic_model, other_model, kind, row_cost):
    """However many of the drafted tokens are found worth a row."""
    requests = [
        a_request(name, PROMPT[: 20 + 4 * number], sampling=sampling)
        for number, (name, sampling) in enumerate(SAMPLINGS.items())
    ]
    plain = answers(run(engine_of(backend), requests))
    assert all(len(logprobs) == len(tokens) == 48 for tokens, _, logprobs in plain.values())
    with drafters(synthetic_model, other_model) as made:
        told = {name: tokens for name, (tokens, *_) in plain.items()}
        engine = engine_of(backend, made[kind](told), row_cost)
        assert answers(run(engine, requests)) == plain
    assert engine.stats.drafted_tokens > 0
    if kind in ("told", "same model"):
        assert engine.stats.accepted_tokens > 20


def test_a_model_that_drafts_for_itself_is_always_right(backend, synthetic_model, other_model):
    """Sampled too: it draws with the same noise. So nothing is lost in catching up and taking back."""
    requests = [a_request(name, sampling=sampling) for name, sampling in SAMPLINGS.items()]
    with drafters(synthetic_model, other_model) as made:
        engine = engine_of(backend, made["same model"]({}))
        run(engine, requests)
    stats = engine.stats
    assert stats.accepted_tokens == stats.drafted_tokens > 0


def test_a_stop_token_within_an_accepted_run_ends_the_answer_there(backend):
    tokens = answers(run(engine_of(backend), [a_request("plain")]))["plain"][0]
    for place in range(1, 20):
        stop = frozenset({tokens[place]})
        cut = tokens[: tokens.index(tokens[place]) + 1]
        engine = engine_of(backend, Told({"stop": tokens}, wrong=0.0))
        found = answers(run(engine, [a_request("stop", stop_token_ids=stop)]))["stop"]
        assert found[0] == cut
        assert len(found[2]) == len(cut)
        assert found[1] == "stop"


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 9, 10])
def test_an_accepted_run_never_exceeds_what_was_asked_for(backend, max_tokens):
    tokens = answers(run(engine_of(backend), [a_request("plain")]))["plain"][0]
    engine = engine_of(backend, Told({"short": tokens}, wrong=0.0))
    found = answers(run(engine, [a_request("short", max_tokens=max_tokens)]))["short"]
    assert found[:2] == (tokens[:max_tokens], "length")


def test_what_was_drafted_wrongly_is_not_found_in_the_cache(backend):
    """The second turn hits blocks that were written while tokens were drafted, some of them wrong."""
    first = answers(run(engine_of(backend), [a_request("first")]))["first"][0]
    for length in range(1, len(first) + 1, 5):
        prompt = (*PROMPT, *first[:length], 5, 6, 7)
        second = a_request("second", prompt, max_tokens=12)
        plain = answers(run(engine_of(backend), [second]))["second"]
        engine = engine_of(backend, Told({"first": first, "second": plain[0]}, wrong=0.4))
        run(engine, [a_request("first")])
        outputs = run(engine, [second])
        assert outputs["second"][0].cached_tokens >= len(PROMPT) + min(length, len(first) - 1)
        assert answers(outputs)["second"] == plain


def test_answers_are_the_same_where_blocks_are_short_and_sequences_preempted(
    backend, synthetic_model, other_model
):
    requests = [
        a_request(name, PROMPT[number:], sampling=s) for number, (name, s) in enumerate(SAMPLINGS.items())
    ]
    plain = answers(run(engine_of(backend), requests))
    with drafters(synthetic_model, other_model) as made:
        for kind in ("told", "few blocks"):
            told = {name: tokens for name, (tokens, *_) in plain.items()}
            engine = engine_of(backend, made[kind](told), cache_blocks=17, max_batch_tokens=24)
            assert answers(run(engine, requests)) == plain
            assert engine.stats.preemptions > 0 and engine.stats.accepted_tokens > 0
