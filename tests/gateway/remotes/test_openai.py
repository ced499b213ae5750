"""A remote that speaks OpenAI's API: what it is asked, and what becomes of its answer."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.remotes.asking import KEY, answer, ask, remote, request, run
from gateway.remotes.upstream import Exchange, Script, Upstream, chunk, openai_answer, openai_usage
from headrace.errors import RequestError
from headrace.gateway.remotes.apis import ANTHROPIC, OPENAI
from headrace.gateway.remotes.errors import RemoteError

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


def asked(**fields: Any) -> dict[str, Any]:
    """The body that a request becomes."""
    table = fields.pop("table", {})
    _, upstream = ask(openai_answer(), request(**fields), **table)
    return upstream.exchanges[0].body


def streaming(*chunks: dict[str, Any]) -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.begin()
        for one in chunks:
            await exchange.event(one)
        await exchange.event("[DONE]")
        await exchange.end()

    return script


def calls(*deltas: dict[str, Any]) -> dict[str, Any]:
    return chunk(tool_calls=list(deltas))


def test_the_text_and_the_usage_are_the_remotes() -> None:
    told, upstream = ask(openai_answer())
    assert told.text == "Water flows downhill."
    assert told.answers[0].finish_reason == "stop" and told.finish_reasons == ["stop"]
    assert told.usage is not None and told.believed
    assert (told.usage.prompt_tokens, told.usage.completion_tokens) == (9, 3)
    assert told.ttft is not None and 0 < told.ttft < 5
    (exchange,) = upstream.exchanges
    assert exchange.path == "/v1/chat/completions"
    assert exchange.headers["authorization"] == f"Bearer {KEY}"
    assert exchange.headers["accept-encoding"] == "identity"
    assert exchange.headers["user-agent"].startswith("headrace/")
    assert exchange.body == {
        "model": "far-1",
        "messages": [{"role": "user", "content": "Where does water flow?"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_without_a_key_none_is_sent() -> None:
    async def work() -> dict[str, str]:
        async with Upstream(openai_answer()).serving() as upstream:
            far = remote(upstream, key=None)
            await answer(far, request())
            await far.close()
            return dict(upstream.exchanges[0].headers)

    assert "authorization" not in run(work())


def test_what_the_api_knows_is_handed_on() -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "stop": ["\n", "END"],
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"50256": -100.0},
        "reasoning_effort": "low",
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "parallel_tool_calls": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"x": None}}},
    }
    body = asked(**fields)
    assert {name: body[name] for name in fields} == fields


def test_the_limit_is_in_the_clients_words_and_within_the_models() -> None:
    assert asked(max_tokens=7)["max_tokens"] == 7
    assert asked(max_completion_tokens=7)["max_completion_tokens"] == 7
    assert asked(max_completion_tokens=700, table={"max_output": 50})["max_completion_tokens"] == 50
    assert not {"max_tokens", "max_completion_tokens"} & asked(table={"max_output": 50}).keys()


def test_a_model_that_knows_the_newer_limit_only_is_asked_again_once() -> None:
    async def newer(exchange: Exchange) -> None:
        if "max_tokens" in exchange.body:
            error = {"message": "Use another.", "code": "unsupported_parameter", "param": "max_tokens"}
            await exchange.answer(400, {"error": error})
        else:
            await openai_answer()(exchange)

    async def work() -> list[int | None]:
        async with Upstream(newer).serving() as upstream:
            far = remote(upstream)
            for _ in range(2):
                assert (await answer(far, request(max_tokens=7))).text == "Water flows downhill."
            await far.close()
            return [exchange.body.get("max_completion_tokens") for exchange in upstream.exchanges]

    assert run(work()) == [None, 7, 7]


def test_a_server_that_forbids_a_word_is_asked_again_without_it_once() -> None:
    """As Mistral's do, of which one after the other is learnt."""

    async def strict(exchange: Exchange) -> None:
        for word in ("stream_options", "max_completion_tokens"):
            if word in exchange.body:
                wrong = {
                    "type": "extra_forbidden",
                    "loc": ["body", word],
                    "msg": "Extra inputs are not permitted",
                }
                await exchange.answer(422, {"object": "error", "message": {"detail": [wrong]}})
                return
        await openai_answer()(exchange)

    async def work() -> list[dict[str, Any]]:
        async with Upstream(strict).serving() as upstream:
            far = remote(upstream)
            for _ in range(2):
                told = await answer(far, request(max_completion_tokens=7))
                assert told.text == "Water flows downhill." and told.believed
            await far.close()
            return [exchange.body for exchange in upstream.exchanges]

    bodies = run(work())
    assert len(bodies) == 4
    assert all("stream_options" not in body and body["max_tokens"] == 7 for body in bodies[2:])


