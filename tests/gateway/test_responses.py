"""What the official client of OpenAI sees of POST /v1/responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
import openai
import pytest

from gateway.fake_engine import ANSWER
from gateway.running import RunningGateway, running
from gateway.tagged_answers import answering
from headrace.gateway.responses.requests import ResponsesRequest
from headrace.gateway.responses.translate import chat_request

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
CALLING = '<think>Rain?</think>I look.<call:weather>{"city": "Graz"}</call>\n<call:weather>{}</call>'


def client_of(server: RunningGateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@contextmanager
def talking(answer: str, **options: Any) -> Iterator[tuple[openai.OpenAI, RunningGateway]]:
    with answering(answer, **options) as server, client_of(server) as client:
        yield client, server


@pytest.fixture(scope="module")
def client(server: RunningGateway) -> Iterator[openai.OpenAI]:
    with client_of(server) as client:
        yield client


def rendered(server: RunningGateway) -> dict[str, Any]:
    words: Any = server.gateway.models["fake"].prompter
    return words.rendered  # type: ignore[no-any-return]


def post(server: RunningGateway, **fields: Any) -> httpx.Response:
    body = {"model": "fake", "input": "Hi", "max_output_tokens": 4} | fields
    return httpx.post(f"{server.url}/v1/responses", json=body, timeout=10)


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The stream's events, after a check of their names and numbers."""
    events = []
    for number, block in enumerate(answer.text.removesuffix("\n\n").split("\n\n")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}" and event.pop("sequence_number") == number
        events.append(event)
    return events


def test_a_text_is_answered_with_a_message(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="fake", input="Hi", max_output_tokens=5, metadata={"a": "b"})
    assert answer.id.startswith("resp_") and answer.object == "response"
    assert answer.output_text == ANSWER[:5]
    assert [item.type for item in answer.output] == ["message"]
    assert answer.status == answer.output[0].status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert (answer.model, answer.metadata, answer.temperature, answer.top_p) == ("fake", {"a": "b"}, 1, 1)
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len("user:Hi;"), 5)
    assert answer.usage.total_tokens == answer.usage.input_tokens + 5


def test_an_answer_that_ends_by_itself_is_complete() -> None:
    with talking("Yes.", cached_tokens=3) as (client, _):
        answer = client.responses.create(model="fake", input="Hi")
    assert (answer.status, answer.incomplete_details, answer.error) == ("completed", None, None)
    assert answer.output_text == "Yes."
    assert answer.usage.input_tokens_details.cached_tokens == 3


def test_reasoning_text_and_calls_are_items_of_their_own() -> None:
    with talking(CALLING) as (client, _):
        answer = client.responses.create(model="fake", input="Hi", tools=[WEATHER])
    reasoning, message, first, second = answer.output
    assert (reasoning.type, reasoning.content[0].text) == ("reasoning", "Rain?")
    assert (message.type, message.content[0].text) == ("message", "I look.")
    assert (first.type, first.name, first.arguments) == ("function_call", "weather", '{"city": "Graz"}')
    assert (second.type, second.arguments) == ("function_call", "{}")
    assert first.call_id != second.call_id
    assert answer.usage.output_tokens_details.reasoning_tokens == len("Rain?")
    assert [tool.name for tool in answer.tools] == ["weather"]


def test_the_stream_helper_comes_to_the_same_response() -> None:
    with talking(CALLING) as (client, _):
        whole = client.responses.create(model="fake", input="Hi", tools=[WEATHER])
        with client.responses.stream(model="fake", input="Hi", tools=[WEATHER]) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            streamed = stream.get_final_response()
    assert text == "I look."
    assert [item.type for item in streamed.output] == [item.type for item in whole.output]
    assert streamed.output[2].arguments == whole.output[2].arguments
    assert (streamed.output_text, streamed.usage, streamed.status) == (text, whole.usage, "completed")


def without_ids(thing: Any) -> Any:
    if isinstance(thing, dict):
        ids = ("id", "item_id", "call_id")
        return {key: without_ids(value) for key, value in thing.items() if key not in ids}
    return [without_ids(value) for value in thing] if isinstance(thing, list) else thing


