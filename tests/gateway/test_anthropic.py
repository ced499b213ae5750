"""What the official client of Anthropic sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx
import msgspec
import pytest

from gateway.fake_engine import ANSWER
from gateway.running import RunningGateway, running
from gateway.tagged_answers import answering
from headrace.gateway.anthropic.requests import MessagesRequest
from headrace.gateway.anthropic.translate import chat_request
from headrace.gateway.callers import Callers
from headrace.gateway.keys import environment_key

HELLO: Any = [{"role": "user", "content": "Hi"}]
WEATHER: Any = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALLING = '<think>Rain?</think>I look. <call:weather>{"city": "Graz"}</call>\n<call:weather>{"city"'


def client_of(server: RunningGateway) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


@contextmanager
def talking(answer: str, **options: Any) -> Iterator[tuple[anthropic.Anthropic, RunningGateway]]:
    with answering(answer, **options) as server, client_of(server) as client:
        yield client, server


@pytest.fixture(scope="module")
def client(server: RunningGateway) -> Iterator[anthropic.Anthropic]:
    with client_of(server) as client:
        yield client


def rendered(server: RunningGateway) -> dict[str, Any]:
    words: Any = server.gateway.models["fake"].prompter
    return words.rendered  # type: ignore[no-any-return]


def post(server: RunningGateway, **fields: Any) -> httpx.Response:
    body = {"model": "fake", "max_tokens": 4, "messages": HELLO} | fields
    return httpx.post(f"{server.url}/v1/messages", json=body, timeout=10)


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The stream's events, after a check that each is named as it says it is."""
    events = []
    for block in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def test_a_message_has_content_reason_and_usage(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="fake", messages=HELLO, max_tokens=5)
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", "fake")
    assert [block.model_dump(exclude_none=True) for block in message.content] == [
        {"type": "text", "text": ANSWER[:5]}
    ]
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    assert (message.usage.input_tokens, message.usage.output_tokens) == (len("user:Hi;"), 5)
    assert message.usage.cache_read_input_tokens == 0


def test_cached_tokens_are_counted_apart() -> None:
    with talking("Yes.", cached_tokens=3) as (client, _):
        usage = client.messages.create(model="fake", messages=HELLO, max_tokens=9).usage
        with client.messages.stream(model="fake", messages=HELLO, max_tokens=9) as stream:
            streamed = stream.get_final_message().usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (len("user:Hi;") - 3, 3)
    assert streamed == usage


def test_an_answer_that_ends_by_itself_ends_the_turn() -> None:
    with talking("Yes.") as (client, _):
        message = client.messages.create(model="fake", messages=HELLO, max_tokens=50)
    assert message.stop_reason == "end_turn"


def test_the_stop_sequence_that_was_met_is_told(client: anthropic.Anthropic) -> None:
    asked: Any = {"model": "fake", "messages": HELLO, "max_tokens": 50, "stop_sequences": ["zz", "flows"]}
    message = client.messages.create(**asked)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "flows")
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert (streamed.stop_reason, streamed.stop_sequence) == ("stop_sequence", "flows")


def test_a_full_context_is_told_from_max_tokens(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="fake", messages=HELLO, max_tokens=5000)
    assert message.stop_reason == "model_context_window_exceeded"


def test_thinking_text_and_calls_are_blocks_of_their_own() -> None:
    with talking(CALLING) as (client, _):
        message = client.messages.create(model="fake", messages=HELLO, max_tokens=200, tools=[WEATHER])
    thinking, text, whole, cut = message.content
    assert thinking.type == "thinking" and thinking.thinking == "Rain?"
    assert text.type == "text" and text.text.strip() == "I look."
    assert whole.type == "tool_use" and cut.type == "tool_use"
    assert (whole.name, whole.input) == ("weather", {"city": "Graz"})
    assert cut.input == {}
    assert whole.id != cut.id
    assert message.stop_reason == "tool_use"


def test_the_stream_helper_comes_to_the_same_message() -> None:
    with talking(CALLING.removesuffix('\n<call:weather>{"city"')) as (client, _):
        asked: Any = {"model": "fake", "messages": HELLO, "max_tokens": 200, "tools": [WEATHER]}
        message = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            text = "".join(stream.text_stream)
            streamed = stream.get_final_message()
    assert text == "I look. "
    unlike = {"id": True, "content": {"__all__": {"id"}}}
    assert streamed.model_dump(exclude=unlike) == message.model_dump(exclude=unlike)  # type: ignore[arg-type]