def test_what_changes_no_answer_is_left_out() -> None:
    body = asked(
        priority=3, cache_salt="x", top_k=-1, min_p=0, repetition_penalty=1.0, ignore_eos=False,
        chat_template_kwargs={"enable_thinking": False},
    )  # fmt: skip
    assert body.keys() == {"model", "messages", "stream", "stream_options"}


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 5}, {"min_p": 0.1}, {"repetition_penalty": 1.1}, {"min_tokens": 3}, {"ignore_eos": True},
        {"guided_regex": "a+"}, {"guided_choice": ["a"]}, {"structured_outputs": {"json_object": True}},
        {"stop_token_ids": [5]}, {"logprobs": True}, {"chat_template_kwargs": {"style": "short"}},
        {"response_format": {"type": "regex", "regex": "a"}}, {"continue_final_message": True},
    ],
)  # fmt: skip
def test_what_the_api_does_not_know_is_refused_by_name_before_anything_is_sent(
    fields: dict[str, Any],
) -> None:
    with pytest.raises(RemoteError) as caught:
        ask(openai_answer(), request(**fields))
    error = caught.value
    assert (error.status, error.field, error.elsewhere, error.broken) == (
        400,
        next(iter(fields)),
        True,
        False,
    )


def test_a_conversation_with_tools_and_images_keeps_its_meaning() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "And here?"}, image], "name": "ann"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "I had better look.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}},
                {"type": "function", "function": {"name": "look", "arguments": '{"at":"sea"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "name": "look", "content": "blue"},
        {"role": "tool", "content": [{"type": "text", "text": "grey"}]},
    ]
    system, user, assistant, first, second = asked(messages=messages)["messages"]
    assert system == messages[0] and user == messages[1]
    assert assistant == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at":"sky"}'}},
            {"id": "call_2_1", "type": "function", "function": {"name": "look", "arguments": '{"at":"sea"}'}},
        ],
    }
    assert first == {"role": "tool", "tool_call_id": "a", "content": "blue"}
    assert (second["tool_call_id"], second["content"]) == ("call_2_1", [{"type": "text", "text": "grey"}])


