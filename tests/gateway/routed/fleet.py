"""A gateway that routes on a real socket: over fake engines here, and remotes that follow scripts."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.fake_engine import ByteWords, FakeEngine
from gateway.remotes.upstream import Exchange, Script, Upstream, chunk, openai_usage
from headrace.gateway.admission import Admission
from headrace.gateway.batches.endpoints import batch_endpoints
from headrace.gateway.batches.service import Batches
from headrace.gateway.callers import Callers
from headrace.gateway.connections import BoundedServer
from headrace.gateway.routed.opened import opened_routes
from headrace.gateway.routed.routes import Routes
from headrace.gateway.routed.speed_test import speeds_tested
from headrace.gateway.served import ServedModel
from headrace.gateway.server import ServerOptions, configure, listen
from headrace.gateway.state import Gateway
from headrace.models.sampling_defaults import SamplingDefaults
from headrace.routing.tables import read_tables

CONTEXT = 512
SECRET = "a-key-that-nobody-may-see"
DEAR = 36000.0
"""What an hour of a local model costs in most tests: more than a remote one."""
A_LOT: dict[str, Any] = {"per_day": 1e9}
"""With it money is set aside before it is spent, and tests see when all of it is settled."""
FAR_FIRST: dict[str, Any] = {"auto": {"quality": 0.01}}
"""Any model will do, and the remote one is the cheapest."""
HI = [{"role": "user", "content": "Hi"}]
DIALECTS = ("chat", "responses", "anthropic", "ollama")


def here(answer: str | None = None, step_seconds: float = 0.0, **table: Any) -> dict[str, Any]:
    """A local model, whose engine answers so."""
    return {"engine": FakeEngine(step_seconds, answer=answer), **table}


def far(script: Script, **table: Any) -> dict[str, Any]:
    """A remote one that costs a millionth for each token, and gives up after a second."""
    prices = {"input_price": 1.0, "output_price": 1.0}
    return {
        "script": script,
        "key_env": "FAR_KEY",
        "abilities": ["tools", "json", "logprobs"],
        "first_token_timeout": 1.0,
        "idle_timeout": 0.5,
        **prices,
        **table,
    }


class Fleet:
    """A gateway that listens, and its parts."""

    def __init__(self, port: int, data_dir: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.data_dir = data_dir
        self.engines: dict[str, FakeEngine] = {}
        self.upstreams: dict[str, Upstream] = {}
        self.client = httpx.Client(base_url=self.url, timeout=20, trust_env=False)
        self.gateway: Gateway
        self.routes: Routes

    def chat(self, model: str = "auto", key: str = "", **fields: Any) -> httpx.Response:
        """Asks in OpenAI's words; fields `x_headrace_…` are headers."""
        return self.post("chat", model, key, **fields)

    def post(self, dialect: str, model: str = "auto", key: str = "", **fields: Any) -> httpx.Response:
        headers = {n.replace("_", "-"): str(fields.pop(n)) for n in list(fields) if n.startswith("x_")}
        if key:
            headers["authorization"] = f"Bearer {key}"
        path, body = _asked(dialect, model)
        if dialect == "chat" and fields.get("stream"):
            body["stream_options"] = {"include_usage": True}
        return self.client.post(path, json=body | fields, headers=headers)

    def explain(self, **fields: Any) -> dict[str, Any]:
        """What /v1/route says."""
        body = _asked("chat", "auto")[1] | fields
        told: dict[str, Any] = self.client.post("/v1/route", json=body).json()
        return told

    def metric(self, name: str, **labels: str) -> float:
        """The sample of these labels, perhaps among others; 0 where there is none."""
        total = 0.0
        for line in self.client.get("/metrics").text.splitlines():
            if line.split("{")[0].split(" ")[0] == name and all(
                f'{k}="{v}"' in line for k, v in labels.items()
            ):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def spent(self) -> tuple[int, int]:
        """Billionths spent today, by everyone, and reservations that are open."""
        with sqlite3.connect(self.data_dir / "routing.sqlite") as connection:
            (spent,) = connection.execute("SELECT coalesce(sum(amount), 0) FROM day_spend").fetchone()
            (open_now,) = connection.execute("SELECT count(*) FROM reservations").fetchone()
        return spent, open_now

    def decisions(self, count: int = 1) -> list[dict[str, Any]]:
        """What the store has of all requests, once it has so many."""
        eventually(lambda: len(self._decisions()) >= count)
        return self._decisions()

    def _decisions(self) -> list[dict[str, Any]]:
        self.routes.store.flush()
        with sqlite3.connect(self.data_dir / "routing.sqlite") as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute("SELECT * FROM decisions ORDER BY number")]


