"""What the gateway and the process that speaks with Ray tell each other, a line of JSON for each message."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.worker.settings import WorkerSettings


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Workers that are alike: one model, one role, the same demands on a node."""

    model: str
    """Its name in requests."""
    settings: WorkerSettings
    role: Literal["both", "prefill", "decode"] = "both"
    least: int = 1
    most: int = 1
    cpus: int = 1
    resources: dict[str, float] = {}
    """Custom resources of Ray that each worker takes."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker is told at its start. Holds the secret: never to be logged."""

    gateway: str
    """HOST:PORT."""
    secret: str
    role: Literal["both", "prefill", "decode"]
    drain_seconds: float
    settings: WorkerSettings


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The first line, to the driver. Holds the secret: never to be logged."""

    address: str
    """Of the Ray cluster: "auto", "local", or HOST:PORT."""
    gateway: str
    """HOST:PORT where workers join. A host that stands for all addresses is replaced by this node's."""
    secret: str
    drain_seconds: float
    pools: list[Pool]


class Wanted(msgspec.Struct, frozen=True):
    """All further lines to the driver: how many workers each pool should have."""

    counts: list[int]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Every line from the driver: the first when Ray has answered, others when something has changed."""

    placed: list[int] = []
    """Workers of each pool that run on a node."""
    pending: list[int] = []
    """Those that wait until a node has room for them."""
    ended: str = ""
    """Why a worker ended by itself, so that another is started instead."""
    failed: str = ""
    """Why there is no cluster. It is the last line."""
