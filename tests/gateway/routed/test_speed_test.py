"""Before any client has come, models' prices and speeds are those that a short test has shown."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gateway.fake_engine import FakeEngine
from gateway.routed.fleet import Fleet, eventually, here, routed

SECONDS = 0.02
"""Of a token of the quicker model: much more than what a busy machine adds to it."""


def candidates(fleet: Fleet, **fields: Any) -> dict[str, dict[str, Any]]:
    return {each["model"]: each for each in fleet.explain(**fields)["candidates"]}


def alone(fleet: Fleet) -> Any:
    """Seconds of a token of a prompt and of an answer, once the slow model is tested."""
    saved: Any = fleet.routes.members["slow"].learners["prices"].save()
    return saved["alone"]


def shown(fleet: Fleet) -> bool:
    return alone(fleet) is not None


def trials_of(engine: FakeEngine) -> list[str]:
    return [each.id for each in engine.submitted if each.id.startswith("speed-test-")]


def two(**table: Any) -> dict[str, Any]:
    """Of weights of one size, so that they are guessed to be alike; the slow one is tested last."""
    return {"quick": here(step_seconds=SECONDS, **table), "slow": here(step_seconds=4 * SECONDS, **table)}


def test_prices_and_speeds_follow_what_the_test_has_shown(tmp_path: Path) -> None:
    with routed(tmp_path, two(cost_per_hour=3.6), tests_speeds=True) as fleet:
        eventually(lambda: shown(fleet))
        known = candidates(fleet)
        assert known["slow"]["cost"] == pytest.approx(4 * known["quick"]["cost"], rel=0.3)
        assert known["quick"]["tokens_per_second"] == pytest.approx(1 / SECONDS, rel=0.3)
        assert fleet.metric("headrace_prompt_tokens_total") == 0
        assert fleet.decisions(0) == []
        for engine in fleet.engines.values():
            assert not any(each.use_prefix_cache for each in engine.submitted)


def test_models_that_cost_nothing_are_not_tested(tmp_path: Path) -> None:
    with routed(tmp_path, two(), tests_speeds=True) as fleet:
        assert fleet.chat("quick").status_code == 200
        assert not any(map(trials_of, fleet.engines.values()))


def test_it_gives_way_to_a_client_and_is_made_when_nobody_is_served(tmp_path: Path) -> None:
    with (
        routed(tmp_path, two(cost_per_hour=3.6), tests_speeds=True) as fleet,
        ThreadPoolExecutor(1) as beside,
    ):
        engine = fleet.engines["slow"]
        eventually(lambda: trials_of(engine))
        asked = beside.submit(fleet.chat, "slow", max_tokens=12)
        eventually(lambda: engine.cancelled)
        assert engine.cancelled == trials_of(engine), "the test that ran"
        assert not asked.done()
        assert not shown(fleet)
        assert asked.result().status_code == 200
        eventually(lambda: shown(fleet))


def test_a_worker_that_dies_of_it_ends_no_server(tmp_path: Path) -> None:
    with routed(tmp_path, two(cost_per_hour=3.6), tests_speeds=True) as fleet:
        fleet.engines["quick"].dies_after = 1
        eventually(lambda: shown(fleet))
        assert trials_of(fleet.engines["quick"])
        fleet.engines["quick"].dies_after = None
        assert fleet.chat("quick").status_code == 200


def test_where_all_came_at_once_an_answers_tokens_take_no_less_than_a_prompts(tmp_path: Path) -> None:
    models = {name: here(step_seconds=0.0, cost_per_hour=3.6) for name in ("quick", "slow")}
    with routed(tmp_path, models, tests_speeds=True) as fleet:
        eventually(lambda: shown(fleet))
        prompt_token, answer_token = alone(fleet)
        assert 0 < prompt_token <= answer_token * (1 + 1e-9)
