"""`headrace serve`: a model's workers and the gateway before them, from the first message to the last."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import shlex
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from headrace.cluster import ClusterSettings
from headrace.errors import ConfigError, RequestError
from headrace.fleet import Shapes
from headrace.fleet.planner import Limits
from headrace.gateway.admission import Admission
from headrace.gateway.awaiting import awaiting_workers
from headrace.gateway.batches.endpoints import batch_endpoints
from headrace.gateway.batches.service import Batches
from headrace.gateway.bodies import Bodies
from headrace.gateway.catalogue import KEEP_ALIVE_SECONDS, Budget, Catalogue
from headrace.gateway.clustering import plan_workers, scaled_cluster
from headrace.gateway.loading import ModelLoader
from headrace.gateway.operating import OperatorSettings
from headrace.gateway.prompter import ModelPrompter
from headrace.gateway.recruiting import WorkersPort, open_port
from headrace.gateway.routed.opened import check_tables, opened_routes
from headrace.gateway.routed.speed_test import speeds_tested
from headrace.gateway.server import Door, listen, serve
from headrace.gateway.state import Gateway
from headrace.gateway.waiting_room import Capacity
from headrace.models.local import LocalFile, local_file
from headrace.models.registry import home, resolve_to_run
from headrace.routing.tables import FleetTables
from headrace.worker.host import free_memory, processor, usable_cpus
from headrace.worker.messages import Ready
from headrace.worker.settings import WorkerSettings

_WORKER_EXIT_SECONDS = 1.0
"""For an idle worker to end by itself; one that still computes by then is ended."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Where to listen and how much to take on."""

    host: str
    port: int
    max_queue: int
    """Sequences that may wait for their first token."""
    max_body_mib: int
    drain_seconds: float
    log_requests: bool
    worker: WorkerSettings
    """How models are run; its own is loaded at the start."""
    models: Sequence[str]
    """Names or paths of all that are served, the worker's first; the fleet's own are served, too."""
    fleet: FleetTables = field(default_factory=FleetTables)
    """Models, policies and budgets of the file of settings."""
    shapes: Shapes = field(default_factory=Shapes)
    """Replicas of each model."""
    workers: WorkersPort | None = None
    """Where workers of other hosts join."""
    cluster: ClusterSettings | None = None
    """Where more workers are started; they join, too."""
    limits: Limits = field(default_factory=Limits)
    """By which workers change their roles."""
    load_on_demand: bool = False
    """Any model in the models folder may be asked for."""
    memory_bytes: int | None = None
    """For the weights and caches of all models together."""
    keep_alive: float = KEEP_ALIVE_SECONDS
    """Seconds that a model loaded on demand stays after its last use."""
    operators: OperatorSettings = field(default_factory=OperatorSettings)
    """Keys, connections, logs."""
    data_dir: Path | None = None
    """Where files and batches are kept; None: with the models."""
    expose_prefixes: bool | None = None
    """Whether clients may see text of cached prompts and pin some; None: those on this machine may."""


def serve_model(settings: ServeSettings, tell: Callable[[str], None]) -> None:
    """Fetches the models, loads the first and serves; returns once a signal came and what ran has ended.

    `tell` is given the lines for the user. Raises HeadraceError where the server cannot start.
    """
    callers, options = settings.operators.callers(), settings.operators.server_options()
    check_tables(settings.fleet)
    with (
        settings.operators.observers(settings.log_requests, tell) as observers,
        listen(settings.host, settings.port) as sock,
    ):
        named = _named(settings)
        if settings.worker.draft_model is not None:
            resolve_to_run(settings.worker.draft_model)
        if named:
            tell(f"loading {', '.join(file.name for file in _at_once(settings, named))}")
        uvloop.run(_serve(settings, named, Door(sock, options, callers, observers), tell))


def _named(settings: ServeSettings) -> list[LocalFile]:
    """All models that are served from here, under the names that requests use."""
    named: dict[str, LocalFile] = {}
    for name in settings.models:
        resolve_to_run(name)
        file = local_file(name)
        named[file.name] = file
    for name, table in settings.fleet.models.items():
        if not table.remote:
            resolve_to_run(table.source)
            named[name] = dataclasses.replace(local_file(table.source), name=name)
    return list(named.values())


def _at_once(settings: ServeSettings, named: Sequence[LocalFile]) -> Sequence[LocalFile]:
    """Those that are loaded at the start, for good: the first one, and the fleet's."""
    return [file for i, file in enumerate(named) if not i or file.name in settings.fleet.models]


def _shapes(settings: ServeSettings) -> Shapes:
    """Replicas of each model, those of the fleet's tables included."""
    shapes = settings.shapes
    for name, table in settings.fleet.models.items():
        if table.replicas is not None:
            shapes = shapes.with_model(name, table.replicas)
    return shapes