@contextmanager
def routed(
    data_dir: Path,
    models: Mapping[str, Mapping[str, Any]],
    *,
    policies: Mapping[str, Any] | None = None,
    budgets: Mapping[str, Any] | None = None,
    routing: Mapping[str, Any] | None = None,
    callers: Callers | None = None,
    request_timeout: float | None = None,
    machine: str = "",
    tests_speeds: bool = False,
) -> Iterator[Fleet]:
    """Serves on a thread until the block ends; models are made by `here` and `far`."""
    sock = listen("127.0.0.1", 0)
    fleet = Fleet(sock.getsockname()[1], data_dir)
    started, parts = threading.Event(), {}

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            tables: dict[str, dict[str, Any]] = {}
            served: dict[str, ServedModel] = {}
            for name, model in models.items():
                table = tables[name] = dict(model)
                if "script" in table:
                    upstream = fleet.upstreams[name] = Upstream(table.pop("script"))
                    await stack.enter_async_context(upstream.serving())
                    table["url"] = upstream.url + "/v1"
                elif "engine" in table:
                    engine = fleet.engines[name] = table.pop("engine")
                    served[name] = ServedModel(
                        name, engine, ByteWords(), CONTEXT, "fp", SamplingDefaults(), created=1
                    )
            content = {
                "models": tables,
                "policies": policies or {},
                "budgets": A_LOT | dict(budgets or {}),
                "routing": {"shadow": 0.0} | dict(routing or {}),
            }
            gateway = fleet.gateway = Gateway(served, Admission(64), 2**20, request_timeout=request_timeout)
            gateway.callers = callers or Callers()
            gateway.batches = Batches(data_dir, batch_endpoints(gateway), gateway.admission, gateway.callers)
            read = read_tables(content, Path("headrace.toml"))
            routes = opened_routes(read, gateway, data_dir, dict.fromkeys(served, 1), machine)
            server = BoundedServer(configure(gateway, ServerOptions()))
            async with gateway.batches, routes as fleet.routes:
                if tests_speeds:
                    await stack.enter_async_context(speeds_tested(gateway, fleet.routes))
                parts["server"] = server
                started.set()
                await server.serve([sock])

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            parts["error"] = error
            raise
        finally:
            started.set()

    thread = threading.Thread(target=run, daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAR_KEY", SECRET)
        thread.start()
        assert started.wait(10)
    if "error" in parts:
        raise parts["error"]
    try:
        yield fleet
    finally:
        fleet.client.close()
        parts["server"].should_exit = True
        thread.join(10)
    assert not thread.is_alive()


def keys(folder: Path, **entries: str) -> Callers:
    """Callers by name, with what else stands in their table of the keys file."""
    file = folder / "keys.toml"
    tables = [f'[keys.{name}]\nkey = "{key_of(name)}"\n{rest}\n' for name, rest in entries.items()]
    file.write_text("".join(tables), encoding="utf-8")
    return Callers(file)


def key_of(name: str) -> str:
    """The key of one of `keys`."""
    return f"the-key-of-{name}-in-tests"


def _asked(dialect: str, model: str) -> tuple[str, dict[str, Any]]:
    """Path and body of a short request."""
    if dialect == "responses":
        return "/v1/responses", {"model": model, "input": "Hi", "max_output_tokens": 30}
    if dialect == "anthropic":
        return "/v1/messages", {"model": model, "messages": HI, "max_tokens": 30}
    if dialect == "ollama":
        body = {"model": model, "messages": HI, "stream": False, "options": {"num_predict": 30}}
        return "/api/chat", body
    return "/v1/chat/completions", {"model": model, "messages": HI, "max_tokens": 30}


def text_of(dialect: str, answer: httpx.Response) -> str:
    """What a client reads, of a whole answer or a stream."""
    return _streamed(dialect, answer.text) if _is_stream(answer) else _whole(dialect, answer.json())


def usage_of(dialect: str, answer: httpx.Response) -> dict[str, Any]:
    """The answer's usage, or what stands in its place; of a stream the last one told."""
    told = events(answer) if _is_stream(answer) else [answer.json()]
    found: dict[str, Any] = {}
    for each in told:
        holder = each.get("response", each)
        if holder.get("usage"):
            found = holder["usage"]
        elif dialect == "ollama" and holder.get("done"):
            found = holder
    return found


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """Of a stream, in any dialect."""
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def _is_stream(answer: httpx.Response) -> bool:
    return answer.headers["content-type"] != "application/json"


def _whole(dialect: str, body: Mapping[str, Any]) -> str:
    if dialect == "responses":
        return "".join(part["text"] for item in body["output"] for part in item.get("content", ()))
    if dialect == "anthropic":
        return "".join(block["text"] for block in body["content"])
    content: str = (
        body["message"]["content"] if dialect == "ollama" else body["choices"][0]["message"]["content"]
    )
    return content


def _streamed(dialect: str, text: str) -> str:
    told = [
        json.loads(line.removeprefix("data: "))
        for line in text.splitlines()
        if "{" in line and line[0] in "{d"
    ]
    if dialect == "responses":
        return "".join(e["delta"] for e in told if e.get("type") == "response.output_text.delta")
    if dialect == "anthropic":
        return "".join(e["delta"]["text"] for e in told if e.get("type") == "content_block_delta")
    if dialect == "ollama":
        return "".join(e["message"]["content"] for e in told if "message" in e)
    return "".join(c["delta"].get("content") or "" for e in told for c in e.get("choices", ()))


# scripts


def cut_after(words: Sequence[str], error: Mapping[str, Any] | None = None) -> Script:
    """Streams the words, and then breaks off, perhaps with an error in the stream."""

    async def script(exchange: Exchange) -> None:
        await exchange.begin()
        for word in words:
            await exchange.event(chunk(content=word))
            await asyncio.sleep(0.02)
        if error is not None:
            await exchange.event({"error": error})
            await exchange.end()
        await exchange.cut()

    return script


def late(seconds: float, words: Sequence[str] = ("Late ", "words.")) -> Script:
    """Answers after so long."""

    async def script(exchange: Exchange) -> None:
        await asyncio.sleep(seconds)
        await exchange.begin()
        for word in words:
            await exchange.event(chunk(content=word))
        await exchange.event(chunk(reason="stop"))
        await exchange.event(openai_usage(9, len(words)))
        await exchange.event("[DONE]")
        await exchange.end()

    return script


def slowly(seconds: float) -> Script:
    """Streams words without an end, one after each pause, until the other side has had enough."""

    async def script(exchange: Exchange) -> None:
        await exchange.begin()
        while True:
            await exchange.event(chunk(content="word "))
            await asyncio.sleep(seconds)

    return script


def eventually(check: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)
