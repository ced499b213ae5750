"""A model file may recommend how its tokens are chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ModelFileError
from headrace.models.gguf import GgufFile
from headrace.models.sampling_defaults import SamplingDefaults
from synthetic import write_synthetic


def test_a_file_that_recommends_nothing_gets_openais_defaults(synthetic_model: Path) -> None:
    with GgufFile(synthetic_model) as file:
        assert SamplingDefaults.from_metadata(file.metadata) == SamplingDefaults(1.0, 1.0, 0, 1.0)


def test_what_a_file_recommends_is_read_as_its_maker_wrote_it(tmp_path: Path) -> None:
    sampling = {"temp": 0.7, "top_p": 0.8, "top_k": 20, "penalty_repeat": 1.05}
    with GgufFile(write_synthetic(tmp_path / "model.gguf", sampling=sampling)) as file:
        assert SamplingDefaults.from_metadata(file.metadata) == SamplingDefaults(0.7, 0.8, 20, 1.05)


def test_a_negative_top_k_keeps_all_tokens_as_in_requests() -> None:
    assert SamplingDefaults.from_metadata({"general.sampling.top_k": -1}) == SamplingDefaults()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temp", -0.1),
        ("temp", float("inf")),
        ("temp", float("nan")),
        ("temp", "hot"),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", True),
        ("penalty_repeat", 0.0),
    ],
)
def test_a_recommendation_that_makes_no_sense_is_refused_by_its_key(name: str, value: object) -> None:
    with pytest.raises(ModelFileError, match=rf"general\.sampling\.{name}: "):
        SamplingDefaults.from_metadata({f"general.sampling.{name}": value})
