"""What local models cost is right from the first decision on, and a restart keeps what was learnt."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")

from headrace.models.weights import TensorType
from synthetic import write_synthetic
from system.test_routed_faults import Gateway, gateway
from system.test_serve import eventually

LAYERS = {"small": 2, "large": 60}
GUESSED_SPEED = 50.0
"""Tokens a second, before anything is measured."""
QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]


def candidates(server: Gateway) -> dict[str, dict[str, Any]]:
    body = {"model": "auto", "messages": QUESTION, "max_tokens": 200}
    told = httpx.post(f"{server.url}/v1/route", json=body, timeout=20).json()
    return {each["model"]: each for each in told["candidates"]}


def price(each: dict[str, Any]) -> float:
    """Of a token of the answer; hardly anything of it is the prompt's."""
    return float(each["cost"] / each["output_tokens"])


def ask(server: Gateway, model: str) -> None:
    body = {"model": model, "messages": QUESTION, "max_tokens": 100, "ignore_eos": True}
    assert httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).status_code == 200


def test_prices_are_right_from_the_first_decision_and_a_restart_keeps_what_was_learnt(tmp_path: Path) -> None:
    table = '[models.{0}]\nsource = "{0}.gguf"\ncost_per_hour = 1.0\n'
    for name, layers in LAYERS.items():
        write_synthetic(tmp_path / f"{name}.gguf", layers=layers, types=TensorType.Q4_0)

    def measured() -> bool:
        return all(each["tokens_per_second"] != GUESSED_SPEED for each in candidates(server).values())

    with gateway(tmp_path, "".join(map(table.format, LAYERS))) as server:
        first = candidates(server)
        eventually(measured)
        tested = candidates(server)
        for name in LAYERS:
            for _ in range(3):
                ask(server, name)
        taught = candidates(server)
        server.end(signal.SIGTERM)
        server.start()
        assert measured(), "before the restart"
        again = candidates(server)
    for known in (first, tested, taught, again):
        assert price(known["small"]) < price(known["large"])
    for name in LAYERS:
        assert again[name]["output_tokens"] == pytest.approx(taught[name]["output_tokens"], rel=1e-3)
        assert again[name]["output_tokens"] != pytest.approx(first[name]["output_tokens"], rel=0.02)
