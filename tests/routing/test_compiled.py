"""The native code that estimates reads from a prompt what training reads in Python, and computes the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace._native import CUES as NATIVE_CUES
from headrace._native import PromptEstimator
from headrace.routing import artefact
from headrace.routing.cues import CUES, cues, scan
from headrace.routing.estimator import Estimator, nearness, standardised
from headrace.routing.grams import letter_bag, weighted, word_bag

PIECES = [
    *("Which", "what", "the", "Of", "NOT", "EXCEPT", "statement 1", "all of the above", "if"),
    *("A. ", "\n(B) ", "\nC.\t", "\nJ) 12", "\nK. no", "\n", "  ", "_", ":", "?", ". ", ".."),
    *(",", "(", '"', "```", "42", "3.14", "\\frac{1}{2}", "é", "日本語", "\ud800", "\x00", "i", "x" * 40),
]
PROMPTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=60).map(
    lambda parts: " ".join(parts)
) | st.text(max_size=200)
OPTIONS = "Which is NOT a river?\nA. Rhine\nB. Main river\nC. 1234\n(D) Alps\nE. The river Rhine:\nF) x\nG. y"


@pytest.fixture(scope="module")
def estimator() -> Estimator:
    return artefact.first_day(["small", "middle", "large"]).estimator


def as_trained(estimator: Estimator, prompt: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The chances and their spread, by what training uses."""
    text = scan(prompt)
    near = nearness(standardised(cues(text), estimator.centre, estimator.scale), estimator.support)
    values = estimator.means + near @ estimator.duals
    bags = word_bag(text), letter_bag(text)
    for bag, rare, weights in zip(bags, estimator.rarities, estimator.weights, strict=True):
        values = values + weighted(bag, rare) @ weights[bag.buckets]
    left = near[estimator.novelty.anchors]
    unknown = max(0.0, 1.0 - float(left @ estimator.novelty.inverse @ left))
    good = 1 / (1 + np.exp(-(estimator.links[:, 0] + estimator.links[:, 1] * values)))
    return good, np.sqrt(estimator.novelty.prior * unknown)


@settings(max_examples=300, deadline=None)
@given(prompt=PROMPTS)
@example(prompt="")
@example(prompt=OPTIONS)
@example(prompt=OPTIONS * 40)
@example(prompt="A. 1\nB. 2")
def test_an_estimate_is_what_training_makes_of_the_prompt(estimator: Estimator, prompt: str) -> None:
    good, spread = as_trained(estimator, prompt)
    told = estimator.estimate(prompt)
    np.testing.assert_allclose(told.good, good, atol=1e-5)
    np.testing.assert_allclose(told.spread, spread, atol=2e-3)


@settings(max_examples=300, deadline=None)
@given(prompt=PROMPTS)
@example(prompt=OPTIONS)
def test_every_cue_is_the_same(prompt: str) -> None:
    """By estimators that see one cue each: of the nearness to the prompt's own cues, and to others."""
    numbers = cues(scan(prompt))
    blank = np.zeros((2, 1 << 14), np.float32)
    seen = PromptEstimator(
        np.zeros(CUES, np.float32),
        np.full(CUES, 10, np.float32),
        np.diag(np.full(CUES, 1, np.float32)),
        np.eye(CUES, dtype=np.float32),
        blank,
        np.zeros((*blank.shape, CUES), np.float32),
        np.zeros(CUES, np.float32),
        np.tile(np.array([0, 1], np.float32), (CUES, 1)),
        np.zeros(0, np.int32),
        np.zeros((0, 0), np.float32),
        np.ones(CUES, np.float32),
        1.0,
        4.0,
    )
    good, _ = seen.estimate(prompt.encode("utf-8", "replace"))
    own = standardised(numbers, np.zeros(CUES, np.float32), np.full(CUES, 10, np.float32))
    near = np.exp(-((own[None] - np.eye(CUES)) ** 2).sum(axis=1) / CUES)
    np.testing.assert_allclose(np.log(good / (1 - good)), near, atol=2e-6)


def test_arrays_that_do_not_fit_are_refused(estimator: Estimator) -> None:
    one = np.zeros(1, np.float32)
    square = np.zeros((1, 1), np.float32)
    with pytest.raises(ValueError, match="do not fit"):
        PromptEstimator(
            one,
            one,
            square,
            square,
            square,
            np.zeros((2, 1, 1), np.float32),
            one,
            square,
            np.zeros(1, np.int32),
            square,
            one,
            1.0,
            4.0,
        )


def test_both_know_as_many_cues() -> None:
    assert NATIVE_CUES == CUES
