"""The reference sampler: known answers, the order of its steps, and the distribution it draws from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headrace.backends.reference_sampler import largest, log_softmax, penalize, philox4x32, sample, uniform
from headrace.backends.sampling import SamplingParams

NO_HISTORY = np.zeros(0, np.int32)
ONES = 0xFFFFFFFF


def record(position: int = 0, **params: float) -> np.void:
    out = SamplingParams(**params).record()
    out["position"] = position
    return out[0]


def logits_of(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities)).astype(np.float32)


def mask_of(vocab: int, *allowed: int) -> np.ndarray:
    words = np.zeros((vocab + 31) // 32, np.uint32)
    for token in allowed:
        words[token // 32] |= np.uint32(1 << token % 32)
    return words


def drawn(logits: np.ndarray, count: int = 300, **params: float) -> set[int]:
    return {sample(logits, record(position, **params), NO_HISTORY) for position in range(count)}


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_known_answers(counter, key, expected):
    assert philox4x32(counter, key) == expected


def test_noise_is_the_first_53_bits_of_the_block():
    assert uniform(record()) == (0x6627E8D5E169C58D >> 11) / 2**53


def test_noise_depends_on_every_part_of_its_key():
    keys = [{}, {"position": 1}, {"choice_index": 1}, {"prompt_index": 1}, {"seed": 1}, {"seed": 1 << 32}]
    assert len({uniform(record(**key)) for key in keys}) == len(keys)


@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**32 - 1))
def test_noise_lies_in_the_unit_interval(seed, position):
    assert 0 <= uniform(record(position, seed=seed)) < 1


def test_a_draw_takes_the_first_candidate_whose_cumulative_weight_exceeds_the_noise():
    # The noise of the zero key is 0.399….
    assert sample(logits_of(0.41, 0.30, 0.29), record(), NO_HISTORY) == 0
    assert sample(logits_of(0.38, 0.32, 0.30), record(), NO_HISTORY) == 1
    assert sample(logits_of(0.30, 0.32, 0.38), record(), NO_HISTORY) == 1


def test_greedy_takes_the_lowest_id_among_equals():
    logits = np.array([1, 3, 2, 3, -np.inf], np.float32)
    assert sample(logits, record(temperature=0), NO_HISTORY) == 1


def test_equal_logits_are_candidates_by_ascending_id():
    logits = np.zeros(100, np.float32)
    assert drawn(logits, top_k=3) == {0, 1, 2}
    assert largest(logits, 3).tolist() == [0, 1, 2]


def test_top_k_of_one_is_greedy_at_any_temperature():
    assert drawn(logits_of(0.2, 0.5, 0.3), top_k=1, temperature=100.0) == {1}


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    logits = logits_of(0.1, 0.5, 0.25, 0.15)
    assert drawn(logits, top_p=0.0) == {1}
    assert drawn(logits, top_p=0.49) == {1}
    assert drawn(logits, top_p=0.51) == {1, 2}
    assert drawn(logits, top_p=0.76) == {1, 2, 3}
    assert drawn(logits, top_p=1.0) == {0, 1, 2, 3}


def test_min_p_drops_what_is_too_unlikely_beside_the_most_likely():
    logits = logits_of(0.1, 0.5, 0.25, 0.15)
    assert drawn(logits, min_p=0.49) == {1, 2}
    assert drawn(logits, min_p=1.0) == {1}


def test_top_p_measures_what_top_k_and_min_p_left():
    logits = logits_of(0.1, 0.4, 0.3, 0.2)
    assert drawn(logits, top_p=0.55) == {1, 2}
    assert drawn(logits, top_p=0.55, top_k=2) == {1}
    assert drawn(logits, top_p=0.55, min_p=0.7) == {1}


def test_low_temperatures_sharpen():
    logits = logits_of(0.4, 0.6)
    cold = [sample(logits, record(i, temperature=0.1), NO_HISTORY) for i in range(200)]
    assert cold.count(1) > 190
    assert drawn(logits, temperature=1e-30) == {1}


def test_penalties_apply_in_order_each_rounded_to_float32():
    logits = np.array([2.0, -2.0, 1.5, 0.1, 5.0], np.float32)
    history = np.array([0, 1, -1 - 2, -1 - 3, -1 - 3, -1 - 3, 0], np.int32)
    params = {"repetition_penalty": 1.3, "presence_penalty": 0.1, "frequency_penalty": 0.2}
    f = np.float32
    expected = [
        f(2.0) / f(1.3),
        f(-2.0) * f(1.3),
        f(1.5) / f(1.3) - f(0.1) - f(0.2) * f(1),
        f(0.1) / f(1.3) - f(0.1) - f(0.2) * f(3),
        f(5.0),
    ]
    assert penalize(logits, record(**params), history).tolist() == expected
    assert logits.tolist() == [f(x) for x in (2.0, -2.0, 1.5, 0.1, 5.0)], "the argument stays unchanged"


def test_a_token_counts_once_for_repetition_in_prompt_and_output():
    logits = np.array([4.0, 1.0], np.float32)
    history = np.array([0, 0, -1, -1], np.int32)
    assert penalize(logits, record(repetition_penalty=2.0), history).tolist() == [2.0, 1.0]


def test_a_masked_token_is_never_chosen():
    logits = np.zeros(70, np.float32)
    logits[5] = 10
    mask = mask_of(70, 33, 69)
    assert sample(logits, record(temperature=0), NO_HISTORY, mask) == 33
    assert {sample(logits, record(i, top_k=40), NO_HISTORY, mask) for i in range(100)} == {33, 69}


@pytest.mark.parametrize("key", ["position", "seed", "choice_index", "prompt_index"])
def test_draws_follow_the_distribution_along_every_part_of_the_key(key):
    probabilities = np.array([0.02, 0.3, 0.08, 0.25, 0.05, 0.15, 0.1, 0.05])
    temperature, draws = 0.8, 4000
    logits = np.log(probabilities).astype(np.float32)
    tokens = [
        sample(logits, record(**{key: i, "temperature": temperature}), NO_HISTORY) for i in range(draws)
    ]
    expected = probabilities ** (1 / temperature)
    expected *= draws / expected.sum()
    chi_square = (((np.bincount(tokens, minlength=8) - expected) ** 2) / expected).sum()
    assert chi_square < 24.3  # the 99.9th percentile for 7 degrees of freedom; the draws are fixed


@given(arrays.arrays(np.float32, st.integers(1, 50), elements=st.floats(-100, 100, width=32)))
def test_log_probabilities_sum_to_one_and_keep_the_order(logits):
    logprobs = log_softmax(logits)
    assert np.exp(logprobs.astype(np.float64)).sum() == pytest.approx(1, abs=1e-5)
    assert logprobs[logits.argmax()] == logprobs.max()


def test_log_probabilities_of_extreme_logits_are_finite():
    logprobs = log_softmax(np.array([3e38, 3e38, 0], np.float32))
    assert logprobs[:2] == pytest.approx(np.log(0.5))