def test_a_stream_is_exactly_these_events() -> None:
    with answering("<think>A</think>B<call:f>{}</call>") as server:
        events = events_of(post(server, stream=True, max_output_tokens=100))
    assert [(e["response"]["status"], e["response"]["output"]) for e in events[:2]] == [
        ("in_progress", [])
    ] * 2
    assert [item["type"] for item in events[-1]["response"]["output"]] == [
        "reasoning",
        "message",
        "function_call",
    ]
    assert events[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] == 1
    ids = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
    named = [event.get("item_id") or event["item"]["id"] for event in events[2:-1]]
    assert list(dict.fromkeys(named)) == ids and [one.split("_")[0] for one in ids] == ["rs", "msg", "fc"]

    def part(kind: str, text: str) -> dict[str, Any]:
        more = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
        return {"type": kind, "text": text} | more

    def item(kind: str, status: str, **fields: Any) -> dict[str, Any]:
        return {"type": kind, "status": status} | fields

    def about(kind: str, index: int, **fields: Any) -> dict[str, Any]:
        return {"type": f"response.{kind}", "output_index": index} | fields

    def written(index: int, kind: str, letter: str, item_type: str, **fields: Any) -> list[dict[str, Any]]:
        logprobs = {"logprobs": []} if kind == "output_text" else {}
        begun = item(item_type, "in_progress", content=[], **fields)
        done = item(item_type, "completed", content=[part(kind, letter)], **fields)
        return [
            about("output_item.added", index, item=begun),
            about("content_part.added", index, content_index=0, part=part(kind, "")),
            about(f"{kind}.delta", index, content_index=0, delta=letter, **logprobs),
            about(f"{kind}.done", index, content_index=0, text=letter, **logprobs),
            about("content_part.done", index, content_index=0, part=part(kind, letter)),
            about("output_item.done", index, item=done),
        ]

    call = {"name": "f", "arguments": "{}"}
    assert without_ids(events[2:-1]) == [
        *written(0, "reasoning_text", "A", "reasoning", summary=[]),
        *written(1, "output_text", "B", "message", role="assistant"),
        about("output_item.added", 2, item=item("function_call", "in_progress", name="f", arguments="")),
        about("function_call_arguments.delta", 2, delta="{"),
        about("function_call_arguments.delta", 2, delta="}"),
        about("function_call_arguments.done", 2, **call),
        about("output_item.done", 2, item=item("function_call", "completed", **call)),
    ]
    assert [events[0]["type"], events[1]["type"]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == "response.completed"


def test_a_stream_that_is_cut_short_ends_as_incomplete(server: RunningGateway) -> None:
    last = events_of(post(server, stream=True))[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_a_stream_that_breaks_off_ends_as_failed() -> None:
    with running() as server:
        server.engine.dies_after = 3
        last = events_of(post(server, stream=True, max_output_tokens=100))[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["code"] == "server_error"
    assert last["response"]["output"][0]["content"][0]["text"] == ANSWER[:3]


def test_a_conversation_reaches_the_template_in_its_own_words() -> None:
    items: Any = [
        {"role": "developer", "content": "brief"},
        {"role": "user", "content": [{"type": "input_text", "text": "A"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "T"}],
        },
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Graz"}'},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "wet"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "dry"}]},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Wet.", "annotations": []}],
        },
        {"role": "user", "content": "So?"},
    ]
    with talking("!") as (client, server):
        client.responses.create(
            model="fake", input=items, instructions="Be", tools=[WEATHER], reasoning={"effort": "low"}
        )
        given = rendered(server)

    def call(number: int, **arguments: str) -> dict[str, Any]:
        function = {"name": "weather", "arguments": arguments}
        return {"id": f"c{number}", "type": "function", "function": function}

    assert given["messages"] == [
        {"role": "system", "content": "Be\n\nbrief"},
        {"role": "user", "content": "A"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "T",
            "tool_calls": [call(1, city="Graz"), call(2)],
        },
        {"role": "tool", "content": "wet", "name": "weather", "tool_call_id": "c1"},
        {"role": "tool", "content": "dry", "name": "weather", "tool_call_id": "c2"},
        {"role": "assistant", "content": "Wet."},
        {"role": "user", "content": "So?"},
    ]
    assert given["tools"][0]["function"]["parameters"] == WEATHER["parameters"]
    assert given["extra"] == {"reasoning_effort": "low"}


def test_an_answer_can_be_given_back_as_it_came() -> None:
    with talking(CALLING) as (client, server):
        first = client.responses.create(model="fake", input="Hi", tools=[WEATHER])
        outputs: Any = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "wet"}
            for item in first.output
            if item.type == "function_call"
        ]
        client.responses.create(model="fake", input=[*first.output, *outputs], tools=[WEATHER])
        roles = [message["role"] for message in rendered(server)["messages"]]
    assert roles == ["assistant", "tool", "tool"]


def test_parameters_reach_the_worker(server: RunningGateway) -> None:
    assert post(server, temperature=0.5, top_p=0.9, top_k=7, seed=3).status_code == 200
    sent = server.engine.submitted[-1]
    assert (sent.sampling.temperature, sent.sampling.top_p, sent.sampling.top_k) == (0.5, 0.9, 7)
    assert (sent.sampling.seed, sent.max_tokens) == (3, 4)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": []}, "input"),
        ({"input": "x" * 600}, "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].image_url",
        ),
        (
            {"input": [{"role": "system", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]},
            "input",
        ),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]},
            "input[0].arguments",
        ),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [WEATHER]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "no"}}, "tool_choice.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ],
)
def test_what_is_wrong_is_refused_by_the_name_of_its_field(
    server: RunningGateway, fields: dict[str, Any], param: str
) -> None:
    answer = post(server, **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    if param != "input":
        assert f"'{param}'" in answer.json()["error"]["message"]


def test_what_asks_for_nothing_special_is_let_through(server: RunningGateway) -> None:
    neutral = {"store": True, "background": False, "truncation": "disabled", "top_logprobs": 0}
    more = {"include": ["reasoning.encrypted_content"], "text": {"format": {"type": "text"}}}
    assert post(server, **neutral, **more).status_code == 200


def test_errors_arrive_as_the_clients_own_types(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'other' does not exist"):
        client.responses.create(model="other", input="Hi")
    with pytest.raises(openai.BadRequestError) as wrong:
        client.responses.create(model="fake", input="Hi", temperature=9)
    assert wrong.value.param == "temperature"


@pytest.mark.parametrize(
    ("choice", "theirs"),
    [
        ("required", "required"),
        ({"type": "function", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}),
    ],
)
def test_a_choice_of_tools_is_that_of_a_chat(choice: Any, theirs: Any) -> None:
    body = {"model": "m", "input": "Hi", "tools": [WEATHER], "tool_choice": choice}
    chat = chat_request(msgspec.convert(body, ResponsesRequest))
    assert msgspec.to_builtins(chat.tool_choice) == theirs


def test_a_form_is_that_of_a_chat() -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    chat = chat_request(
        msgspec.convert({"model": "m", "input": "Hi", "text": {"format": form}}, ResponsesRequest)
    )
    assert chat.response_format is not None and chat.response_format.type == "json_schema"
    assert chat.response_format.json_schema is not None
    assert chat.response_format.json_schema.schema == {"type": "object"}
