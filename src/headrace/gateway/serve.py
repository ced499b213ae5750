"""`headrace serve`: a model's workers and the gateway before them, from the first message to the last."""

from __future__ import annotations

import gc
import json
import shlex
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import uvloop

from headrace.fleet import Fleet
from headrace.gateway.admission import Admission
from headrace.gateway.prompter import ModelPrompter
from headrace.gateway.served import ServedModel
from headrace.gateway.server import listen, serve
from headrace.gateway.state import Gateway
from headrace.models.registry import resolve_to_run
from headrace.worker.loader import OpenModel, open_model
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


def serve_model(settings: ServeSettings, tell: Callable[[str], None]) -> None:
    """Fetches, loads and serves the model; returns once a signal came and what ran has ended.

    `tell` is given the lines for the user. Raises HeadraceError where the server cannot start.
    """
    with listen(settings.host, settings.port) as sock:
        for name in (settings.worker.model, settings.worker.draft_model):
            if name is not None:
                resolve_to_run(name)
        tell(f"loading {settings.worker.model}")
        model = open_model(settings.worker.model)
        uvloop.run(_serve(settings, model, ModelPrompter(model), sock, tell))


async def _serve(
    settings: ServeSettings,
    model: OpenModel,
    prompter: ModelPrompter,
    sock: socket.socket,
    tell: Callable[[str], None],
) -> None:
    began = time.monotonic()
    async with Fleet([settings.worker]) as fleet:
        facts = fleet.facts
        served = ServedModel(
            name=model.name,
            engine=fleet,
            prompter=prompter,
            context_length=facts.context_length,
            sampling=model.sampling,
            fingerprint=f"fp_{facts.fingerprint.digest()}",
        )
        gateway = Gateway(
            {model.name: served},
            Admission(settings.max_queue),
            settings.max_body_mib * 2**20,
            log_request=tell if settings.log_requests else None,
        )
        url = _url(sock)

        def ready() -> None:
            seconds = time.monotonic() - began
            tell(f"loaded in {seconds:.1f} s; context {facts.context_length} tokens, cache {_cache(facts)}")
            # What was made while loading stays: the collector need not look at it again.
            gc.collect()
            gc.freeze()
            sample = _sample(url, model.name, prompter.chats)
            tell(f"serving {model.name} on {url}; Ctrl-C ends it. Try:\n\n  {sample}\n")

        def draining(running: int) -> None:
            tell(
                f"ending; up to {settings.drain_seconds:g} s for what runs ({running}), "
                "Ctrl-C again ends it at once"
            )

        async def stop() -> None:
            await fleet.drain(_WORKER_EXIT_SECONDS)

        await serve(
            gateway,
            sock,
            drain_seconds=settings.drain_seconds,
            ready=ready,
            draining=draining,
            stop_engines=stop,
        )
    tell("ended")


def _cache(facts: Ready) -> str:
    tokens = facts.cache_blocks * facts.block_tokens
    return f"{tokens} tokens ({facts.cache_bytes / 2**30:.2f} GiB)"


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _sample(url: str, model: str, chats: bool) -> str:
    """A first request for the user to paste into a shell; one that a small model can answer."""
    asked: dict[str, object] = (
        {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}
        if chats
        else {"prompt": "The sky is blue because"}
    )
    path = "chat/completions" if chats else "completions"
    body = json.dumps({"model": model} | asked | {"max_tokens": 100})
    return shlex.join(["curl", f"{url}/v1/{path}", "-H", "Content-Type: application/json", "-d", body])
