"""Decisions of a router, the promises it makes, and the file that keeps it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.routing import artefact
from headrace.routing.router import Router
from headrace.routing.train import train
from routing.questions import MODELS, questions

EASY, HARD = "What is the capital of Chad?", "Compute the integral of x over the unit sphere, then simplify."


@pytest.fixture(scope="module")
def router() -> Router:
    return Router(train(questions(600)))


def test_easy_prompts_are_left_to_the_cheap_model(router: Router) -> None:
    assert router.decide(EASY, 0.8).will_do == MODELS
    assert router.decide(HARD, 0.8).will_do == ("large",)


def test_a_calibrated_router_keeps_the_quality_asked_for(router: Router) -> None:
    calibrated = router.calibrated(questions(2000, seed=5), [0.9, 0.99])
    new = questions(3000, seed=6)
    for quality in (0.9, 0.95, 0.99):
        decisions = [calibrated.decide(prompt, quality) for prompt in new.prompts]
        got = [row[MODELS.index(each.will_do[0])] for row, each in zip(new.scores, decisions, strict=True)]
        assert np.mean(got) >= quality * new.scores[:, 1].mean()
        assert decisions[0].promise is not None
        assert decisions[0].promise.quality == (0.9 if quality == 0.9 else 0.99)
        assert any(each.will_do == MODELS for each in decisions)


def test_beyond_its_promises_a_router_goes_by_its_estimates(router: Router) -> None:
    decision = router.decide(EASY, 0.999)
    assert decision.promise is None
    assert decision.will_do[-1] == "large"


def test_a_slack_that_is_watched_replaces_the_promises(router: Router) -> None:
    calibrated = router.calibrated(questions(500, seed=5), [0.9])
    assert calibrated.decide(HARD, 0.9, slack=1.0).will_do == MODELS
    assert calibrated.decide(EASY, 0.9, slack=-1.0).will_do == ("large",)
    assert router.decide(EASY, 0.9, slack=-1.0).will_do == ("large",)


def test_records_that_were_learnt_from_set_no_promise(router: Router) -> None:
    with pytest.raises(ConfigError, match="0 records can be calibrated with; at least 50"):
        router.calibrated(questions(600), [0.9])


def test_a_file_brings_back_the_router(router: Router, tmp_path: Path) -> None:
    calibrated = router.calibrated(questions(500, seed=5), [0.9])
    artefact.save(calibrated, tmp_path / "router.npz")
    read = artefact.load(tmp_path / "router.npz")
    assert read.promises == calibrated.promises
    assert read.models == MODELS
    held_out, kept = calibrated.estimator.held_out, read.estimator.held_out
    assert held_out is not None
    assert kept is not None
    np.testing.assert_array_equal(held_out.good, kept.good)
    np.testing.assert_array_equal(held_out.scores, kept.scores)
    for prompt in (EASY, HARD, ""):
        one, other = calibrated.estimator.estimate(prompt), read.estimator.estimate(prompt)
        np.testing.assert_allclose(one.good, other.good, atol=1e-3)
        np.testing.assert_allclose(one.spread, other.spread, atol=1e-3)


@pytest.mark.parametrize("content", [b"", b"no router", b"PK\x03\x04 cut off"])
def test_what_is_no_router_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "router.npz"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"router\.npz is no router of"):
        artefact.load(path)


def test_a_router_that_is_not_there_is_told_as_that(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.npz cannot be read: No such file"):
        artefact.load(tmp_path / "absent.npz")


def test_a_router_with_missing_or_misshapen_arrays_is_refused(router: Router, tmp_path: Path) -> None:
    path = tmp_path / "router.npz"
    artefact.save(router, path)
    with np.load(path) as arrays:
        whole = {name: arrays[name] for name in arrays.files}
    for broken in ({"duals": whole["duals"][:5]}, {"novelty_anchors": whole["novelty_anchors"] + 10**6}):
        np.savez(path, **(whole | broken))
        with pytest.raises(ConfigError, match="is no router of"):
            artefact.load(path)
    del whole["means"]
    np.savez(path, **whole)
    with pytest.raises(ConfigError, match="is no router of"):
        artefact.load(path)


def test_on_the_first_day_models_nothing_is_known_of_are_told_apart_by_their_order() -> None:
    router = artefact.first_day(["tiny", "middling", "huge"])
    assert router.best == "huge"
    estimate = router.decide("Prove that every finite integral domain is a field.", 0.95).estimate
    assert (np.diff(estimate.good) > 0).all()
    assert router.decide("Hello!", 0.95).promise is None
