"""Tokens of texts and texts of tokens, in the words of vLLM and of llama.cpp's server."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.running import CONTEXT, RunningGateway


def post(server: RunningGateway, path: str, **body: Any) -> Any:
    return httpx.post(f"{server.url}/{path}", json=body)


def test_a_text_becomes_tokens(server: RunningGateway) -> None:
    answer = post(server, "tokenize", model="fake", prompt="Hé", return_token_strs=True).json()
    assert answer == {
        "count": 3,
        "max_model_len": CONTEXT,
        "tokens": [72, 0xC3, 0xA9],
        "token_strs": ["H", "\ufffd", "\ufffd"],
    }


def test_a_conversation_goes_through_the_template(server: RunningGateway) -> None:
    answer = post(server, "tokenize", model="fake", messages=[{"role": "user", "content": "Hi"}]).json()
    assert bytes(answer["tokens"]) == b"user:Hi;"
    assert "token_strs" not in answer


def test_llama_cpps_words_do_too_and_the_only_model_needs_no_name(server: RunningGateway) -> None:
    assert post(server, "tokenize", content="Hi").json()["tokens"] == [72, 105]
    assert post(server, "detokenize", tokens=[72, 105]).json() == {"prompt": "Hi", "content": "Hi"}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("tokenize", {"model": "fake"}, "prompt"),
        ("tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("tokenize", {"messages": []}, "messages"),
        ("tokenize", {"messages": [{"role": "judge", "content": "a"}]}, "messages[0].role"),
        ("detokenize", {}, "tokens"),
        ("detokenize", {"tokens": [256]}, "tokens[0]"),
        ("detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
)
def test_a_wrong_field_is_named(server: RunningGateway, path: str, body: dict[str, Any], field: str) -> None:
    answer = post(server, path, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_a_model_that_is_not_there_is_a_404(server: RunningGateway) -> None:
    assert post(server, "tokenize", model="other", prompt="a").status_code == 404
