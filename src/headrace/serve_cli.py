"""`headrace serve`, and `headrace worker` for its workers on other hosts: from options to settings."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from headrace.config import ConfigFile, options
from headrace.engine_options import ENGINE, SPECULATION, TIERS, engine_settings, in_bytes

_CONNECTIONS = ("api_keys", "tls_cert", "tls_key", "cors_origin", "request_timeout", "write_timeout")
_TOLD = ("log_format", "log_prompts", "otlp_endpoint")
_OPERATORS = (*_CONNECTIONS, "max_connections", "max_bodies_mib", *_TOLD)
_SCALING = ("min_workers", "max_workers", "worker_load", "scale_down_seconds")
_CLUSTER = ("cluster", "ray_address", "ray_resources", *_SCALING)
_JOINING = ("listen_workers", "worker_secret_file", "worker_heartbeat")


@click.command()
@options("model", "host", "port", *ENGINE, "max_batch_tokens", "max_running", "prefix_cache", *SPECULATION)
@options(*TIERS)
@options("max_queue", "max_body_mib", "drain_seconds", "log_requests", "data_dir")
@options("replicas", "prefill", "decode", "ttft_limit_ms", "tpot_limit_ms", *_JOINING, *_CLUSTER)
@options("load_on_demand", "memory_gib", "keep_alive", "expose_prefixes")
@options(*_OPERATORS)
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    model: str,
    host: str,
    port: int,
    max_queue: int,
    max_body_mib: int,
    drain_seconds: float,
    log_requests: bool,
    replicas: str | None,
    prefill: int,
    decode: int,
    ttft_limit_ms: float | None,
    tpot_limit_ms: float | None,
    listen_workers: str | None,
    worker_secret_file: Path | None,
    worker_heartbeat: float,
    load_on_demand: bool,
    memory_gib: float | None,
    keep_alive: float,
    data_dir: Path | None,
    expose_prefixes: bool | None,
    **engine: Any,
) -> None:
    """Serve models over HTTP: the first one at once, others when they are asked for."""
    from headrace.cluster import ClusterSettings
    from headrace.fleet import Shapes
    from headrace.fleet.planner import Limits
    from headrace.gateway.operating import OperatorSettings
    from headrace.gateway.recruiting import WorkersPort
    from headrace.gateway.serve import ServeSettings, serve_model
    from headrace.worker.settings import WorkerSettings

    operators = OperatorSettings(**{name: engine.pop(name) for name in _OPERATORS})
    roles = prefill, decode
    cluster = ClusterSettings.of(
        worker_secret_file, replicas, roles, **{name: engine.pop(name) for name in _CLUSTER}
    )
    if cluster is not None:
        replicas, prefill, decode = "0", 0, 0  # on this host
        listen_workers = listen_workers or cluster.listen
        worker_secret_file = cluster.secret_file()
    models = [model] if Path(model).is_file() else [name.strip() for name in model.split(",")]
    file = ctx.find_object(ConfigFile)
    assert file is not None
    fleet = file.fleet()
    if fleet.models and ctx.get_parameter_source("model") is click.core.ParameterSource.DEFAULT:
        models = []
    sources = [*models, *(table.source for table in fleet.models.values() if not table.remote), model]
    settings = ServeSettings(
        host=host,
        port=port,
        max_queue=max_queue,
        max_body_mib=max_body_mib,
        drain_seconds=drain_seconds,
        log_requests=log_requests,
        worker=WorkerSettings(**engine_settings(model=sources[0], **engine)),
        models=models,
        fleet=fleet,
        shapes=Shapes.parse(replicas, prefill, decode),
        limits=Limits(*(None if ms is None else ms / 1e3 for ms in (ttft_limit_ms, tpot_limit_ms))),
        workers=WorkersPort.of(listen_workers, worker_secret_file, worker_heartbeat),
        cluster=cluster,
        load_on_demand=load_on_demand,
        memory_bytes=in_bytes(memory_gib),
        keep_alive=keep_alive,
        operators=operators,
        data_dir=data_dir,
        expose_prefixes=expose_prefixes,
    )
    serve_model(settings, lambda line: click.echo(f"headrace: {line}", err=True))


@click.group(invoke_without_command=True)
@options("join", "worker_secret_file", "model", "worker_name", "worker_role", "drain_seconds")
@options(*ENGINE, *TIERS, "max_batch_tokens", "max_running", "prefix_cache", *SPECULATION)
@click.pass_context
def worker(
    ctx: click.Context,
    /,
    join: str | None,
    worker_secret_file: Path | None,
    worker_name: str | None,
    worker_role: Any,
    drain_seconds: float,
    **engine: Any,
) -> None:
    """Run a worker for a server on another host, which was started with --listen-workers."""
    if ctx.invoked_subcommand is not None:
        return
    from headrace.worker.join import JoinSettings, join_gateway
    from headrace.worker.settings import WorkerSettings

    logging.getLogger("headrace").setLevel(logging.INFO)
    joining = JoinSettings.of(join, worker_secret_file, worker_name, worker_role, drain_seconds)
    join_gateway(joining, WorkerSettings(**engine_settings(**engine)))


@worker.command()
def secret() -> None:
    """Make a secret, for a file that server and workers are given with --secret-file."""
    from headrace.worker.secret import new_secret

    click.echo(new_secret())