def test_a_stream_is_exactly_these_events() -> None:
    with answering('<think>A</think>B<call:f>{}</call>\n<call:g>{"x"') as server:
        events = events_of(post(server, stream=True, max_tokens=100))
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["input_tokens"]) == ([], None, 8)
    shown = [
        (event["type"], event.get("index"), event.get("delta") or event.get("content_block"))
        for event in events
    ]
    ids = [block.pop("id") for _, _, block in shown if block and block.get("type") == "tool_use"]
    assert len(set(ids)) == 2 and all(one.startswith("toolu_") for one in ids)

    def delta(index: int, kind: str, **fields: str) -> tuple[str, int, dict[str, str]]:
        return "content_block_delta", index, {"type": kind} | fields

    def call(name: str) -> dict[str, Any]:
        return {"type": "tool_use", "name": name, "input": {}}

    assert shown == [
        ("message_start", None, None),
        ("content_block_start", 0, {"type": "thinking", "thinking": "", "signature": ""}),
        delta(0, "thinking_delta", thinking="A"),
        ("content_block_stop", 0, None),
        ("content_block_start", 1, {"type": "text", "text": ""}),
        delta(1, "text_delta", text="B"),
        ("content_block_stop", 1, None),
        ("content_block_start", 2, call("f")),
        *(delta(2, "input_json_delta", partial_json=letter) for letter in "{}"),
        ("content_block_stop", 2, None),
        ("content_block_start", 3, call("g")),
        *(delta(3, "input_json_delta", partial_json=letter) for letter in '{"x"'),
        ("content_block_stop", 3, None),
        ("message_delta", None, {"stop_reason": "tool_use", "stop_sequence": None}),
        ("message_stop", None, None),
    ]


def test_a_stream_that_breaks_off_ends_with_an_error() -> None:
    with running() as server, client_of(server) as client:
        server.engine.dies_after = 3
        last = events_of(post(server, stream=True, max_tokens=100))[-1]
        assert last["error"]["type"] == "overloaded_error" and "died" in last["error"]["message"]
        with (
            pytest.raises(anthropic.APIStatusError, match="died"),
            client.messages.stream(model="fake", messages=HELLO, max_tokens=9) as stream,
        ):
            stream.until_done()


def test_a_conversation_reaches_the_template_in_its_own_words() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Graz"}}
    seen = [{"type": "text", "text": "It"}, {"type": "text", "text": " rains."}]
    messages: Any = [
        {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]},
        {"role": "user", "content": "C"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "T", "signature": "s"}, call]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "wet"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "gone", "is_error": True},
                {"type": "text", "text": "So?"},
            ],
        },
        {"role": "assistant", "content": seen},
    ]
    system: Any = [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief", "cache_control": {}}]
    with talking("!") as (client, server):
        client.messages.create(model="fake", messages=messages, system=system, max_tokens=9, tools=[WEATHER])
        given = rendered(server)
    function = {"name": "weather", "arguments": {"city": "Graz"}}
    assert given["messages"] == [
        {"role": "system", "content": "Be\nbrief"},
        {"role": "user", "content": "A\nB\nC"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "T",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "wet", "name": "weather", "tool_call_id": "t1"},
        {"role": "tool", "content": "Error: gone", "tool_call_id": "t2"},
        {"role": "user", "content": "So?"},
        {"role": "assistant", "content": "It rains."},
    ]
    offered = {
        "name": "weather",
        "description": WEATHER["description"],
        "parameters": WEATHER["input_schema"],
    }
    assert given["tools"] == [{"type": "function", "function": offered}]
    assert given["continue_final"] is True and given["add_generation_prompt"] is False


@pytest.mark.parametrize(
    ("thinking", "variables"),
    [
        ({"type": "enabled", "budget_tokens": 2048}, {"enable_thinking": True, "thinking_budget": 2048}),
        ({"type": "disabled"}, {"enable_thinking": False}),
        (None, {"enable_thinking": False}),
    ],
)
def test_a_model_thinks_where_it_is_told_to(
    server: RunningGateway, thinking: Any, variables: dict[str, Any]
) -> None:
    assert post(server, thinking=thinking).status_code == 200
    assert rendered(server)["extra"] == variables


def test_parameters_reach_the_worker(server: RunningGateway) -> None:
    assert post(server, temperature=0.5, top_p=0.9, top_k=7, seed=3, stop_sequences=["x"]).status_code == 200
    sent = server.engine.submitted[-1]
    assert (sent.sampling.temperature, sent.sampling.top_p, sent.sampling.top_k) == (0.5, 0.9, 7)
    assert (sent.sampling.seed, sent.stop, sent.max_tokens) == (3, ["x"], 4)


def test_tokens_are_counted_without_computing(client: anthropic.Anthropic, server: RunningGateway) -> None:
    before = len(server.engine.submitted)
    count = client.messages.count_tokens(model="fake", messages=HELLO, system="Be brief")
    assert count.input_tokens == len("system:Be brief;user:Hi;")
    assert len(server.engine.submitted) == before


def block(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, fields]}]}


