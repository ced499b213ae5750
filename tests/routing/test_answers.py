"""Confidence is learnt from a file of scored answers, and read by those who serve."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from headrace.errors import ConfigError
from headrace.routing.answers import learn_confidences, read_answers
from headrace.routing.cli import route
from headrace.routing.confidence import Confidence, Told


def line(number: int, model: str, good: bool, sure: bool) -> dict[str, Any]:
    logprobs = [-0.01, -0.02, -0.01] if sure else [-1.5, -0.9, -2.0]
    return {
        "prompt": f"Question {number}: how much is {number} and {number % 7}?",
        "model": model,
        "score": float(good),
        "tokens": ["It", " is", f" {number}"],
        "logprobs": logprobs,
    }


def written(tmp_path: Path) -> Path:
    """The small model is right where it is sure, nine times of ten; the large one four times of five."""
    draw = np.random.default_rng(0)
    lines = []
    for number in range(200):
        sure = bool(draw.random() < 0.5)
        lines.append(line(number, "small", bool(draw.random() < (0.9 if sure else 0.1)), sure))
        lines.append(line(number, "large", bool(draw.random() < 0.8), True))
    path = tmp_path / "answers.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    return path


def test_the_command_learns_how_sure_the_first_model_is(tmp_path: Path) -> None:
    output = tmp_path / "confidence.json"
    arguments = ["confidence", str(written(tmp_path)), "-o", str(output), "--models", "small,large"]
    result = CliRunner().invoke(route, arguments, catch_exceptions=False)
    assert result.exit_code == 0 and "small, from 200 answers" in result.output
    learnt = msgspec.json.decode(output.read_bytes(), type=dict[str, Confidence])
    assert list(learnt) == ["small"]
    sure = Told(["It", " is", " 5"], [-0.01, -0.02, -0.01], "stop", 0.5, 0.8)
    unsure = Told(["It", " is", " 5"], [-1.5, -0.9, -2.0], "stop", 0.5, 0.8)
    assert learnt["small"].chance(sure) == pytest.approx(0.9, abs=0.07)
    assert learnt["small"].chance(unsure) == pytest.approx(0.1, abs=0.07)
    small = learnt["small"]
    assert small.chance(sure) >= small.next_chance(sure) - 0.1
    assert small.chance(unsure) < small.next_chance(unsure) - 0.5


def test_a_model_without_answers_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no answers of 'huge'; there are some of small, large"):
        learn_confidences(read_answers(written(tmp_path)), ["small", "huge"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "line 1"),
        (json.dumps(line(1, "small", True, True) | {"score": 2}), "a score from 0 to 1"),
        (json.dumps(line(1, "small", True, True) | {"logprobs": [-1.0]}), "a logprob for each token"),
        ('{"prompt": "Hi"}', "missing required field `model`"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        read_answers(path)