@contextlib.asynccontextmanager
async def _catalogue(
    settings: ServeSettings,
    named: Sequence[LocalFile],
    door: Door,
    admission: Admission,
    tell: Callable[[str], None],
) -> AsyncIterator[Catalogue]:
    """With the first model loaded. Why it cannot be is told in words for the user, not for a client.

    Clients are answered meanwhile where it has no workers of its own, and may wait long for one that joins.
    Memory is counted where there can be more than one model, or where its size is given.
    """
    memory = settings.memory_bytes
    if memory is None and (settings.load_on_demand or len(named) > 1):
        memory = free_memory()
    shapes, at_once = _shapes(settings), [file.name for file in _at_once(settings, named)]
    joining = [name for name in at_once if not shapes.of(name).count]
    if joining and settings.workers is None:
        raise ConfigError("without replicas of its own (--replicas 0) the server needs --listen-workers")

    def served() -> list[str]:
        return [file.name for file in catalogue.available()]

    def awaited() -> list[str]:
        return [name for name in joining if name not in catalogue.loaded_models]

    async with open_port(settings.workers, served, tell) as registry:
        loader = ModelLoader(
            settings.worker,
            budgeted=memory is not None,
            shapes=shapes,
            registry=registry,
            limits=settings.limits,
        )
        budget = Budget(memory, settings.keep_alive, settings.drain_seconds)
        catalogue = Catalogue(
            loader, named, at_once=at_once, on_demand=settings.load_on_demand, budget=budget
        )
        meanwhile: AbstractAsyncContextManager[None] = contextlib.nullcontext()
        if joining:
            assert registry is not None
            tell(f"waiting for a worker that joins with {' and '.join(joining)}")
            meanwhile = awaiting_workers(door, awaited, registry.health)
        async with contextlib.AsyncExitStack() as stack:
            if settings.cluster is not None and registry is not None:
                drain = settings.drain_seconds
                plan = await plan_workers(settings.cluster, loader, named, registry.address, drain)
                cluster = scaled_cluster(plan, settings.cluster, catalogue, admission, tell)
                await stack.enter_async_context(cluster)
            try:
                async with meanwhile:
                    await stack.enter_async_context(catalogue)
                yield catalogue
            except RequestError as error:
                raise error.__cause__ or error from None


async def _serve(
    settings: ServeSettings, named: Sequence[LocalFile], door: Door, tell: Callable[[str], None]
) -> None:
    began = time.monotonic()
    capacity = Capacity.of_engine(settings.worker.max_running, settings.worker.max_batch_tokens)
    admission = Admission(settings.max_queue, capacity)
    async with _catalogue(settings, named, door, admission, tell) as catalogue:
        gateway = Gateway(
            catalogue.loaded_models,
            admission,
            settings.max_body_mib * 2**20,
            bodies=Bodies(settings.operators.max_bodies_mib * 2**20),
            callers=door.callers,
            request_timeout=settings.operators.request_timeout,
            observers=door.observers,
            expose_prefixes=settings.expose_prefixes,
        )
        gateway.catalogue = catalogue
        admission.workers = catalogue.workers
        gateway.batches = Batches(
            settings.data_dir or home() / "data",
            batch_endpoints(gateway),
            gateway.admission,
            gateway.callers,
        )
        url = _url(door.sock, "http" if door.options.tls is None else "https")
        workers = {r.name: r.fleet.workers for r in catalogue.residents() if r.fleet is not None}

        def ready() -> None:
            for resident in catalogue.residents():
                assert resident.fleet is not None
                facts, seconds = resident.fleet.facts, time.monotonic() - began
                name = f"{resident.name} " if len(workers) > 1 else ""
                tell(
                    f"{name}loaded in {seconds:.1f} s; context {facts.context_length} tokens, "
                    f"cache {_cache(facts)}"
                )
            # What was made while loading stays: the collector need not look at it again.
            gc.collect()
            gc.freeze()
            others = sorted(file.name for file in catalogue.available() if file.name not in workers)
            if others:
                tell(f"loaded when asked for: {', '.join(others)}")
            routed = [] if gateway.router is None else gateway.router.names()
            name, chats = _first_to_ask(catalogue, routed)
            sample = _sample(url, name, chats, door.callers.open)
            served = ", ".join([*workers, *routed])
            tell(f"serving {served} on {url}; Ctrl-C ends it. Try:\n\n  {sample}\n")

        def draining(running: int) -> None:
            tell(
                f"ending; up to {settings.drain_seconds:g} s for what runs ({running}), "
                "Ctrl-C again ends it at once"
            )

        data_dir = settings.data_dir or home() / "data"
        routes = opened_routes(settings.fleet, gateway, data_dir, workers, _machine(settings.worker))
        async with gateway.batches, routes as router, speeds_tested(gateway, router):
            await serve(
                gateway,
                door.sock,
                drain_seconds=settings.drain_seconds,
                options=door.options,
                ready=ready,
                draining=draining,
                stop_engines=lambda: catalogue.drain(_WORKER_EXIT_SECONDS),
            )
    tell("ended")


def _machine(worker: WorkerSettings) -> str:
    """What models run on, and how, as far as their speed depends on it."""
    threads = worker.threads or usable_cpus()
    return f"{processor()['model name']}, {threads} threads, {worker.backend}, speculates {worker.speculate}"


def _first_to_ask(catalogue: Catalogue, routed: Sequence[str]) -> tuple[str, bool]:
    """The name for a first request, and whether that is a chat: a policy, else a model that is here."""
    if routed:
        return routed[0], True
    first = catalogue.residents()[0]
    assert first.served is not None and isinstance(first.served.prompter, ModelPrompter)
    return first.name, first.served.prompter.chats


def _cache(facts: Ready) -> str:
    tokens = facts.cache_blocks * facts.block_tokens
    return f"{tokens} tokens ({facts.cache_bytes / 2**30:.2f} GiB)"


def _url(sock: socket.socket, scheme: str) -> str:
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _sample(url: str, model: str, chats: bool, is_open: bool) -> str:
    """A first request for the user to paste into a shell; one that a small model can answer."""
    asked: dict[str, object] = (
        {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}
        if chats
        else {"prompt": "The sky is blue because"}
    )
    path = "chat/completions" if chats else "completions"
    body = json.dumps({"model": model} | asked | {"max_tokens": 100})
    key = [] if is_open else ["-H", "Authorization: Bearer YOUR-KEY"]
    return shlex.join(["curl", f"{url}/v1/{path}", *key, "-H", "Content-Type: application/json", "-d", body])