WRONG_IN_EITHER: Any = [
    ({"messages": []}, "'messages'"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "'messages[0].role'"),
    (block(type="document"), "'messages[0].content[1].type'"),
    (block(type="image"), "'messages[0].content[1].source'"),
    (block(type="image", source={}), "'messages[0].content[1].source.type'"),
    (block(type="image", source={"type": "url"}), "'messages[0].content[1].source.url'"),
    (block(type="image", source={"type": "url", "url": "https://a.example/b.png"}), "'messages'"),
    (block(type="tool_result"), "'messages[0].content[1].tool_use_id'"),
    (block(type="text"), "'messages[0].content[1].text'"),
    ({"system": [{"type": "image"}]}, "'system[0].type'"),
    ({"tools": [WEATHER]}, "'tools'"),
    ({"tools": [{"name": "search", "type": "web_search_20250305"}]}, "'tools[0].type'"),
    ({"tools": [{"name": "search"}]}, "'tools[0].input_schema'"),
    ({"tool_choice": {"type": "any"}}, "'tool_choice.type'"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "no"}}, "'tool_choice.name'"),
    ({"mcp_servers": [{}]}, "'mcp_servers'"),
    ({"messages": [{"role": "user", "content": "x" * 600}]}, "context"),
]
WRONG_TO_GENERATE: Any = [
    ({"max_tokens": None}, "'max_tokens'"),
    ({"max_tokens": 0}, "'max_tokens'"),
    ({"temperature": 1.5}, "'temperature'"),
    ({"stop_sequences": [""]}, "'stop_sequences[0]'"),
]


@pytest.mark.parametrize(
    ("path", "fields", "told"),
    [
        *(("messages", *case) for case in WRONG_IN_EITHER + WRONG_TO_GENERATE),
        *(("messages/count_tokens", *case) for case in WRONG_IN_EITHER),
    ],
)
def test_what_is_wrong_is_refused_by_the_name_of_its_field(
    server: RunningGateway, path: str, fields: dict[str, Any], told: str
) -> None:
    body = {"model": "fake", "max_tokens": 4, "messages": HELLO} | fields
    answer = httpx.post(f"{server.url}/v1/{path}", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json().keys() == {"type", "error"} and answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert told in answer.json()["error"]["message"]


def test_errors_arrive_as_the_clients_own_types(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="'other' does not exist"):
        client.messages.create(model="other", messages=HELLO, max_tokens=4)
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(model="fake", messages=HELLO, max_tokens=4, extra_body={"temperature": 2})
    with pytest.raises(anthropic.BadRequestError, match="'max_tokens'"):
        client.post("/v1/messages", body={"model": "fake", "messages": HELLO}, cast_to=object)
    with pytest.raises(anthropic.APIStatusError, match="use POST") as wrong:
        client.get("/v1/messages", cast_to=object)
    assert wrong.value.status_code == 405 and wrong.value.type == "invalid_request_error"
    callers = Callers(key=environment_key("a-key-that-someone-made-up"))
    with running(callers=callers) as guarded, client_of(guarded) as stranger:
        with pytest.raises(anthropic.AuthenticationError) as unknown:
            stranger.messages.create(model="fake", messages=HELLO, max_tokens=4)
        assert unknown.value.type == "authentication_error"
        known = stranger.with_options(api_key="a-key-that-someone-made-up")
        assert known.messages.create(model="fake", messages=HELLO, max_tokens=4).content
    with running(max_queue=0) as full, client_of(full) as other:
        full.on_loop(full.engine.held.clear)
        with pytest.raises(anthropic.RateLimitError):
            other.messages.create(model="fake", messages=HELLO, max_tokens=4)


@pytest.mark.parametrize(
    ("choice", "theirs", "parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", None),
        ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}, None),
    ],
)
def test_a_choice_of_tools_is_that_of_a_chat(choice: Any, theirs: Any, parallel: bool | None) -> None:
    body = {"model": "m", "messages": HELLO, "max_tokens": 1, "tools": [WEATHER], "tool_choice": choice}
    chat = chat_request(msgspec.convert(body, MessagesRequest))
    assert msgspec.to_builtins(chat.tool_choice) == theirs
    assert chat.parallel_tool_calls is parallel


def test_a_form_and_an_effort_are_those_of_a_chat() -> None:
    config = {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}
    body = {"model": "m", "messages": HELLO, "max_tokens": 1, "output_config": config}
    chat = chat_request(msgspec.convert(body, MessagesRequest))
    assert chat.reasoning_effort == "low"
    assert chat.response_format is not None and chat.response_format.json_schema is not None
    assert chat.response_format.json_schema.schema == {"type": "object"}
