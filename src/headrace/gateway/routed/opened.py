"""The routes of a server, from its start to its end."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from headrace.errors import ConfigError
from headrace.gateway.routed.memory import Memory
from headrace.gateway.routed.routes import Routes, confidences_of, key_of
from headrace.gateway.shadow.graders import grader_of
from headrace.gateway.state import Gateway
from headrace.routing import artefact
from headrace.routing.database import FILE
from headrace.routing.policies import policy_of
from headrace.routing.router import Router
from headrace.routing.store import Store
from headrace.routing.tables import FleetTables

log = logging.getLogger("headrace.gateway")


def check_tables(tables: FleetTables) -> None:
    """Raises ConfigError for what tables name and is not there: said before models load."""
    for name, model in tables.models.items():
        key_of(name, model.key_env, os.environ)
    for name, policy in tables.policies.items():
        with _told_of(f"[policies.{name}] kind"):
            policy_of(policy)
    with _told_of("[routing] grader"):
        grader_of(tables.routing.grader)
    if tables.routing.router is not None:
        with _told_of("[routing] router"):
            _tell_of_unknown(tables, artefact.load(Path(tables.routing.router)))
    with _told_of("[routing] confidence"):
        confidences_of(tables.routing.confidence)


def _tell_of_unknown(tables: FleetTables, router: Router) -> None:
    unknown = [
        name for name, model in tables.models.items() if (model.estimate_as or name) not in router.models
    ]
    if unknown:
        told = "[routing] router: it was not learnt for %s, but for %s; estimate-as names who is alike"
        log.warning(told, ", ".join(unknown), ", ".join(router.models))


@contextmanager
def _told_of(where: str) -> Iterator[None]:
    """Names the table and the key in a ConfigError."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


@asynccontextmanager
async def opened_routes(
    tables: FleetTables, gateway: Gateway, data_dir: Path, workers: Mapping[str, int], machine: str = ""
) -> AsyncIterator[Routes | None]:
    """Sets the gateway's router for as long as the block runs; None where the tables name no model.

    `workers`: of each local model, how many there are; `machine`: what they run on. What models have shown
    there is remembered. Raises ConfigError.
    """
    if not tables.models:
        yield None
        return
    for name in tables.budgets.keys:
        if gateway.callers.named(name) is None:
            log.warning("[budgets] keys: no API key is named '%s'", name)
    database = tables.routing.database
    path = data_dir / FILE if database is None else Path(database)
    with Store(path, keep_prompts=tables.routing.keep_prompts) as store:
        routes = Routes(tables, gateway, store, environment=os.environ, workers=workers)
        gateway.router, gateway.catalogue.elsewhere = routes, routes.names()
        memory = Memory(routes.members, store, machine=machine, workers=workers)
        memory.take_up()
        try:
            async with memory.keeping():
                yield routes
        finally:
            gateway.router = None
            await routes.close()
