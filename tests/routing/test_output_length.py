"""How many tokens answers will have, foreseen from those before."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.output_length import OutputLength, cues_of

ASKED = cues_of("What is the capital of Chad?")
TOLD = cues_of("Explain in detail, step by step, how a steam engine works.")


def learnt(count: int = 300, most: int = 10**6) -> OutputLength:
    """From a model that answers questions in about 20 tokens and explains in about 400."""
    length, draw = OutputLength(), np.random.default_rng(0)
    for _ in range(count):
        cues, middle = (ASKED, 20) if draw.random() < 0.5 else (TOLD, 400)
        tokens = round(float(middle * draw.lognormal(0, 0.4)))
        length.observed(cues, min(tokens, most), cut=tokens > most)
    return length


def test_lengths_are_learnt_by_what_is_asked_for() -> None:
    length = learnt()
    mean = float(np.exp(0.4**2 / 2))
    assert length.expected(ASKED, 10**6) == pytest.approx(20 * mean, rel=0.2)
    assert length.expected(TOLD, 10**6) == pytest.approx(400 * mean, rel=0.2)
    assert learnt(20).expected(TOLD, 10**6) > 5 * learnt(20).expected(ASKED, 10**6)


def test_before_any_answer_something_is_expected_within_the_limit() -> None:
    assert 100 < OutputLength().expected(ASKED, 10**6) < 400
    assert OutputLength().expected(ASKED, 10) == pytest.approx(10, rel=0.1)
    assert OutputLength().expected(ASKED, 0) == 1


def test_answers_that_were_cut_off_do_not_make_others_seem_short() -> None:
    length = learnt(most=250)
    assert length.expected(TOLD, 10**6) > 320
    assert length.expected(TOLD, 250) == pytest.approx(245, abs=12)


def test_one_endless_answer_does_not_spoil_it() -> None:
    length = learnt()
    before = length.expected(ASKED, 10**6)
    length.observed(ASKED, 100_000, cut=True)
    assert length.expected(ASKED, 10**6) < 1.2 * before


def test_a_model_that_changes_is_followed() -> None:
    length = learnt()
    for _ in range(600):
        length.observed(ASKED, 100, cut=False)
    assert length.expected(ASKED, 10**6) == pytest.approx(100, rel=0.1)


@given(st.lists(st.tuples(st.text(max_size=700), st.integers(0, 10**9), st.booleans()), max_size=20))
def test_whatever_was_seen_what_is_expected_is_within_the_limit(seen: list[tuple[str, int, bool]]) -> None:
    length = OutputLength()
    for prompt, tokens, cut in seen:
        length.observed(cues_of(prompt), tokens, cut)
        for most in (1, 100, 10**9):
            assert 1 <= length.expected(cues_of(prompt), most) <= most


def test_what_was_learnt_is_taken_up_elsewhere() -> None:
    length, later = learnt(), OutputLength()
    saved = length.save()
    assert later.load(json.loads(json.dumps(saved)), 0.0)
    assert later.save() == saved
    for cues in (ASKED, TOLD):
        assert later.expected(cues, 10**6) == pytest.approx(length.expected(cues, 10**6))
        later.observed(cues, 30, cut=False)
        length.observed(cues, 30, cut=False)
        assert later.expected(cues, 10**6) == pytest.approx(length.expected(cues, 10**6))


@pytest.mark.parametrize(
    "damage",
    [{"matrix": [[1.0]]}, {"right": [0.0]}, {"count": 0}, {"errors": "many"}, {"matrix": [[-9.0] * 7] * 7}],
)
def test_what_is_damaged_is_not_taken_up(damage: dict[str, Any]) -> None:
    length = OutputLength()
    assert not length.load(learnt(20).save() | damage, 0.0)
    assert not length.load(None, 0.0)
    assert length.save() == OutputLength().save()
