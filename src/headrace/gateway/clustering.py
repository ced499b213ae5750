"""The workers that a cluster runs for the server: what they are, and the load that says how many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from headrace.cluster import Cluster, ClusterSettings, Pool
from headrace.cluster.messages import Plan
from headrace.gateway.admission import Admission
from headrace.gateway.catalogue import Catalogue
from headrace.gateway.loading import ModelLoader
from headrace.models.local import LocalFile
from headrace.worker.loader import open_model


async def plan_workers(
    settings: ClusterSettings,
    loader: ModelLoader,
    named: Sequence[LocalFile],
    address: str,
    drain_seconds: float,
) -> Plan:
    """Pools for all named models. `address` is HOST:PORT where their workers join.

    Raises HeadraceError for a file that cannot be run, or settings that are missing.
    """
    pools = await asyncio.to_thread(_pools, settings, loader, named)
    return Plan(
        address=settings.address,
        gateway=address,
        secret=settings.secret,
        drain_seconds=drain_seconds,
        pools=pools,
    )


def _pools(settings: ClusterSettings, loader: ModelLoader, named: Sequence[LocalFile]) -> list[Pool]:
    pools: list[Pool] = []
    for file in named:
        worker = loader.settings_of(file, open_model(file.source))
        if Path(worker.model).is_file():  # there, too, but not seen from the same folder
            worker = msgspec.structs.replace(worker, model=str(Path(worker.model).absolute()))
        pools += settings.pools(file.name, worker)
    return pools


def scaled_cluster(
    plan: Plan,
    settings: ClusterSettings,
    catalogue: Catalogue,
    admission: Admission,
    tell: Callable[[str], None],
) -> Cluster:
    """Follows what is asked of each model, those requests included that wait for their turn."""

    def load(model: str) -> int:
        fleets = {r.name: r.fleet.load for r in catalogue.residents() if r.fleet is not None}
        return fleets.get(model, 0) + admission.room(model).held

    return Cluster(plan, settings, load, tell)
