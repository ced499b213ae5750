"""Garbage in: a clear refusal that names the field, and the server goes on."""

from __future__ import annotations

import gzip
import resource
import socket
from typing import Any

import httpx
import pytest

from gateway.running import CONTEXT, RunningGateway, running

CHAT = '{"model":"fake","messages":[{"role":"user","content":"Hi"}],"max_tokens":4%s}'
TEXT = '{"model":"fake","prompt":"Hi","max_tokens":4%s}'


def post(server: RunningGateway, body: str | bytes, path: str = "chat/completions") -> httpx.Response:
    return httpx.post(f"{server.url}/v1/{path}", content=body, timeout=20)


def refusal(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error, after a check that it has OpenAI's shape and that nothing internal shows."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in error["message"] and "/src/" not in error["message"]
    return error


@pytest.fixture(autouse=True)
def the_server_goes_on(server: RunningGateway):  # type: ignore[no-untyped-def]
    yield
    assert server.chat().status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe\x00",
        b'{"model":"\xff"}',
        b'{"model":"\\ud800","messages":[]}',
        CHAT % ',"temperature":NaN',
        CHAT % ',"temperature":-Infinity',
        CHAT % ',"user":' + "[" * 100_000,
        (CHAT % "") + " trailing",
    ],
)
def test_what_is_no_json_object_is_refused(server: RunningGateway, body: str | bytes) -> None:
    assert "body" in refusal(post(server, body))["message"].lower()


DEEP = ',"user":' + "[" * 100_000 + "]" * 100_000


def test_deep_nesting_is_refused(server: RunningGateway) -> None:
    assert "nested" in refusal(post(server, CHAT % DEEP))["message"]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        (',"temperature":"hot"', "temperature"),
        (',"temperature":true', "temperature"),
        (',"temperature":-0.1', "temperature"),
        (',"temperature":1e999', "temperature"),
        (',"top_p":1.5', "top_p"),
        (',"top_k":-2', "top_k"),
        (',"top_k":1.5', "top_k"),
        (',"top_k":' + "9" * 400, "top_k"),
        (',"min_p":-1', "min_p"),
        (',"repetition_penalty":0', "repetition_penalty"),
        (',"presence_penalty":3', "presence_penalty"),
        (',"frequency_penalty":[]', "frequency_penalty"),
        (',"max_tokens":-5', "max_tokens"),
        (',"max_completion_tokens":1.5', "max_completion_tokens"),
        (',"seed":"x"', "seed"),
        (',"seed":1e30', "seed"),
        (',"seed":' + "9" * 400, "seed"),
        (',"stop":""', "stop"),
        (',"stop":["a",1]', "stop[1]"),
        (',"stop":[""]', "stop[0]"),
        (',"stop":[' + ",".join(['"a"'] * 17) + "]", "stop"),
        (',"stop_token_ids":[99999999]', "stop_token_ids[0]"),
        (',"stop_token_ids":[-1]', "stop_token_ids[0]"),
        (',"stream":"yes"', "stream"),
        (',"stream_options":{"include_usage":1}', "stream_options.include_usage"),
        (',"cache_salt":""', "cache_salt"),
        (',"priority":1e10', "priority"),
        (',"ignore_eos":"no"', "ignore_eos"),
        (',"n":0', "n"),
        (',"n":129', "n"),
        (',"suffix":"x"', "suffix"),
        (',"min_tokens":-1', "min_tokens"),
        (',"logit_bias":{"x":5}', "logit_bias"),
        (',"logit_bias":{"256":5}', "logit_bias"),
        (',"logit_bias":{"1":5,"01":5}', "logit_bias"),
        (',"logit_bias":{"' + "9" * 5000 + '":5}', "logit_bias"),
        (',"response_format":{"type":"xml"}', "response_format.type"),
        (',"response_format":{"type":"json_schema"}', "response_format.json_schema"),
        (',"response_format":{"type":"json_schema","json_schema":{}}', "response_format.json_schema.schema"),
        (',"response_format":{"type":"regex"}', "response_format.regex"),
        (',"response_format":{"type":"json_object"},"guided_regex":"a"', "guided_regex"),
        (',"structured_outputs":{"choice":[]}', "structured_outputs.choice"),
    ],
)
def test_a_wrong_parameter_is_named(server: RunningGateway, more: str, field: str) -> None:
    for body, path in ((CHAT, "chat/completions"), (TEXT, "completions")):
        error = refusal(post(server, body % more, path))
        assert error["param"] == field
        assert field in error["message"]
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("more", "field"),
    [
        (',"tools":[{"type":"function"}]', "tools[0].function"),
        (',"tools":[{"type":"function","function":{"name":""}}]', "tools[0].function.name"),
        (',"tools":[{"type":"function","function":{"name":"f"}}]', "tools"),
        (',"tool_choice":"required"', "tool_choice"),
        (',"tool_choice":{"type":"function","function":{"name":"f"}}', "tool_choice.function.name"),
        (',"continue_final_message":true', "continue_final_message"),
        (',"chat_template":"x"', "chat_template"),
    ],
)
def test_a_wrong_chat_parameter_is_named(server: RunningGateway, more: str, field: str) -> None:
    error = refusal(post(server, CHAT % more))
    assert error["param"] == field
    assert field in error["message"]


