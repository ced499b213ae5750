"""What is learnt of models from records of their answers."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.routing.curve import Ranking
from headrace.routing.estimator import Estimator
from headrace.routing.records import Records
from headrace.routing.train import train
from routing.questions import questions


@pytest.fixture(scope="module")
def learnt() -> Estimator:
    return train(questions(600))


def test_questions_are_told_apart_by_what_each_model_makes_of_them(learnt: Estimator) -> None:
    new = questions(1000, seed=1)
    good = learnt.estimates(new.prompts)
    assert Ranking.of(good[:, 1] - good[:, 0], *new.scores.T).recovery().apgr > 0.8


def test_the_chances_are_calibrated(learnt: Estimator) -> None:
    new = questions(2000, seed=2)
    good = learnt.estimates(new.prompts)
    for chance, score in zip(good.T, new.scores.T, strict=True):
        for low in np.arange(0, 1, 0.25):
            of = (chance >= low) & (chance < low + 0.25)
            if of.sum() > 100:
                assert chance[of].mean() == pytest.approx(score[of].mean(), abs=0.12)


def test_what_is_unlike_all_that_was_learnt_from_is_less_certain(learnt: Estimator) -> None:
    known = learnt.estimate(questions(1, seed=3).prompts[0])
    odd = learnt.estimate("```\n" + "$\\{x^2}$ 12345 // =+ <> é\n" * 40 + "def f(): NOT WRITE, PROVE:")
    assert (odd.spread > 1.5 * known.spread).all()


def test_records_learnt_from_are_each_held_out_unless_their_prompt_is_there_twice() -> None:
    records = questions(300)
    both = records.take(np.array([*range(300), 0]))
    held_out = train(both).held_out
    assert held_out is not None
    np.testing.assert_array_equal(held_out.scores, records.scores[1:])
    new = questions(2000, seed=2)
    errors = [
        ((good - scores) ** 2).mean()
        for good, scores in [
            (held_out.good, held_out.scores),
            (train(both).estimates(new.prompts), new.scores),
        ]
    ]
    assert errors[0] == pytest.approx(errors[1], rel=0.15)


def test_one_score_a_prompt_is_enough() -> None:
    records, draw = questions(1200), np.random.default_rng(0)
    scores = records.scores.copy()
    scores[np.arange(1200), draw.integers(2, size=1200)] = np.nan
    new = questions(1000, seed=1)
    good = train(Records(records.prompts, records.models, scores)).estimates(new.prompts)
    assert Ranking.of(good[:, 1] - good[:, 0], *new.scores.T).recovery().apgr > 0.75


def test_any_number_of_models_is_learnt_at_once() -> None:
    records = questions(300)
    scores = np.concatenate([records.scores, records.scores.mean(axis=1, keepdims=True)], axis=1)
    three = train(Records(records.prompts, ("a", "b", "c"), scores))
    assert three.estimate("What is the capital of Peru?").good.shape == (3,)


@pytest.mark.parametrize(
    "prompt", ["", " ", "\n", "é", "A. B. C.", "1", "\ud800", "x" * 50_000, "A. \nB. \n"]
)
def test_every_text_is_estimated(learnt: Estimator, prompt: str) -> None:
    estimate = learnt.estimate(prompt)
    assert np.isfinite([estimate.good, estimate.spread]).all()
    assert ((estimate.good > 0) & (estimate.good < 1)).all()


def test_too_few_scores_are_refused_by_the_models_name() -> None:
    with pytest.raises(ConfigError, match="10 scores of small are too few"):
        train(questions(10))
