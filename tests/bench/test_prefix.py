"""What the prefix cache saves, counted in tokens and measured in time."""

from __future__ import annotations

from headrace.bench.prefix import PREFIX_TOKENS, QUESTIONS, run


def test_a_shared_prefix_is_computed_once(synthetic_model):
    measured = run(str(synthetic_model), threads=1)
    own_tokens = measured["four_prompt_tokens"] - len(QUESTIONS) * PREFIX_TOKENS
    assert measured["first_computed_tokens"] > PREFIX_TOKENS
    assert 1 <= measured["second_computed_tokens"] <= own_tokens
    assert measured["four_computed_tokens"] <= PREFIX_TOKENS + own_tokens


def test_a_cached_prefix_brings_the_first_token_five_times_sooner(model_path):
    """In one of five measurements: what else the machine does is felt more in a short time."""
    model = str(model_path("smollm2-135m"))
    assert any(run(model)["speedup"] >= 5 for _ in range(5))
