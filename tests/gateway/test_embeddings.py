"""Embeddings, as the official client sees them."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from gateway.running import RunningGateway, running


def embed(server: RunningGateway, **fields: Any) -> Any:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        return client.embeddings.create(**({"model": "fake"} | fields))


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_each_text_has_its_vector_in_order(server: RunningGateway, encoding: str | None) -> None:
    given = {} if encoding is None else {"encoding_format": encoding}
    answer = embed(server, input=["a", "bc"], **given)
    vectors = [each.embedding for each in answer.data]
    if encoding == "base64":
        assert vectors == ["AADCQgAAgD8=", "AADEQgAAAEA="]
    else:
        assert vectors == [[97.0, 1.0], [98.0, 2.0]]
    assert [each.index for each in answer.data] == [0, 1]
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (3, 3)


def test_token_ids_are_taken_too(server: RunningGateway) -> None:
    assert len(embed(server, input=[97, 98]).data) == 1
    assert len(embed(server, input=[[97], [98, 99]]).data) == 2
    assert embed(server, input="a", dimensions=2).data[0].embedding == [97.0, 1.0]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input": "a", "dimensions": 3}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [256]}, "input[0]"),
        ({"input": "x" * 5000}, "input"),
        ({}, "input"),
    ],
)
def test_a_wrong_field_is_named(server: RunningGateway, fields: dict[str, Any], field: str) -> None:
    answer = httpx.post(f"{server.url}/v1/embeddings", json={"model": "fake"} | fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), answer.text


def test_the_queue_is_bounded_for_them_too() -> None:
    with running(max_queue=2) as server, pytest.raises(openai.BadRequestError, match="3"):
        embed(server, input=["a", "b", "c"])
