"""The official ollama client against a real server that loads models on demand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")

from system.test_serve import Server, eventually, serving

SMALL, LARGER = "smollm2:135m", "qwen2.5-coder:0.5b"
HELLO: Any = [{"role": "user", "content": "Say hi."}]
GREEDY = {"temperature": 0, "num_predict": 12, "num_ctx": 2048}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def server(model_path: Callable[[str], Path]) -> Iterator[Server]:
    model_path("qwen2.5-coder-0.5b")
    here = model_path("smollm2-135m")
    options = ("--load-on-demand", "--cache-tokens", "4096", "--threads", "2")
    with serving(here, "--model", "smollm2-135m", *options) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> ollama.Client:
    return ollama.Client(server.url)


def loaded(client: ollama.Client) -> dict[str | None, datetime | None]:
    return {model.model: model.expires_at for model in client.ps().models}


def test_a_chat_is_alike_whole_and_in_a_stream(client: ollama.Client) -> None:
    whole = client.chat(SMALL, messages=HELLO, options=GREEDY)
    pieces = list(client.chat(SMALL, messages=HELLO, options=GREEDY, stream=True))
    assert "".join(piece.message.content or "" for piece in pieces) == whole.message.content
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    for last in (whole, pieces[-1]):
        assert (last.model, last.done_reason, last.eval_count) == (SMALL, "length", 12)
        assert last.prompt_eval_count and last.prompt_eval_count > 5
        assert last.total_duration and last.eval_duration and last.total_duration > last.eval_duration > 0


def test_text_is_generated_with_the_template_and_without(client: ollama.Client) -> None:
    templated = client.generate(SMALL, prompt="Say hi.", system="Be brief.", options=GREEDY)
    raw = client.generate(SMALL, prompt="The sky is", raw=True, options=GREEDY)
    assert templated.response and raw.response
    assert templated.prompt_eval_count and raw.prompt_eval_count
    assert templated.prompt_eval_count > 10 > raw.prompt_eval_count
    told = [
        p.response for p in client.generate(SMALL, prompt="The sky is", raw=True, options=GREEDY, stream=True)
    ]
    assert "".join(map(str, told)) == raw.response


def test_logprobs_come_with_the_tokens(client: ollama.Client) -> None:
    whole = client.chat(SMALL, messages=HELLO, options=GREEDY, logprobs=True, top_logprobs=2)
    assert whole.logprobs is not None and len(whole.logprobs) == 12
    assert whole.logprobs[0].top_logprobs is not None
    assert whole.logprobs[0].token == whole.logprobs[0].top_logprobs[0].token
    pieces = client.chat(SMALL, messages=HELLO, options=GREEDY, logprobs=True, top_logprobs=2, stream=True)
    assert [lp for piece in pieces for lp in piece.logprobs or []] == whole.logprobs


def test_another_model_is_loaded_calls_a_tool_and_goes(client: ollama.Client) -> None:
    asked: Any = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
    options = {"temperature": 0, "num_predict": 80}
    whole = client.chat(LARGER, messages=asked, tools=[WEATHER], options=options, keep_alive="1m")
    assert set(loaded(client)) == {"smollm2-135m:latest", "qwen2.5-coder-0.5b:latest"}
    pieces = client.chat(LARGER, messages=asked, tools=[WEATHER], options=options, stream=True, keep_alive=0)
    streamed = [call for piece in pieces for call in piece.message.tool_calls or []]
    assert whole.message.tool_calls is not None
    for calls in (whole.message.tool_calls, streamed):
        assert [(call.function.name, call.function.arguments) for call in calls] == [
            ("get_weather", {"city": "Paris"})
        ]
    eventually(lambda: set(loaded(client)) == {"smollm2-135m:latest"})


def test_an_empty_request_loads_a_model_and_unloads_it(client: ollama.Client) -> None:
    assert client.generate(LARGER, keep_alive="90s").done_reason == "load"
    expires = loaded(client)["qwen2.5-coder-0.5b:latest"]
    assert expires is not None
    assert 60 < (expires - datetime.now(timezone.utc)).total_seconds() <= 90
    assert client.chat(LARGER, messages=[], keep_alive=0).done_reason == "unload"
    assert set(loaded(client)) == {"smollm2-135m:latest"}


def test_models_are_listed_and_described(client: ollama.Client) -> None:
    small = next(model for model in client.list().models if model.model == "smollm2-135m:latest")
    assert small.size == 98_362_432 and small.digest is not None and small.digest.startswith("b179c952")
    assert small.details is not None
    assert (small.details.family, small.details.quantization_level) == ("llama", "Q4_1")
    shown = client.show(LARGER)
    assert shown.capabilities == ["completion", "tools"]
    assert shown.modelinfo is not None and shown.modelinfo["qwen2.context_length"] == 32768
    assert "im_start" in str(shown.template)


def test_a_model_that_is_here_is_pulled_at_once(client: ollama.Client) -> None:
    assert client.pull(SMALL).status == "success"
    told = [progress.status for progress in client.pull(SMALL, stream=True)]
    assert told[0] == "pulling manifest" and told[-1] == "success"


def test_a_pulled_model_is_deleted_when_nobody_uses_it(
    tmp_path: Path,
    model_path: Callable[[str], Path],
    synthetic_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = model_path("smollm2-135m")
    link = tmp_path / "models" / real.name
    link.parent.mkdir()
    link.symlink_to(real)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    with serving(synthetic_model, "--load-on-demand") as server:
        client = ollama.Client(server.url)

        def refused(status: int, name: str) -> None:
            with pytest.raises(ollama.ResponseError) as error:
                client.delete(name)
            assert error.value.status_code == status

        lengthy: Any = [{"role": "user", "content": "Tell me about rivers."}]
        pieces = client.chat(
            SMALL, messages=lengthy, options={"temperature": 0, "num_predict": 2000}, stream=True
        )
        next(pieces)
        refused(409, SMALL)
        refused(403, "synthetic")
        refused(404, "nope")
        pieces.close()  # type: ignore[attr-defined]

        def deleted() -> bool:
            try:
                return client.delete(SMALL).status == "success"
            except ollama.ResponseError as error:
                assert error.status_code == 409
                return False

        eventually(deleted, seconds=10)
        assert not link.is_symlink() and real.exists()
        assert set(loaded(client)) == {"synthetic:latest"}
        refused(404, SMALL)
        with pytest.raises(ollama.ResponseError, match="does not exist"):
            client.chat(SMALL, messages=HELLO)


def test_errors_come_in_the_clients_own_type(client: ollama.Client) -> None:
    def refused(status: int, words: str, ask: Callable[[], object]) -> None:
        with pytest.raises(ollama.ResponseError, match=words) as error:
            ask()
        assert error.value.status_code == status

    refused(404, "does not exist", lambda: client.chat("nope", messages=HELLO))
    refused(404, "does not exist", lambda: client.show("nope"))
    refused(404, "no model", lambda: client.pull("nope"))
    refused(404, "does not exist", lambda: client.generate("nope", keep_alive=0))
    refused(400, "keep_alive", lambda: client.chat(SMALL, messages=HELLO, keep_alive="soon"))
    refused(400, "images", lambda: client.generate(SMALL, prompt="What is it?", images=["aGVsbG8="]))
    refused(400, "temperature", lambda: client.chat(SMALL, messages=HELLO, options={"temperature": -1}))


def test_clients_find_out_that_the_server_is_there(server: Server) -> None:
    assert httpx.get(server.url).text == "Ollama is running"
    assert httpx.head(server.url).status_code == 200
    assert httpx.get(f"{server.url}/api/version").json()["version"]
    wrong = httpx.get(f"{server.url}/api/nothing")
    assert wrong.status_code == 404 and isinstance(wrong.json()["error"], str)
    names = [model["id"] for model in httpx.get(f"{server.url}/v1/models").json()["data"]]
    assert names[0] == "smollm2-135m" and "qwen2.5-coder-0.5b" in names


def test_the_command_line_lists_what_is_loaded(server: Server, client: ollama.Client) -> None:
    client.generate(LARGER, keep_alive=60)
    command = [sys.executable, "-m", "headrace", "ps", "--url", server.url]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    told = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30).stdout
    larger = next(line for line in told.splitlines() if line.startswith("qwen2.5-coder-0.5b "))
    assert re.search(r" MiB +4096  for (5\d|60) s unless used$", larger)


def test_embeddings_are_vectors_of_length_one(client: ollama.Client) -> None:
    answer = client.embed(SMALL, ["The sky is blue.", "Hi"])
    assert len(answer.embeddings) == 2
    assert all(abs(sum(x * x for x in vector) - 1) < 1e-3 for vector in answer.embeddings)
    single = client.embeddings(SMALL, "Hi").embedding
    assert list(single) == list(answer.embeddings[1])
