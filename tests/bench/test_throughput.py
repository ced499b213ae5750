"""The throughput bench: its workload, and what it prints."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from headrace.bench import throughput
from headrace.bench.cli import bench
from headrace.bench.throughput import prompts


def test_no_two_prompts_share_their_first_word():
    assert len({prompt.split()[0] for prompt in prompts(32)}) == 32


def test_standard_output_is_one_json_object_and_progress_goes_to_standard_error(synthetic_model):
    result = CliRunner().invoke(
        bench, ["throughput", str(synthetic_model), "--threads", "1", "--batches", "1,3", "--json"]
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert set(report) == {"prefill_tok_s", "decode_tok_s", "isa", "threads"}
    assert set(report["prefill_tok_s"]) == set(report["decode_tok_s"]) == {"1", "3"}
    assert min(*report["prefill_tok_s"].values(), *report["decode_tok_s"].values()) > 0
    assert report["threads"] == 1
    assert "batch   3" in result.stderr


def test_a_depth_fills_the_cache_before_anything_is_decoded(synthetic_model, monkeypatch):
    asked = []
    measured = throughput._seconds

    def seconds(engine, batch, new_tokens, **options):
        before = engine.stats.computed_tokens
        result = measured(engine, batch, new_tokens, **options)
        asked.append((sum(map(len, batch)), new_tokens, engine.stats.computed_tokens - before))
        return result

    monkeypatch.setattr(throughput, "_seconds", seconds)
    throughput.run(str(synthetic_model), threads=1, batches=[1, 2], depth=200)
    _warm_up, fill, first, whole, *_ = asked
    assert fill == (200, 1, 200)
    assert first == (200, 1, 1)
    assert whole == (200, 65, 65)


def test_one_token_that_took_longer_than_all_is_measured_again(synthetic_model, monkeypatch):
    warm_up, disturbed, short, first, whole = 1.0, 5.0, 3.0, 1.0, 3.0
    seconds = iter([warm_up, disturbed, short, first, whole])
    monkeypatch.setattr(throughput, "_seconds", lambda *_, **__: next(seconds))
    found = throughput.run(str(synthetic_model), threads=1, batches=[1])
    assert found["decode_tok_s"] == {"1": 64 / (whole - first)}


@pytest.mark.parametrize("batches", ["0", "1,x", "", "-4"])
def test_batch_sizes_that_make_no_sense_are_refused(synthetic_model, batches):
    result = CliRunner().invoke(bench, ["throughput", str(synthetic_model), f"--batches={batches}"])
    assert result.exit_code == 2
    assert "--batches" in result.stderr
