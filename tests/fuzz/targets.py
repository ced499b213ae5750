"""What is fuzzed: functions that take any bytes and return, or raise what no user may ever meet."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.fake_engine import ByteWords, FakeEngine
from headrace.errors import HeadraceError
from headrace.gateway.admission import Admission
from headrace.gateway.app import create_app
from headrace.gateway.batches.lines import BadLineError, parse_request
from headrace.gateway.batches.local_call import call
from headrace.gateway.served import ServedModel
from headrace.gateway.state import Gateway
from headrace.models.chat_template import ChatTemplate
from headrace.models.config import ModelConfig
from headrace.models.gguf import GgufFile
from headrace.models.sampling_defaults import SamplingDefaults
from headrace.models.tokenizer import Tokenizer

_SECONDS = 20
"""For an answer; the slowest take a tenth of one."""


def gguf(data: bytes) -> None:
    """A model file: all that is read of it before its weights are computed with."""
    path = _file()
    path.write_bytes(data)
    try:
        with GgufFile(path) as file:
            file.digest()
            for name in file:
                int(file.tensor(name).data.sum())
            for read in (_config, _tokenizer, _template):
                with contextlib.suppress(HeadraceError):
                    read(file)
    except HeadraceError:
        return


def _config(file: GgufFile) -> None:
    SamplingDefaults.from_metadata(file.metadata)
    ModelConfig.from_weights(file)


def _tokenizer(file: GgufFile) -> None:
    tokenizer = Tokenizer.from_metadata(file.metadata)
    tokens = tokenizer.encode("Hello, world: é 🙂")
    b"".join(map(tokenizer.token_bytes, tokens))


def _template(file: GgufFile) -> None:
    ChatTemplate.from_metadata(file.metadata)


def requests(data: bytes) -> None:
    """A request: a line with the path, then the body. Any answer will do, but one that blames the server."""
    path, _, body = data.partition(b"\n")
    if path == b"batch":
        _batch_line(body)
        return
    loop, endpoints = _gateway()
    endpoint = endpoints.get(path.decode("latin-1"))
    if endpoint is not None:
        asked = call(endpoint, path.decode(), body, {})
        status, answer = loop.run_until_complete(asyncio.wait_for(asked, _SECONDS))
        assert status < 500, (status, answer)


def _batch_line(line: bytes) -> None:
    try:
        parse_request(line)
    except BadLineError:
        return


TARGETS: dict[str, Callable[[bytes], None]] = {"gguf": gguf, "requests": requests}


@cache
def _file() -> Path:
    """One file that every case overwrites, in memory where there is such a place."""
    memory = Path("/dev/shm")
    handle, name = tempfile.mkstemp(".gguf", dir=memory if os.access(memory, os.W_OK) else None)
    os.close(handle)
    return Path(name)


@cache
def _gateway() -> tuple[asyncio.AbstractEventLoop, dict[str, ASGIApp]]:
    """A loop and the endpoints that take a body; behind them an engine that computes nothing."""
    words = ByteWords()
    words.knows_tools = True
    model = ServedModel("fake", FakeEngine(), words, context_length=96)
    gateway = Gateway({"fake": model}, Admission(256), 2**20, expose_prefixes=True)
    app = create_app(gateway)
    routes = [route for route in app.routes if isinstance(route, Route) and "POST" in (route.methods or ())]
    return asyncio.new_event_loop(), {route.path: route.app for route in routes}
