"""A gateway on a real socket, with a fake engine behind it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from gateway.fake_engine import ByteWords, FakeEngine
from headrace.gateway.admission import Admission
from headrace.gateway.batches.endpoints import batch_endpoints
from headrace.gateway.batches.service import Batches
from headrace.gateway.callers import Callers
from headrace.gateway.catalogue import Catalogue
from headrace.gateway.connections import BoundedServer
from headrace.gateway.served import ServedModel
from headrace.gateway.server import ServerOptions, configure, listen
from headrace.gateway.state import Gateway
from headrace.models.sampling_defaults import SamplingDefaults

CONTEXT = 512


class RunningGateway:
    """A gateway that listens, and its parts."""

    def __init__(self, port: int, engine: FakeEngine, gateway: Gateway, loop: asyncio.AbstractEventLoop):
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.engine = engine
        self.gateway = gateway
        self._loop = loop

    def on_loop(self, function: Callable[[], object]) -> None:
        """Calls the function on the server's event loop and waits for it."""

        async def call() -> None:
            function()

        self.run(call())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8} | fields
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=10)

    def complete(self, **fields: Any) -> httpx.Response:
        body = {"model": "fake", "prompt": "Hi", "max_tokens": 8} | fields
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=10)


@contextmanager
def running(
    *,
    max_queue: int = 64,
    max_body_bytes: int = 2**20,
    sampling: SamplingDefaults | None = None,
    options: ServerOptions | None = None,
    callers: Callers | None = None,
    data_dir: Path | None = None,
    catalogue: Catalogue | None = None,
    **engine_options: Any,
) -> Iterator[RunningGateway]:
    """Serves on a thread until the block ends; `catalogue` offers more models than the fake one."""
    sock = listen("127.0.0.1", 0)
    started = threading.Event()
    parts: dict[str, Any] = {}

    async def serve() -> None:
        engine = FakeEngine(**engine_options)
        defaults = sampling or SamplingDefaults()
        model = ServedModel("fake", engine, ByteWords(), CONTEXT, "fp", defaults, created=1)
        gateway = Gateway({"fake": model}, Admission(max_queue), max_body_bytes)
        gateway.callers = callers or Callers()
        if catalogue is not None:
            gateway.catalogue = catalogue
        if data_dir is not None:
            endpoints = batch_endpoints(gateway)
            gateway.batches = Batches(data_dir, endpoints, gateway.admission, gateway.callers)
        server = BoundedServer(configure(gateway, options or ServerOptions()))
        parts.update(engine=engine, gateway=gateway, server=server, loop=asyncio.get_running_loop())
        async with gateway.batches or contextlib.nullcontext():
            started.set()
            await server.serve([sock])

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield RunningGateway(sock.getsockname()[1], parts["engine"], parts["gateway"], parts["loop"])
    finally:
        parts["server"].should_exit = True
        thread.join(10)
    assert not thread.is_alive()
