"""Clients that leave, queues that fill, workers that die."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import httpx
import pytest

from gateway.fake_engine import ANSWER
from gateway.running import RunningGateway, running
from headrace.fleet import State
from headrace.models.sampling_defaults import SamplingDefaults

BODY = {"model": "fake", "prompt": "Hi", "max_tokens": 400}


def eventually(check: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.005)


@contextlib.contextmanager
def raw_request(server: RunningGateway, **fields: object) -> Iterator[socket.socket]:
    """A connection on which a request has been written."""
    body = json.dumps(BODY | fields).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(head + body)
        yield raw


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["one", ["one", "two"]])
def test_a_client_that_goes_away_cancels_its_request(stream: bool, prompt: object) -> None:
    """Within a quarter of a second, in one of three cases: the machine may be busy with something else."""
    count = 1 if isinstance(prompt, str) else 2

    def noticed_after(server: RunningGateway) -> float:
        submitted, cancelled = len(server.engine.submitted), len(server.engine.cancelled)
        with raw_request(server, stream=stream, prompt=prompt) as raw:
            eventually(lambda: len(server.engine.submitted) == submitted + count)
            if stream:
                assert raw.recv(10).startswith(b"HTTP/1.1 2")
        left = time.monotonic()
        eventually(lambda: len(server.engine.cancelled) == cancelled + count)
        return time.monotonic() - left

    with running(step_seconds=0.01) as server:
        assert any(noticed_after(server) < 0.25 for _ in range(3))
        eventually(lambda: server.gateway.admission.admitted == 0)
        assert server.gateway.admission.waiting == 0
        eventually(lambda: 'status="499"' in httpx.get(f"{server.url}/metrics").text)
        assert server.chat().status_code == 200


def test_a_client_that_leaves_before_its_body_is_complete_is_forgotten() -> None:
    with running() as server:
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
        assert server.chat().status_code == 200
        assert len(server.engine.submitted) == 1


def test_a_connection_serves_one_request_after_another(server: RunningGateway) -> None:
    cancelled = len(server.engine.cancelled)
    with httpx.Client() as client:
        for stream in (False, True) * 20:
            answer = client.post(
                f"{server.url}/v1/completions", json=BODY | {"max_tokens": 2, "stream": stream}
            )
            assert answer.status_code == 200
    assert len(server.engine.cancelled) == cancelled


def test_a_full_queue_answers_429_and_when_to_come_back() -> None:
    with running(max_queue=2) as server, ThreadPoolExecutor(2) as pool:
        server.on_loop(server.engine.held.clear)
        waiting = [pool.submit(server.complete) for _ in range(2)]
        eventually(lambda: server.gateway.admission.waiting == 2)
        refused = server.complete()
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 1
        server.on_loop(server.engine.held.set)
        assert [answer.result().status_code for answer in waiting] == [200, 200]
        assert server.complete().status_code == 200


def test_a_running_request_takes_no_place_in_the_queue() -> None:
    with running(max_queue=1, step_seconds=0.005) as server, raw_request(server, stream=True) as raw:
        assert raw.recv(10)
        assert server.gateway.admission.admitted == 1
        assert server.complete(max_tokens=1).status_code == 200


def test_a_worker_that_dies_before_the_first_token_gives_503() -> None:
    with running() as server:
        server.engine.dies_after = 0
        for stream in (False, True):
            answer = server.chat(stream=stream)
            assert answer.status_code == 503
            assert "the worker died" in answer.json()["error"]["message"]
            assert answer.headers["retry-after"]


def test_a_worker_that_dies_in_a_stream_ends_it_with_an_error_event() -> None:
    with running() as server:
        server.engine.dies_after = 3
        for prompt in ("one", ["one", "two"]):
            answer = server.complete(stream=True, prompt=prompt)
            events = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
            assert "the worker died" in events[-1]["error"]["message"]
            assert "[DONE]" not in answer.text
        assert server.complete().status_code == 503
        assert server.gateway.admission.admitted == 0


def test_a_slow_reader_gets_everything() -> None:
    with running() as server, raw_request(server, stream=True, logprobs=20) as raw:
        time.sleep(0.3)
        received = b""
        while b"[DONE]" not in received:
            received += raw.recv(1000)
        lines = [line for line in received.decode().splitlines() if line.startswith('data: {"id"')]
        texts = [json.loads(line[6:])["choices"][0]["text"] for line in lines]
        assert "".join(texts) == (ANSWER * 20)[:400]


def test_a_request_without_a_seed_is_given_a_random_one(server: RunningGateway) -> None:
    for _ in range(2):
        server.complete()
    first, second = server.engine.submitted[-2:]
    assert first.sampling.seed != second.sampling.seed
    server.complete(seed=-1)
    assert server.engine.submitted[-1].sampling.seed == 2**64 - 1


def test_parameters_reach_the_worker(server: RunningGateway) -> None:
    sampling = {"temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.2}
    penalties = {"presence_penalty": -1, "frequency_penalty": 0.25}
    server.complete(prompt=[1, 2, 3], **sampling, **penalties)
    sent = server.engine.submitted[-1].sampling
    assert sampling | penalties == {name: getattr(sent, name) for name in sampling | penalties}
    stops = {"stop": ["x", "y"], "stop_token_ids": [9], "ignore_eos": True}
    server.complete(prompt=[1, 2, 3], cache_salt="s", priority=-4, **stops)
    sent = server.engine.submitted[-1]
    assert sent.prompt == [1, 2, 3]
    assert (sent.stop, sent.stop_token_ids, sent.ignore_eos) == (["x", "y"], [9], True)
    assert (sent.salt, sent.priority, sent.max_tokens, sent.top_logprobs) == ("s", -4, 8, -1)


def test_what_a_request_leaves_out_is_as_the_models_maker_recommends() -> None:
    defaults = SamplingDefaults(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.1)
    own = {"temperature": 0, "top_p": 1, "top_k": 0, "repetition_penalty": 1}
    with running(sampling=defaults) as server:
        assert server.complete().status_code == 200
        for field, value in own.items():
            assert server.complete(**{field: value}).status_code == 200
        sent = [submit.sampling for submit in server.engine.submitted]
        listed = httpx.get(f"{server.url}/v1/models/fake").json()
    wanted = [asdict(defaults), *(asdict(defaults) | {field: value} for field, value in own.items())]
    assert [{name: getattr(params, name) for name in own} for params in sent] == wanted
    assert listed["sampling_defaults"] == asdict(defaults)


def test_without_a_recommendation_openais_defaults_hold(server: RunningGateway) -> None:
    server.complete()
    sent = server.engine.submitted[-1].sampling
    assert (sent.temperature, sent.top_p, sent.top_k, sent.repetition_penalty) == (1, 1, 0, 1)


def test_max_tokens_is_the_rest_of_the_context_unless_given(server: RunningGateway) -> None:
    for given in (None, 10**30):
        server.complete(prompt=[1] * 500, max_tokens=given)
        assert server.engine.submitted[-1].max_tokens == 12


def test_metrics_tell_what_happened() -> None:
    with running(cached_tokens=2) as server:
        server.complete(max_tokens=3)
        server.complete(prompt=[999])
        text = httpx.get(f"{server.url}/metrics").text
    for line in (
        'headrace_requests_total{endpoint="/v1/completions",status="200"} 1.0',
        'headrace_requests_total{endpoint="/v1/completions",status="400"} 1.0',
        'headrace_prompt_tokens_total{model="fake"} 2.0',
        'headrace_generated_tokens_total{model="fake"} 3.0',
        'headrace_time_to_first_token_seconds_count{model="fake"} 1.0',
        'headrace_time_per_output_token_seconds_count{model="fake"} 1.0',
        'headrace_running_requests{model="fake",replica="worker-0"} 1.0',
        "headrace_queue_requests{",
        "headrace_cache_blocks_used{",
        "headrace_prefix_hit_tokens_total{",
    ):
        assert line in text


def test_health_follows_the_workers() -> None:
    with running() as server:
        assert httpx.get(f"{server.url}/health").json()["status"] == "ok"
        server.engine.state = State.RESTARTING
        answer = httpx.get(f"{server.url}/health")
        assert answer.status_code == 503
        assert answer.json()["workers"][0]["state"] == "restarting"
