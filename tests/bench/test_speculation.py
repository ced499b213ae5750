"""The bench of speculation says whether tokens are equal, and refuses files that hold no prompts."""

from __future__ import annotations

import gzip
import json

import pytest
from click.testing import CliRunner

from headrace.bench.cli import bench
from headrace.bench.speculation import read_prompts
from headrace.errors import ConfigError

TEXTS = ["the the the the", "and then the and then the"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(json.dumps({"prompt": text}) for text in TEXTS).encode()))
    return path


@pytest.mark.parametrize("own", [[], ["--draft-model"]])
def test_tokens_are_equal_and_drafts_are_counted(synthetic_model, prompts, own):
    model = str(synthetic_model)
    asked = [model, "--prompts", str(prompts), "--tokens", "40", "--threads", "1", "--json"]
    result = CliRunner().invoke(bench, ["speculation", *asked, *own, *([model] if own else [])])
    assert result.exit_code == 0, result.output
    measured = json.loads(result.stdout.splitlines()[-1])
    assert measured["equal"] is True
    assert measured["prompts"] == 2
    assert 0 <= measured["accepted"] <= measured["drafted"]
    if own:  # the model itself is always right, the text mostly not
        assert measured["accepted"] > 0 and measured["tokens_per_step"] > 1


@pytest.mark.parametrize("content", [b"", b"no json", b'{"text": "a"}', b'{"prompt": 3}', b"[]"])
def test_a_file_without_prompts_is_refused(tmp_path, content):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="prompts: "):
        read_prompts(path)
    packed = tmp_path / "prompts.jsonl.gz"
    packed.write_bytes(content)
    with pytest.raises(ConfigError, match="prompts: "):
        read_prompts(packed)
