"""Who may see and change workers, and what is refused; the work itself is tested with real workers."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from gateway.fake_engine import ByteWords
from gateway.running import RunningGateway, running
from headrace.errors import RequestError
from headrace.gateway.callers import Callers
from headrace.gateway.loading import reopened
from headrace.models.local import local_file


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("restart", {"reload": 5}, "reload"),
        ("restart", {}, "model"),  # the fake model has no workers
        ("restart", {"model": "nope"}, "model"),
        ("workers/worker-0", {}, "role"),
        ("workers/worker-0", {"role": "both", "drain": True}, "role"),
        ("workers/worker-0", {"role": "chief"}, "role"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    server: RunningGateway, path: str, body: dict[str, object], field: str
) -> None:
    answer = httpx.post(f"{server.url}/v1/fleet/{path}", json=body)
    assert answer.status_code in (400, 404) and answer.json()["error"]["param"] == field


@pytest.mark.parametrize("limit", ["0", "-1", "x", "nan", "inf", "1e300"])
def test_a_limit_that_cannot_be_is_refused(server: RunningGateway, limit: str) -> None:
    answer = httpx.get(f"{server.url}/v1/fleet?tpot_limit_ms={limit}")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "tpot_limit_ms"


def test_only_clients_on_this_machine_that_are_no_web_page_may(server: RunningGateway) -> None:
    assert httpx.get(f"{server.url}/v1/fleet").json() == {"data": [], "object": "list"}
    for headers in ({"origin": "https://example.org"}, {"x-forwarded-for": "192.0.2.1"}):
        for method, path in (("GET", ""), ("POST", "/restart"), ("POST", "/workers/worker-0")):
            body = b"{}" if method == "POST" else None
            answer = httpx.request(method, f"{server.url}/v1/fleet{path}", headers=headers, content=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_an_operator")


def test_a_file_of_other_tokens_is_no_reload(synthetic_model: Path) -> None:
    with pytest.raises(RequestError, match="other tokens") as refused:
        reopened(local_file(str(synthetic_model)), ByteWords())
    assert (refused.value.status, refused.value.code) == (409, "other_vocabulary")


def test_with_keys_only_an_operator_s_may(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(
        "[keys.user]\nkey = 'the-key-of-a-user'\n[keys.boss]\nkey = 'the-key-of-the-boss'\noperator = true\n"
    )
    with running(callers=Callers(file)) as server:
        found = {
            key: httpx.get(f"{server.url}/v1/fleet", headers={"x-api-key": key}).status_code
            for key in ("the-key-of-a-user", "the-key-of-the-boss", "the-key-of-nobody")
        }
    assert list(found.values()) == [403, 200, 401]
