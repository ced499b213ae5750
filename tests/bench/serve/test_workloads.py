"""What the load consists of: exact lengths, shared beginnings, growing conversations, arrivals."""

from __future__ import annotations

from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.serve.traces import TracedRequest
from headrace.bench.serve.workloads import FIRST_TOKEN, Workload, fitting, poisson

counts = st.integers(1, 20)


def prompts(workload: Workload, requests: int) -> list[list[int]]:
    return [next(session.asks).prompt for session in workload.sessions(requests)]


@given(counts, counts, st.integers(200, 1000), st.integers(0, 5))
def test_random_prompts_have_the_length_asked_for_and_tokens_of_the_vocabulary(requests, length, size, seed):
    made = prompts(Workload(input_len=length, vocab_size=size, seed=seed), requests)
    assert [len(prompt) for prompt in made] == [length] * requests
    assert all(FIRST_TOKEN <= token < size for prompt in made for token in prompt)


def test_equal_seeds_make_equal_prompts_and_other_seeds_others():
    first, again, other = (prompts(Workload(seed=seed), 3) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len({tuple(prompt) for prompt in first}) == 3


@given(st.integers(1, 12), st.integers(1, 4))
def test_requests_take_the_shared_prefixes_in_turn(requests, groups):
    made = prompts(Workload("shared-prefix", input_len=8, prefix_len=16, groups=groups), requests)
    assert all(len(prompt) == 24 for prompt in made)
    assert len({tuple(prompt[:16]) for prompt in made}) == min(groups, requests)
    assert all(a[:16] == b[:16] for a, b in zip(made, made[groups:], strict=False))
    assert len({tuple(prompt[16:]) for prompt in made}) == requests


def test_a_conversation_grows_by_the_answers_it_is_given():
    (session,) = Workload("multi-turn", turns=2, input_len=5).sessions(2)
    first = list(next(session.asks).prompt)
    second = list(session.asks.send("an answer").prompt)
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert second[:2] == [*first, {"role": "assistant", "content": "an answer"}]
    assert len(second[2]["content"].split()) == 5
    with pytest.raises(StopIteration):
        session.asks.send("the end")


@given(st.integers(1, 30), st.integers(1, 7))
def test_conversations_have_as_many_requests_in_all_as_asked_for(requests, turns):
    sessions = Workload("multi-turn", turns=turns, input_len=1).sessions(requests)
    assert sum(session.turns for session in sessions) == requests


def test_poisson_arrivals_have_exponential_gaps_of_the_mean_asked_for():
    times = list(islice(poisson(50.0, seed=3), 20_000))
    gaps = np.diff(times)
    assert all(a < b for a, b in pairwise(times))
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.03)  # an exponential's deviation is its mean
    assert np.mean(gaps > 1 / 50) == pytest.approx(np.exp(-1), rel=0.03)


def test_blocks_of_equal_ids_hold_equal_tokens_and_the_last_is_cut_to_length():
    trace = [
        TracedRequest(0.0, 1000, 5, (7, 8)),
        TracedRequest(0.5, 600, 6, (7, 9)),
        TracedRequest(1.0, 40, 7),
    ]
    played = list(Workload().traced(trace))
    first, second, plain = (next(session.asks) for _, session in played)
    assert [arrival for arrival, _ in played] == [0.0, 0.5, 1.0]
    assert [len(ask.prompt) for ask in (first, second, plain)] == [1000, 600, 40]
    assert [ask.max_tokens for ask in (first, second, plain)] == [5, 6, 7]
    assert first.prompt[:512] == second.prompt[:512]
    assert first.prompt[512:600] != second.prompt[512:600]


def test_what_the_context_cannot_hold_is_left_out_of_a_trace():
    trace = [TracedRequest(i, length, 10) for i, length in enumerate((50, 95, 90, 20, 30))]
    left_out = []
    kept = list(fitting(trace, context=100, limit=3, left_out=left_out))
    assert [request.input_len for request in kept] == [50, 90, 20]
    assert [request.input_len for request in left_out] == [95]