@pytest.mark.parametrize(
    ("more", "field"),
    [(',"best_of":2', "best_of"), (',"echo":1', "echo"), (',"max_tokens":0', "max_tokens")],
)
def test_a_wrong_completion_parameter_is_named(server: RunningGateway, more: str, field: str) -> None:
    error = refusal(post(server, TEXT.replace(',"max_tokens":4', "") % more, "completions"))
    assert error["param"] == field
    assert field in error["message"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"length_penalty": 2}, "'length_penalty' other than 1.0 or 1 is not supported."),
        ({"function_call": {"name": "f"}}, '\'function_call\' other than "none" or "auto" is not supported.'),
        ({"truncate_prompt_tokens": 3}, "'truncate_prompt_tokens' is not supported; leave it out."),
    ],
)
def test_what_is_not_supported_is_told_with_what_is(
    server: RunningGateway, fields: dict[str, Any], told: str
) -> None:
    error = refusal(server.chat(**fields))
    assert (error["message"], error["code"]) == (told, "unsupported_value")


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        (None, "messages"),
        ("Hi", "messages"),
        ([], "messages"),
        (["Hi"], "messages[0]"),
        ([{"content": "Hi"}], "messages[0].role"),
        ([{"role": "wizard", "content": "Hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{"role": "assistant", "content": "a", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [{"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}],
            "messages[0].tool_calls",
        ),
    ],
)
def test_wrong_messages_are_named(server: RunningGateway, messages: object, field: str) -> None:
    error = refusal(server.chat(messages=messages))
    assert error["param"] == field
    assert field in error["message"]


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (None, "prompt"),
        (3, "prompt"),
        ({}, "prompt"),
        ("", "prompt"),
        ([], "prompt"),
        ([1.5], "prompt[0]"),
        ([1, "a"], "prompt"),
        (["a", [1]], "prompt"),
        ([256], "prompt[0]"),
        ([3, -1], "prompt[1]"),
        ([10**30], "prompt[0]"),
        ([[1], [2, 999]], "prompt[1][1]"),
        ([[1], []], "prompt[1]"),
        (["a", ""], "prompt[1]"),
        (["a"] * 65, "prompt"),
    ],
)
def test_wrong_prompts_are_named(server: RunningGateway, prompt: object, field: str) -> None:
    error = refusal(server.complete(prompt=prompt))
    assert error["param"] == field
    assert field in error["message"]


def test_logprobs_are_checked_as_each_endpoint_means_them(server: RunningGateway) -> None:
    assert refusal(server.chat(logprobs=3))["param"] == "logprobs"
    assert refusal(server.chat(top_logprobs=3))["param"] == "top_logprobs"
    assert refusal(server.chat(logprobs=True, top_logprobs=21))["param"] == "top_logprobs"
    assert refusal(server.complete(logprobs=True))["param"] == "logprobs"


def test_an_unknown_model_is_named(server: RunningGateway) -> None:
    error = refusal(server.chat(model="gpt-9"), 404)
    assert error["code"] == "model_not_found"
    assert "gpt-9" in error["message"] and "fake" in error["message"]
    assert refusal(server.chat(model=7))["param"] == "model"
    assert refusal(server.chat(model="x" * 100_000), 404)["message"].count("x") < 300


def test_a_prompt_longer_than_the_context_is_refused_with_the_figures(server: RunningGateway) -> None:
    error = refusal(server.complete(prompt="a" * CONTEXT))
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith(f"This model's maximum context length is {CONTEXT} tokens")
    assert f"has {CONTEXT}, and up to 8 of answer were asked for" in error["message"]
    assert str(CONTEXT - 1) in error["message"]
    assert server.complete(prompt="a" * (CONTEXT - 1)).json()["usage"]["completion_tokens"] == 1
    long = [{"role": "user", "content": "a" * 20_000}]
    assert refusal(server.chat(messages=long))["code"] == "context_length_exceeded"


