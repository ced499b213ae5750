"""What a cluster is asked for, and what is said of settings that make no sense."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from headrace.cluster import ClusterSettings
from headrace.cluster.settings import parse_resources
from headrace.errors import ConfigError
from headrace.worker.secret import new_secret, read_keys
from headrace.worker.settings import WorkerSettings

WORKER = WorkerSettings(model="some", threads=2)


@pytest.fixture(autouse=True)
def ray_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


def settings(
    file: Path | None = None, replicas: str | None = None, roles: tuple[int, int] = (0, 0), **changed: Any
) -> ClusterSettings:
    defaults: dict[str, Any] = {
        "cluster": "ray",
        "ray_address": "auto",
        "ray_resources": None,
        "min_workers": 1,
        "max_workers": None,
        "worker_load": 16.0,
        "scale_down_seconds": 60.0,
    }
    made = ClusterSettings.of(file, replicas, roles, **defaults | changed)
    assert made is not None
    return made


def test_without_ray_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[ray\]'"):
        settings()


def test_a_pool_of_workers_that_do_everything_scales_between_its_limits() -> None:
    (pool,) = settings(min_workers=2, max_workers=5).pools("some", WORKER)
    assert (pool.role, pool.least, pool.most, pool.cpus) == ("both", 2, 5, 2)


def test_roles_have_pools_of_their_own_size() -> None:
    pools = settings(roles=(1, 3)).pools("some", WORKER)
    assert [(pool.role, pool.least, pool.most) for pool in pools] == [("prefill", 1, 1), ("decode", 3, 3)]


def test_resources_are_asked_of_all_workers_or_of_one_tier() -> None:
    made = settings(roles=(1, 1), ray_resources="fast=0.5, decode:memory_rich=1,decode:fast=2,other:odd=1")
    prefill, decode = made.pools("some", WORKER)
    assert prefill.resources == {"fast": 0.5}
    assert decode.resources == {"fast": 2.0, "memory_rich": 1.0}


@pytest.mark.parametrize("text", ["fast", "fast=", "=1", "fast=none", "fast=-1", "fast=nan", "CPU=2"])
def test_a_resource_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--ray-resources"):
        parse_resources(text)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"replicas": "2"}, "--replicas"),
        ({"min_workers": 3, "max_workers": 2}, "--max-workers"),
        ({"roles": (1, 0)}, "--prefill and --decode"),
        ({"roles": (1, 1), "max_workers": 4}, "--max-workers"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        settings(**changed)


def test_the_cpus_of_a_worker_must_be_told() -> None:
    with pytest.raises(ConfigError, match="--threads"):
        settings().pools("some", WorkerSettings(model="some"))


def test_the_secret_is_the_users_or_a_new_one_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(new_secret() + "\n")
    users, new = settings(file), settings()
    assert read_keys(users.secret_file()) == read_keys(file) != read_keys(new.secret_file())
    assert users.secret not in repr(users)
