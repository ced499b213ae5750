"""Settings that make no sense are refused with the setting's name."""

from __future__ import annotations

import msgspec
import pytest

from headrace.errors import ConfigError
from headrace.worker.settings import Launch, WorkerSettings


@pytest.mark.parametrize(
    "name", ["threads", "max_batch_tokens", "max_running", "cache_tokens", "cache_bytes", "draft_tokens"]
)
def test_a_number_below_one_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name.replace("_", "-")):
        WorkerSettings(model="m", **{name: 0})


@pytest.mark.parametrize("given", [{"speculate": "draft"}, {"draft_model": "d"}])
def test_a_draft_model_and_the_wish_to_draft_with_it_go_together(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="draft-model"):
        WorkerSettings(model="m", **given)


def test_a_launch_survives_its_way_through_json() -> None:
    launch = Launch(address="ipc://x", identity="w", settings=WorkerSettings(model="m", threads=3))
    assert msgspec.json.decode(msgspec.json.encode(launch), type=Launch) == launch
