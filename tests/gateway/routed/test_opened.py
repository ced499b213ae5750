"""What tables name and is not there is said before any model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.gateway.routed.opened import check_tables
from headrace.routing import artefact
from headrace.routing.tables import read_tables

REMOTE = {"url": "http://127.0.0.1:1/v1", "input-price": 1, "output-price": 1}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"models": {"far": REMOTE | {"key-env": "NOT_SET"}}}, r"models.far.*no NOT_SET"),
        (
            {"policies": {"mine": {"kind": "no_module:Policy"}}},
            r"\[policies.mine\] kind: 'no_module:Policy' cannot be imported",
        ),
        ({"policies": {"mine": {"kind": "json:JSONDecoder"}}}, "must be a class that derives from"),
        (
            {"routing": {"grader": "no_module:Grader"}},
            r"\[routing\] grader: 'no_module:Grader' cannot be imported",
        ),
        ({"routing": {"router": "absent.npz"}}, r"\[routing\] router: absent.npz cannot be read"),
        (
            {"routing": {"confidence": "absent.json"}},
            r"\[routing\] confidence: absent.json: holds no confidences",
        ),
    ],
)
def test_what_is_not_there_is_named(
    content: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    tables = read_tables({"models": {"near": {}, "far": REMOTE}} | content, Path("headrace.toml"))
    with pytest.raises(ConfigError, match=told):
        check_tables(tables)


def test_models_that_the_router_was_not_learnt_for_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "router.npz"
    artefact.save(artefact.first_day(["small", "large"]), file)
    models = {"near": {"estimate-as": "small"}, "far": REMOTE, "large": REMOTE}
    content = {"models": models, "routing": {"router": str(file)}}
    check_tables(read_tables(content, Path("headrace.toml")))
    (told,) = caplog.messages
    assert "it was not learnt for far, but for small, large" in told
