"""Files and batches over HTTP, as the official client uses them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.fake_engine import ANSWER
from gateway.running import RunningGateway, running
from headrace.gateway.callers import Callers

Client = openai.OpenAI


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running(data_dir=tmp_path_factory.mktemp("data")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def client(server: RunningGateway) -> Iterator[Client]:
    with connect(server) as client:
        yield client


def connect(server: RunningGateway) -> Client:
    return Client(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def chat_line(custom_id: str, **body: Any) -> dict[str, Any]:
    message = {"role": "user", "content": f"Hi, {custom_id}"}
    body = {"model": "fake", "messages": [message], "max_tokens": 5} | body
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def jsonl(lines: list[Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def upload(client: Client, content: bytes) -> str:
    return client.files.create(file=("../../in.jsonl", content), purpose="batch").id


def begin(client: Client, lines: list[Any], endpoint: Any = "/v1/chat/completions") -> Any:
    file = upload(client, jsonl(lines))
    return client.batches.create(
        input_file_id=file, endpoint=endpoint, completion_window="24h", metadata={"for": "test"}
    )


def wait(client: Client, batch_id: str, until: Callable[[Any], bool] | None = None) -> Any:
    until = until or (lambda batch: batch.status in ("completed", "failed", "cancelled", "expired"))
    deadline = time.monotonic() + 20
    while not until(batch := client.batches.retrieve(batch_id)):
        assert time.monotonic() < deadline, batch
        time.sleep(0.02)
    return batch


def results(client: Client, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    lines = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    assert len({line["custom_id"] for line in lines}) == len(lines)
    return {line["custom_id"]: line for line in lines}


def test_a_file_is_kept_listed_and_deleted(client: Client) -> None:
    content = jsonl([chat_line("a")])
    file = client.files.create(file=("my file.jsonl", content), purpose="batch")
    assert (file.filename, file.bytes, file.purpose) == ("my file.jsonl", len(content), "batch")
    assert client.files.retrieve(file.id) == file
    assert file.id in [each.id for each in client.files.list()]
    assert client.files.content(file.id).content == content
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_a_batch_is_answered_line_by_line(client: Client) -> None:
    batch = begin(client, [chat_line(f"r{i}") for i in range(40)])
    assert batch.status == "validating"
    ended = wait(client, batch.id)
    assert (ended.status, ended.metadata) == ("completed", {"for": "test"})
    assert (ended.request_counts.total, ended.request_counts.completed) == (40, 40)
    assert ended.in_progress_at and ended.finalizing_at and ended.completed_at
    assert ended.error_file_id is None
    answers = results(client, ended.output_file_id)
    assert answers.keys() == {f"r{i}" for i in range(40)}
    first = answers["r0"]
    assert first["error"] is None
    assert first["response"]["status_code"] == 200
    assert first["response"]["body"]["choices"][0]["message"]["content"] == ANSWER[:5]


def test_requests_that_are_refused_come_in_the_file_of_errors(client: Client) -> None:
    batch = wait(client, begin(client, [chat_line("good"), chat_line("bad", temperature=9)]).id)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
    assert results(client, batch.output_file_id).keys() == {"good"}
    bad = results(client, batch.error_file_id)["bad"]
    assert bad["response"]["status_code"] == 400
    assert bad["response"]["body"]["error"]["param"] == "temperature"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("nonsense", "invalid_json_line"),
        (chat_line("x") | {"url": "/v1/completions"}, "mismatched_endpoint"),
        (chat_line("x") | {"method": "GET"}, "invalid_method"),
        (chat_line("x", stream=True), "stream_not_supported"),
        (chat_line("good"), "duplicate_custom_id"),
        (chat_line(""), "invalid_json_line"),
    ],
)
def test_a_wrong_line_fails_the_batch_before_it_runs(client: Client, line: Any, code: str) -> None:
    batch = wait(client, begin(client, [chat_line("good"), line]).id)
    assert batch.status == "failed"
    assert [(error.line, error.code) for error in batch.errors.data] == [(2, code)]


def test_every_endpoint_that_takes_batches_answers_them(client: Client) -> None:
    bodies: dict[str, Any] = {"embeddings": {"input": "Hi"}, "completions": {"prompt": "Hi"}}
    for endpoint, body in (bodies | {"responses": {"input": "Hi", "max_output_tokens": 3}}).items():
        endpoint = f"/v1/{endpoint}"
        line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": "fake"} | body}
        batch = wait(client, begin(client, [line], endpoint).id)
        assert results(client, batch.output_file_id)["a"]["response"]["status_code"] == 200


def test_batches_are_listed_page_by_page(client: Client) -> None:
    made = {begin(client, [chat_line("a")]).id for _ in range(3)}
    listed = [batch.id for batch in client.batches.list(limit=2)]
    assert made <= set(listed)
    assert len(listed) == len(set(listed))


def test_a_cancelled_batch_keeps_what_it_has(tmp_path: Path) -> None:
    with running(data_dir=tmp_path, step_seconds=0.05) as server, connect(server) as client:
        batch = begin(client, [chat_line(f"r{i}") for i in range(400)])
        wait(client, batch.id, lambda batch: batch.request_counts.completed > 0)
        with pytest.raises(openai.ConflictError, match="cancel it first"):
            client.files.delete(batch.input_file_id)
        assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
        ended = wait(client, batch.id)
        assert ended.status == "cancelled"
        answers, errors = results(client, ended.output_file_id), results(client, ended.error_file_id)
        assert len(answers) == ended.request_counts.completed
        assert answers.keys() | errors.keys() == {f"r{i}" for i in range(400)}
        assert {line["error"]["code"] for line in errors.values()} == {"batch_cancelled"}


def test_a_batch_goes_on_after_a_restart(tmp_path: Path) -> None:
    with running(data_dir=tmp_path, step_seconds=0.05) as server, connect(server) as client:
        batch = begin(client, [chat_line(f"r{i}") for i in range(120)])
        before = wait(client, batch.id, lambda batch: batch.request_counts.completed >= 16)
        assert before.status == "in_progress"
    half_written = next((tmp_path / "batches").glob("*.output"))
    with half_written.open("ab") as file:
        file.write(b'{"id":"batch_req_12')
    with running(data_dir=tmp_path) as server, connect(server) as client:
        ended = wait(client, batch.id)
        assert ended.status == "completed"
        assert ended.request_counts.completed == 120
        assert results(client, ended.output_file_id).keys() == {f"r{i}" for i in range(120)}
        assert len(server.engine.submitted) < 120


def test_an_expired_batch_tells_what_it_did_not_answer(tmp_path: Path) -> None:
    with running(data_dir=tmp_path, step_seconds=0.05) as server, connect(server) as client:
        batch = begin(client, [chat_line(f"r{i}") for i in range(200)])
        wait(client, batch.id, lambda batch: batch.request_counts.completed > 0)
    record = tmp_path / "batches" / f"{batch.id}.json"
    kept = json.loads(record.read_bytes())
    kept["batch"]["expires_at"] = int(time.time()) - 1
    record.write_text(json.dumps(kept))
    with running(data_dir=tmp_path) as server, connect(server) as client:
        ended = wait(client, batch.id)
        assert ended.status == "expired"
        answers, errors = results(client, ended.output_file_id), results(client, ended.error_file_id)
        assert answers
        assert len(answers) + len(errors) == 200
        assert {line["error"]["code"] for line in errors.values()} == {"batch_expired"}


def test_requests_of_a_batch_are_the_least_urgent(server: RunningGateway, client: Client) -> None:
    wait(client, begin(client, [chat_line("urgent", priority=-5)]).id)
    assert server.engine.submitted[-1].priority > 1_000_000


def test_a_second_server_leaves_the_folder_alone(server: RunningGateway, tmp_path: Path) -> None:
    with (
        running(data_dir=tmp_path),
        running(data_dir=tmp_path) as second,
        connect(second) as client,
        pytest.raises(openai.InternalServerError, match="another server uses their folder"),
    ):
        client.files.list()


def test_a_server_without_a_folder_says_so() -> None:
    with (
        running() as server,
        connect(server) as client,
        pytest.raises(openai.InternalServerError, match="keeps no files"),
    ):
        client.batches.list()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"content": b"{}"}, "multipart/form-data"),
        ({"files": {"file": b"{}"}}, "purpose"),
        ({"files": {"file": b"{}"}, "data": {"purpose": "fine-tune"}}, "purpose"),
        ({"files": {"other": b"{}"}, "data": {"purpose": "batch"}}, "file"),
        ({"files": [("file", b"a"), ("file", b"b")], "data": {"purpose": "batch"}}, "Too many files"),
        (
            {"content": b"--x\r\nnonsense", "headers": {"content-type": "multipart/form-data; boundary=x"}},
            "file",
        ),
        ({"content": b"", "headers": {"content-type": "multipart/form-data"}}, "boundary"),
    ],
)
def test_a_wrong_upload_is_refused(server: RunningGateway, arguments: dict[str, Any], told: str) -> None:
    answer = httpx.post(f"{server.url}/v1/files", **arguments)
    assert answer.status_code in (400, 415), answer.text
    assert told in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "path", ["files/../batches", "files/%2e%2e%2fetc", "batches/batch_x", "files/file-0"]
)
def test_ids_are_no_paths(server: RunningGateway, path: str) -> None:
    assert httpx.get(f"{server.url}/v1/{path}").status_code in (200, 404)


@pytest.mark.parametrize(
    ("query", "field"),
    [("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=x", "after")],
)
def test_a_wrong_query_is_refused(server: RunningGateway, query: str, field: str) -> None:
    answer = httpx.get(f"{server.url}/v1/files?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_files_and_batches_belong_to_the_key_that_made_them(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[keys.a]\nkey = "key-of-a-0123456789"\n[keys.b]\nkey = "key-of-b-0123456789"\n')
    with running(data_dir=tmp_path / "data", callers=Callers(keys)) as server:
        a, b = (connect(server).with_options(api_key=f"key-of-{name}-0123456789") for name in "ab")
        batch = begin(a, [chat_line("x")])
        assert wait(a, batch.id).request_counts.completed == 1
        assert not list(b.files.list()) and not list(b.batches.list())
        for look in (b.batches.retrieve, b.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                look(batch.id)
        for take in (b.files.content, b.files.delete):
            with pytest.raises(openai.NotFoundError):
                take(batch.input_file_id)
        with pytest.raises(openai.NotFoundError):
            b.batches.create(
                input_file_id=batch.input_file_id, endpoint="/v1/completions", completion_window="24h"
            )