def test_every_dialect_says_it_in_the_words_that_clients_look_for(server: RunningGateway) -> None:
    message = [{"role": "user", "content": "a" * 20_000}]
    bodies: dict[str, dict[str, Any]] = {
        "v1/chat/completions": {"messages": message},
        "v1/completions": {"prompt": [1] * CONTEXT},
        "v1/embeddings": {"input": "a" * CONTEXT},
        "v1/responses": {"input": message},
        "v1/messages": {"messages": message, "max_tokens": 5},
        "api/chat": {"messages": message},
        "api/generate": {"prompt": "a" * CONTEXT},
    }
    for path, body in bodies.items():
        error = httpx.post(f"{server.url}/{path}", json={"model": "fake"} | body).json()["error"]
        told = error if isinstance(error, str) else error["message"]
        assert told.startswith(f"This model's maximum context length is {CONTEXT} tokens"), path
        assert "prompt is too long" in told, path


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(server: RunningGateway) -> None:
    tokenized = server.gateway.model("fake").prompter.tokenized  # type: ignore[attr-defined]
    told = refusal(server.complete(prompt="a" * 2 * CONTEXT))
    assert told["code"] == "context_length_exceeded"
    assert f"has at least {CONTEXT}, and" in told["message"]
    told = refusal(server.chat(messages=[{"role": "user", "content": "a" * 2 * CONTEXT}]))
    assert (told["code"], told["param"]) == ("context_length_exceeded", "messages")
    assert server.gateway.model("fake").prompter.tokenized == tokenized  # type: ignore[attr-defined]


def test_messages_that_the_template_refuses_are_refused(server: RunningGateway) -> None:
    error = refusal(server.chat(messages=[{"role": "user", "content": "refuse"}]))
    assert error["param"] == "messages"
    assert "roles must alternate" in error["message"]


def test_harmless_fields_pass(server: RunningGateway) -> None:
    harmless = {
        "n": 1,
        "tools": [],
        "tool_choice": "none",
        "logit_bias": {},
        "response_format": {"type": "text"},
        "user": "me",
        "metadata": {"a": "b"},
        "store": False,
        "temperature": None,
        "stop": None,
        "seed": -3,
        "top_p": 0,
    }
    assert server.chat(**harmless).status_code == 200
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert server.chat(messages=[{"role": "developer", "content": parts}]).status_code == 200
    assert server.engine.submitted[-1].prompt == list(b"system:ab;")


def test_unknown_paths_and_methods_get_the_same_shape(server: RunningGateway) -> None:
    assert "/v1/nothing" in refusal(httpx.get(f"{server.url}/v1/nothing"), 404)["message"]
    answer = httpx.get(f"{server.url}/v1/chat/completions")
    assert "POST" in refusal(answer, 405)["message"]
    assert answer.headers["allow"] == "POST"
    refusal(httpx.post(f"{server.url}/health"), 405)


def test_a_declared_body_over_the_limit_is_refused_unread(server: RunningGateway) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 52428800\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/embeddings"])
def test_a_compressed_body_is_refused_by_its_header(server: RunningGateway, path: str) -> None:
    body = gzip.compress(b'{"model": "fake", "messages": []}')
    answer = httpx.post(server.url + path, content=body, headers={"content-encoding": "gzip"})
    assert answer.status_code == 415
    assert "content-encoding" in answer.text and "gzip" in answer.text


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_50_mb_is_refused_and_never_held(server: RunningGateway, chunked: bool) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    piece = b"[" * 2**18
    body = (piece for _ in range(200))
    headers = {} if chunked else {"content-length": str(200 * len(piece))}
    answer = httpx.post(f"{server.url}/v1/chat/completions", content=body, headers=headers, timeout=60)
    error = refusal(answer, 413)
    assert str(server.gateway.max_body_bytes) in error["message"]
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 20 * 1024


def test_what_is_no_http_closes_only_its_own_connection(server: RunningGateway) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(b"\x16\x03\x01 garbage\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400 ")


def test_an_unforeseen_error_shows_a_number_and_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with running() as server:
        del server.engine.submitted  # type: ignore[attr-defined]
        error = refusal(server.chat(), 500)
    number = error["message"].rstrip(".").split()[-1]
    assert any(number in record.getMessage() for record in caplog.records)
