"""A remote that speaks Anthropic's API: what it is asked, and what becomes of its answer."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.remotes.asking import KEY, ask, request
from gateway.remotes.upstream import anthropic_answer, anthropic_events, text_delta
from headrace.errors import RequestError
from headrace.gateway.remotes.errors import RemoteError

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Of a city."}}
TOOL = {"name": "get_weather", "description": "Of a city.", "input_schema": {"type": "object"}}


def asked(**fields: Any) -> dict[str, Any]:
    """The body that a request becomes."""
    table = fields.pop("table", {})
    _, upstream = ask(anthropic_answer(), request(**fields), api="anthropic", **table)
    return upstream.exchanges[0].body


def test_the_text_and_the_usage_are_the_remotes() -> None:
    told, upstream = ask(anthropic_answer(), api="anthropic")
    assert told.text == "Water flows downhill." and told.finish_reasons == ["stop"]
    assert told.usage is not None and told.believed
    assert (told.usage.prompt_tokens, told.usage.completion_tokens) == (9, 3)
    (exchange,) = upstream.exchanges
    assert exchange.path == "/v1/messages"
    assert exchange.headers["x-api-key"] == KEY and "authorization" not in exchange.headers
    assert exchange.headers["anthropic-version"] == "2023-06-01"
    assert exchange.body == {
        "model": "far-1",
        "max_tokens": 4096,
        "stream": True,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Where does water flow?"}]}],
    }


def test_what_the_api_knows_is_said_in_its_words() -> None:
    body = asked(
        max_tokens=7, temperature=0.5, top_p=0.9, top_k=5, stop="END", reasoning_effort="minimal", seed=3,
        chat_template_kwargs={"enable_thinking": True, "thinking_budget": 2000},
        response_format={"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    )  # fmt: skip
    body.pop("messages")
    assert body == {
        "model": "far-1",
        "max_tokens": 7,
        "stream": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stop_sequences": ["END"],
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    }
    assert asked(max_tokens=100, table={"max_output": 50})["max_tokens"] == 50
    assert asked(table={"max_output": 50})["max_tokens"] == 50


def test_the_model_goes_on_without_thinking_behind_its_calls() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "blue"},
    ]
    thinking = {"enable_thinking": True, "thinking_budget": 2000}
    assert "thinking" not in asked(messages=messages, tools=[WEATHER], chat_template_kwargs=thinking)
    messages += [{"role": "assistant", "content": "Blue."}, {"role": "user", "content": "Why?"}]
    assert "thinking" in asked(messages=messages, tools=[WEATHER], chat_template_kwargs=thinking)


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        (None, None, None),
        ("auto", None, {"type": "auto"}),
        ("required", None, {"type": "any"}),
        ("none", False, {"type": "none"}),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        (
            {"type": "function", "function": {"name": "get_weather"}},
            True,
            {"type": "tool", "name": "get_weather"},
        ),
    ],
)
def test_tools_and_their_choice_are_translated(choice: Any, parallel: Any, expected: Any) -> None:
    body = asked(tools=[WEATHER], tool_choice=choice, parallel_tool_calls=parallel)
    assert body["tools"] == [TOOL] and body.get("tool_choice") == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2}, {"presence_penalty": 0.5}, {"frequency_penalty": 0.5}, {"logit_bias": {"5": 1}},
        {"temperature": 1.5}, {"response_format": {"type": "json_object"}}, {"min_p": 0.1},
        {"stop": ["a", "\n"]},
    ],
)  # fmt: skip
def test_what_the_api_does_not_know_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(RemoteError) as caught:
        asked(**fields)
    error = caught.value
    assert (error.status, error.field, error.elsewhere, error.broken) == (
        400,
        next(iter(fields)),
        True,
        False,
    )


def test_a_conversation_with_tools_and_images_keeps_its_meaning() -> None:
    def image(url: str) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": url}}

    body = asked(
        messages=[
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [image("data:image/png;base64,AAAA"), image("https://a.example/b.png")],
            },
            {"role": "user", "content": [{"type": "text", "text": "Here?"}, {"type": "text", "text": ""}]},
            {"role": "developer", "content": "And kind."},
            {
                "role": "assistant",
                "content": "Let me look.",
                "tool_calls": [
                    {"id": "a", "function": {"name": "look", "arguments": '{"at": "sky"}'}},
                    {"function": {"name": "look", "arguments": ""}},
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "blue"},
            {"role": "tool", "content": "grey"},
            {"role": "user", "content": "So?"},
        ]
    )
    assert body["system"] == "Be brief.\n\nAnd kind."
    user, assistant, results = body["messages"]
    held = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    linked = {"type": "url", "url": "https://a.example/b.png"}
    assert user["content"] == [
        {"type": "image", "source": held},
        {"type": "image", "source": linked},
        {"type": "text", "text": "Here?"},
    ]
    assert assistant["content"] == [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "a", "name": "look", "input": {"at": "sky"}},
        {"type": "tool_use", "id": "call_4_1", "name": "look", "input": {}},
    ]
    assert results["role"] == "user"
    assert results["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "blue"}]},
        {"type": "tool_result", "tool_use_id": "call_4_1", "content": [{"type": "text", "text": "grey"}]},
        {"type": "text", "text": "So?"},
    ]


def test_what_is_wrong_in_itself_is_the_clients_fault() -> None:
    broken = {"function": {"name": "look", "arguments": "{"}}
    link = {"type": "image_url", "image_url": "ftp://a.example/b.png"}
    for fields, field in (
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [link]}]}, "messages[0].content[0].image_url"),
        ({"messages": [{"role": "system", "content": [link]}]}, "messages[0].content[0].image_url"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [broken]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
    ):
        with pytest.raises(RequestError) as caught:
            asked(**fields)
        assert caught.value.field == field and not isinstance(caught.value, RemoteError)


def test_thinking_text_and_calls_are_told_apart() -> None:
    def start(index: int, **block: Any) -> dict[str, Any]:
        return {"type": "content_block_start", "index": index, "content_block": block}

    def delta(index: int, **delta: Any) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": delta}

    script = anthropic_events(
        [
            start(0, type="thinking", thinking="", signature=""),
            delta(0, type="thinking_delta", thinking="Down?"),
            delta(0, type="signature_delta", signature="c2lnbmVk"),
            start(1, type="redacted_thinking", data="c2VjcmV0"),
            start(2, type="text", text=""),
            text_delta("Down.", 2),
            start(3, type="tool_use", id="toolu_1", name="look", input={}),
            delta(3, type="input_json_delta", partial_json=""),
            delta(3, type="input_json_delta", partial_json='{"at":'),
            delta(3, type="input_json_delta", partial_json='"sky"}'),
            start(4, type="tool_use", id="toolu_2", name="wait", input={}),
            start(5, type="server_tool_use", id="srvtoolu_1", name="web_search", input={}),
            delta(5, type="input_json_delta", partial_json='{"query": "not ours"}'),
            {"type": "something_new", "index": 9},
        ],
        {"stop_reason": "tool_use", "stop_sequence": None},
    )
    told, _ = ask(script, api="anthropic")
    answer = told.answers[0]
    assert (answer.reasoning, answer.text, answer.finish_reason) == ("Down?", "Down.", "tool_calls")
    assert [(call.name, call.arguments) for call in answer.calls] == [
        ("look", '{"at":"sky"}'),
        ("wait", "{}"),
    ]


@pytest.mark.parametrize(
    ("told_there", "told_here"),
    [
        ("end_turn", "stop"), ("stop_sequence", "stop"), ("max_tokens", "length"), ("pause_turn", "stop"),
        ("refusal", "content_filter"), ("model_context_window_exceeded", "length"), ("unheard_of", "stop"),
    ],
)  # fmt: skip
def test_why_it_ended_is_told_in_openais_words(told_there: str, told_here: str) -> None:
    told, _ = ask(anthropic_answer(stop_reason=told_there), api="anthropic")
    assert told.answers[0].finish_reason == told_here


def test_the_stop_string_that_ended_it_is_known() -> None:
    script = anthropic_events([text_delta("a")], {"stop_reason": "stop_sequence", "stop_sequence": "END"})
    told, _ = ask(script, request(stop="END"), api="anthropic")
    assert told.answers[0].events[-1].stop_string == "END"


def test_cached_tokens_are_part_of_the_prompt() -> None:
    usage = {
        "input_tokens": 9,
        "cache_read_input_tokens": 20,
        "cache_creation_input_tokens": 4,
        "output_tokens": 1,
    }
    begun = {"type": "message_start", "message": {"usage": usage}}
    script = anthropic_events([begun, text_delta("Water")], {"stop_reason": "end_turn"})
    told, _ = ask(script, api="anthropic")
    assert told.usage is not None and told.believed
    assert (told.usage.prompt_tokens, told.usage.prompt_tokens_details.cached_tokens) == (33, 20)
    assert told.usage.completion_tokens == 3


def test_thinking_that_is_not_shown_is_believed_up_to_what_was_asked_for() -> None:
    thinking = {"type": "content_block_start", "index": 0, "content_block": {"type": "redacted_thinking"}}
    for blocks, believed in (([thinking, text_delta("Down.", 1)], True), ([text_delta("Down.")], False)):
        script = anthropic_events(blocks, {"stop_reason": "end_turn"}, usage=(9, 900))
        told, _ = ask(script, request(max_tokens=1000), api="anthropic")
        assert told.believed == believed
    told, _ = ask(script, request(max_tokens=500), api="anthropic")
    assert not told.believed
