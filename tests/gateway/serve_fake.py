"""A program for the tests: serves the fake engine until a signal comes. Arguments: port, drain seconds."""

from __future__ import annotations

import asyncio
import sys

from gateway.fake_engine import ByteWords, FakeEngine
from headrace.gateway.admission import Admission
from headrace.gateway.served import ServedModel
from headrace.gateway.server import listen, serve
from headrace.gateway.state import Gateway


async def main(port: int, drain_seconds: float) -> None:
    engine = FakeEngine(step_seconds=0.01)
    model = ServedModel("fake", engine, ByteWords(), context_length=512)
    gateway = Gateway({"fake": model}, Admission(max_queue=8), max_body_bytes=2**20)
    sock = listen("127.0.0.1", port)

    def ready() -> None:
        print(sock.getsockname()[1], flush=True)

    def draining(running: int) -> None:
        print("draining", running, flush=True)

    await serve(
        gateway,
        sock,
        drain_seconds=drain_seconds,
        ready=ready,
        draining=draining,
        stop_engines=engine.close,
    )


asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
