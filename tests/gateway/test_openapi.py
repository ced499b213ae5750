"""The description of the API: complete, valid, and so is its page."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from gateway.running import RunningGateway
from headrace.gateway.app import create_app


@pytest.fixture(scope="module")
def document(server: RunningGateway) -> dict[str, Any]:
    answer = httpx.get(f"{server.url}/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    described: dict[str, Any] = answer.json()
    return described


def test_every_route_is_described(server: RunningGateway, document: dict[str, Any]) -> None:
    for route in create_app(server.gateway).routes:
        assert isinstance(route, Route)
        told = document["paths"][re.sub(r":\w+}", "}", route.path)]
        for method in (route.methods or {"GET"}) - {"HEAD"}:
            assert told[method.lower()]["summary"]
            assert "200" in told[method.lower()]["responses"]


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert references
    assert references <= schemas.keys()


def test_a_body_is_described_as_it_is_checked(document: dict[str, Any]) -> None:
    operation = document["paths"]["/v1/chat/completions"]["post"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = document["components"]["schemas"][reference.rsplit("/", 1)[1]]
    assert set(schema["required"]) == {"messages", "model"}
    assert "temperature" in schema["properties"]
    assert operation["responses"]["200"]["content"].keys() == {"application/json", "text/event-stream"}
    assert operation["responses"].keys() >= {"400", "401", "404", "413", "429", "503"}


def test_the_page_runs_nothing_but_what_is_in_it(server: RunningGateway) -> None:
    answer = httpx.get(f"{server.url}/docs")
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert not re.search(r"https?://|\son\w+=|style=", answer.text)
