"""A fleet of real processes under load: a remote that fails in every way, and a gateway that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")

from ports import free_port
from system.fault_proxy import FaultProxy
from system.test_serve import Server, eventually, serving

CLIENTS = 50
SECONDS = float(os.environ.get("CHAOS_SECONDS", "5"))
"""Of the load on a remote that fails."""
FAR = """
[models.far]
url = "{url}/v1"
upstream = "synthetic"
input_price = 1.0
output_price = 2.0
context_length = 2048
connect_timeout = 1.0
first_token_timeout = {patience}
idle_timeout = {patience}
"""
NEAR = """
[models.near]
source = "{model}"
cost_per_hour = {cost}
"""


class Gateway:
    """A `headrace serve` that can be killed and started again."""

    def __init__(self, folder: Path, settings: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "headrace.toml").write_text(settings, encoding="utf-8")

    def start(self) -> None:
        kept = (name for name in os.environ if not name.startswith("HEADRACE_") or name == "HEADRACE_HOME")
        environment = {name: os.environ[name] for name in kept}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-m", "headrace", "serve", "--port", str(self.port), "--threads", "1"]
        command += ["--cache-tokens", "16384", "--data-dir", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, env=environment, cwd=self.folder)
        while True:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return
            time.sleep(0.05)

    def end(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(30)

    def spent(self) -> int:
        """Billionths, of all days."""
        return self._read("SELECT coalesce(sum(amount), 0) FROM day_spend")

    def reservations(self) -> int:
        """How many are open."""
        return self._read("SELECT count(*) FROM reservations")

    def _read(self, query: str) -> int:
        with contextlib.closing(sqlite3.connect(self.folder / "routing.sqlite")) as connection:
            (number,) = connection.execute(query).fetchone()
            return int(number)

    def metric(self, name: str, **labels: str) -> float:
        lines = httpx.get(f"{self.url}/metrics", timeout=10).text.splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if re.match(rf"{name}[ {{]", line) and all(each in line for each in wanted)
        )


@contextmanager
def gateway(folder: Path, settings: str) -> Iterator[Gateway]:
    one = Gateway(folder, settings)
    one.start()
    try:
        yield one
    finally:
        assert one.process is not None
        one.process.kill()
        one.process.wait()


@pytest.fixture(scope="module")
def remote(synthetic_model: Path) -> Iterator[Server]:
    with serving(synthetic_model) as server:
        yield server


ASKED: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {"max_tokens": 12, "stream_options": {"include_usage": True}},
    "/v1/messages": {"max_tokens": 12},
}


async def ask(
    session: aiohttp.ClientSession, url: str, path: str, stream: bool, model: str
) -> dict[str, Any]:
    """A request's usage, with its status; what is not whole is an error."""
    words = " ".join(random.choices(["hello", "world", "water", "river"], k=random.randrange(1, 20)))
    body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": words}], **ASKED[path]}
    if not stream:
        body.pop("stream_options", None)
    async with session.post(url + path, json=body) as answer:
        text = await answer.text()
    if answer.status != 200:
        return {"status": answer.status, "text": text}
    told = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    whole = [json.loads(text)] if not stream else told
    assert not [each for each in whole if each.get("type") == "error" or each.get("error")], text
    if stream:
        assert text.endswith("data: [DONE]\n\n") or told[-1]["type"] == "message_stop", text
    ends = [each for each in whole if _reason(each)]
    assert len(ends) == 1, text
    usage = [each["usage"] for each in whole if each.get("usage") and "headrace" in each["usage"]][-1]
    return {"status": 200, **usage["headrace"]}


def _reason(told: Mapping[str, Any]) -> object:
    delta = told.get("delta", told)
    reasons = [choice["finish_reason"] for choice in told.get("choices", ())]
    return delta.get("stop_reason") or next(filter(None, reasons), None)


def connected() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=60), connector=aiohttp.TCPConnector(limit=0)
    )


POLICIES = """
[policies.auto]
quality = 0.01
[policies.hedged]
quality = 0.01
hedge = 2.0
[policies.cascade]
kind = "cascade"
accept = 1.0
"""