def test_what_is_wrong_in_itself_is_the_clients_fault() -> None:
    for messages in (
        [{"role": "tool", "content": "an answer to nothing"}],
        [{"role": "user", "content": [{"type": "input_audio"}]}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
    ):
        with pytest.raises(RequestError) as caught:
            ask(openai_answer(), request(messages=messages))
        assert caught.value.field is not None and not isinstance(caught.value, RemoteError)


def test_reasoning_is_told_from_text() -> None:
    for field in ("reasoning_content", "reasoning"):
        told, _ = ask(streaming(chunk(**{field: "Down?"}), chunk(content="Down."), chunk(reason="length")))
        first = told.answers[0]
        assert (first.reasoning, first.text, first.finish_reason) == ("Down?", "Down.", "length")


def test_content_in_parts_is_read_as_what_each_part_is() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Down?"}]}
    parts = chunk(content=[thinking, {"type": "text", "text": "Down"}])
    told, _ = ask(streaming(parts, chunk(content="."), chunk(reason="stop")))
    assert (told.answers[0].reasoning, told.text) == ("Down?", "Down.")


def test_an_answer_goes_on_behind_a_finish_reason_that_is_empty() -> None:
    told, _ = ask(streaming(chunk(reason="", content="Water "), chunk(content="runs."), chunk(reason="stop")))
    assert (told.text, told.finish_reasons) == ("Water runs.", ["stop"])


def test_calls_are_numbered_from_nought_whatever_the_remote_calls_them() -> None:
    told, _ = ask(
        streaming(
            calls({"index": 7, "id": "a", "function": {"name": "look", "arguments": ""}}),
            calls({"index": 7, "function": {"arguments": '{"at":'}}),
            calls({"index": -3, "id": "b", "function": {"name": "hear", "arguments": '{"a":1}'}}),
            calls({"index": 7, "function": {"arguments": '"sky"}'}}),
            calls({"index": 7, "id": "c", "function": {"name": "wait"}}),
            chunk(reason="stop"),
        )
    )
    first = told.answers[0]
    named = [(call.name, call.arguments) for call in first.calls]
    assert named == [("look", '{"at":"sky"}'), ("hear", '{"a":1}'), ("wait", "{}")]
    assert first.finish_reason == "tool_calls"


def test_several_choices_are_asked_for_and_kept_apart() -> None:
    script = streaming(
        chunk(0, content="a"),
        chunk(2, content="c"),
        chunk(1, content="b"),
        chunk(2, "length"),
        chunk(0, "stop"),
        chunk(1, "content_filter"),
        openai_usage(9, 3, cached=5),
    )
    told, upstream = ask(script, request(n=3))
    assert upstream.exchanges[0].body["n"] == 3
    assert [one.text for one in told.answers] == ["a", "b", "c"]
    assert [one.finish_reason for one in told.answers] == ["stop", "content_filter", "length"]
    assert told.usage is not None and told.usage.prompt_tokens_details.cached_tokens == 5


def test_the_usage_is_known_with_the_last_piece() -> None:
    async def work() -> int:
        async with Upstream(openai_answer()).serving() as upstream:
            far = remote(upstream)
            async with far.ask("1", request()) as answer_run:
                async for _, _, _, reason in answer_run:
                    if reason is not None:
                        return answer_run.usage().completion_tokens
            raise AssertionError

    assert run(work()) == 3


def test_hidden_reasoning_is_believed_up_to_what_was_asked_for() -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 900}}
    usage = {"prompt_tokens": 9, "completion_tokens": 903} | details
    script = streaming(chunk(content="Down."), chunk(reason="stop") | {"usage": usage})
    told, _ = ask(script, request(max_completion_tokens=1000))
    assert told.believed and told.usage is not None and told.usage.completion_tokens == 903
    told, _ = ask(script, request(max_completion_tokens=500))
    assert not told.believed


def test_reasoning_that_only_the_total_counts_is_paid_for() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 912}
    script = streaming(chunk(content="Down."), chunk(reason="stop") | {"usage": usage})
    told, _ = ask(script, request(max_completion_tokens=1000))
    assert told.believed and told.usage is not None
    assert (told.usage.completion_tokens, told.usage.total_tokens) == (903, 912)
    told, _ = ask(script, request(max_completion_tokens=500))
    assert not told.believed


def test_a_url_may_end_with_a_slash_and_anthropics_may_lack_its_version() -> None:
    assert OPENAI.url("https://a.example/v1/", OPENAI.chat.path) == "https://a.example/v1/chat/completions"
    assert ANTHROPIC.url("https://a.example", "/messages") == "https://a.example/v1/messages"
    assert ANTHROPIC.url("https://a.example/v1", "/messages") == "https://a.example/v1/messages"