def test_a_remote_that_fails_in_every_way_fails_no_request(
    remote: Server, synthetic_model: Path, tmp_path: Path
) -> None:
    url = httpx.URL(remote.url)
    answers: list[dict[str, Any]] = []

    async def client(session: aiohttp.ClientSession, url: str, number: int, ends: float) -> None:
        drawn = random.Random(number)
        while time.monotonic() < ends:
            path, stream = drawn.choice(list(ASKED)), drawn.random() < 0.6
            model = drawn.choice(["auto", "hedged", "cascade"])
            answers.append(await ask(session, url, path, stream, model))

    async def load(proxy: FaultProxy, fleet: Gateway) -> None:
        ends = time.monotonic() + SECONDS
        async with connected() as session:
            await asyncio.gather(*(client(session, fleet.url, number, ends) for number in range(CLIENTS)))

    async def run() -> Counter[str]:
        assert url.port is not None
        async with FaultProxy(url.host, url.port, share=0.3).serving() as proxy:
            models = FAR.format(url=proxy.url, patience=1.0) + NEAR.format(model=synthetic_model, cost=3600)
            with gateway(tmp_path, models + POLICIES) as fleet:
                await load(proxy, fleet)
                tell(fleet, proxy, answers)
                eventually(lambda: fleet.reservations() == 0)
        return proxy.done

    done = asyncio.run(run())
    assert {answer["status"] for answer in answers} == {200}
    assert len(answers) > 2 * CLIENTS
    assert sum(done.values()) - done["none"] >= 10
    assert "Traceback" not in (tmp_path / "log").read_text()


def tell(fleet: Gateway, proxy: FaultProxy, answers: list[dict[str, Any]]) -> None:
    turns = ("fallback", "hedge", "cascade", "continuation")
    counts = {turn: fleet.metric("headrace_route_turns_total", turn=turn) for turn in turns}
    print(Counter(each["status"] for each in answers), proxy.done, counts)


def test_a_budget_holds_while_clients_press_and_the_gateway_is_killed(
    remote: Server, synthetic_model: Path, tmp_path: Path
) -> None:
    """Fifty clients until the money is gone: SIGKILL after a while, then SIGTERM, each with a new start."""
    settings = (
        FAR.format(url=remote.url, patience=60.0) + NEAR.format(model=synthetic_model, cost=100) + POLICIES
    )
    told: Counter[str] = Counter()
    cost = 0.0
    refusals: list[str] = []

    async def client(session: aiohttp.ClientSession, fleet: Gateway, number: int) -> None:
        nonlocal cost
        drawn, refused = random.Random(number), 0
        while refused < 3:
            path, stream = drawn.choice(list(ASKED)), drawn.random() < 0.5
            try:
                answer = await ask(session, fleet.url, path, stream, drawn.choice(["auto", "hedged"]))
            except (aiohttp.ClientError, ConnectionError):  # killed meanwhile
                told["lost"] += 1
                await asyncio.sleep(0.05)
                continue
            told[str(answer["status"])] += 1
            if answer["status"] == 200:
                cost += answer["cost"]
            elif answer["status"] == 402:
                refused += 1
                refusals.append(answer["text"])
            else:
                assert "shutting down" in answer["text"]
                await asyncio.sleep(0.05)

    async def disturb(fleet: Gateway) -> None:
        for number, answers in ((signal.SIGKILL, 60), (signal.SIGTERM, 150)):
            while told["200"] < answers:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(fleet.end, number)
            await asyncio.to_thread(fleet.start)

    async def press(fleet: Gateway) -> None:
        async with connected() as session:
            clients = (client(session, fleet, number) for number in range(CLIENTS))
            await asyncio.gather(disturb(fleet), *clients)

    budget = 0.05
    with gateway(tmp_path, settings + f"[budgets]\nper_day = {budget}\n") as fleet:
        asyncio.run(asyncio.wait_for(press(fleet), 100))
        fleet.end(signal.SIGTERM)
        spent, reserved = fleet.spent(), fleet.reservations()
    print(told, cost, spent, reserved)
    assert reserved == 0
    assert round(cost * 1e9) <= spent <= round(budget * 1e9)
    assert cost > budget / 4
    assert set(told) <= {"200", "402", "503", "lost"}
    assert all("budget" in text and " left" in text for text in refusals)
    assert "Traceback" not in (tmp_path / "log").read_text()
