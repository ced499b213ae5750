"""What the official client sees."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from gateway.fake_engine import ANSWER
from gateway.running import RunningGateway, running

HELLO = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def client(server: RunningGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_chat_answer_has_text_reason_and_usage(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="fake", messages=HELLO, max_tokens=5)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == ANSWER[:5]
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == len("user:Hi;")
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_a_chat_stream_begins_with_the_role_and_ends_with_reason_and_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="fake", messages=HELLO, max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == ANSWER[:5]
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-2].choices[0].delta.content is None
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_has_no_usage_unless_asked_for(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="fake", messages=HELLO, max_tokens=3, stream=True))
    assert all(chunk.choices and "usage" not in chunk.model_fields_set for chunk in chunks)


def test_usage_can_come_with_every_chunk(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = client.completions.create(
        model="fake", prompt="Hi", max_tokens=3, stream=True, stream_options=options
    )
    assert [chunk.usage.completion_tokens for chunk in stream] == [1, 2, 3, 3, 3]


def test_a_completion_is_plain_text(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt="Hi", max_tokens=5)
    assert answer.object == "text_completion"
    assert answer.choices[0].text == ANSWER[:5]
    assert answer.usage.prompt_tokens == 2


def test_a_completion_streams(client: openai.OpenAI) -> None:
    chunks = list(client.completions.create(model="fake", prompt="Hi", max_tokens=5, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == ANSWER[:5]
    assert chunks[-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_get_a_choice_each(client: openai.OpenAI, stream: bool) -> None:
    answer = client.completions.create(model="fake", prompt=["a", "bc", "d"], max_tokens=4, stream=stream)
    texts = {0: "", 1: "", 2: ""}
    for part in answer if stream else [answer]:
        for choice in part.choices:
            texts[choice.index] += choice.text
    assert texts == dict.fromkeys(range(3), ANSWER[:4])
    if not stream:
        assert answer.usage.prompt_tokens == 4
        assert answer.usage.completion_tokens == 12


def test_a_stop_string_ends_the_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="fake", messages=HELLO, stop=["zz", "r"])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == "Wate"


def test_chat_logprobs_come_with_their_bytes(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake", messages=HELLO, max_tokens=2, logprobs=True, top_logprobs=2
    )
    first = answer.choices[0].logprobs.content[0]
    assert (first.token, first.bytes, first.logprob) == ("W", [87], -0.5)
    assert [top.bytes for top in first.top_logprobs] == [[0], [1]]
    assert len(answer.choices[0].logprobs.content) == 2


def test_chat_logprobs_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="fake", messages=HELLO, max_tokens=3, logprobs=True, stream=True
    )
    tokens = [t.token for c in stream if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert tokens == list(ANSWER[:3])


def test_completion_logprobs_are_parallel_lists(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt="Hi", max_tokens=3, logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens == list(ANSWER[:3])
    assert logprobs.token_logprobs == [-0.5] * 3
    assert logprobs.top_logprobs == [{"\x00": -1.0}] * 3
    assert logprobs.text_offset == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_n_choices_share_a_prompt_that_counts_once(client: openai.OpenAI, stream: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    answer = client.chat.completions.create(
        model="fake", messages=HELLO, max_tokens=4, n=3, stream=stream, **options
    )
    texts = dict.fromkeys(range(3), "")
    for part in answer if stream else [answer]:
        for choice in part.choices:
            texts[choice.index] += (choice.delta.content or "") if stream else choice.message.content
        usage = part.usage
    assert texts == dict.fromkeys(range(3), ANSWER[:4])
    assert (usage.prompt_tokens, usage.completion_tokens) == (len("user:Hi;"), 12)


def test_choices_differ_by_their_number_alone(server: RunningGateway) -> None:
    server.complete(prompt=["a", "b"], n=2, seed=7)
    told = [(s.sampling.prompt_index, s.sampling.choice_index) for s in server.engine.submitted[-4:]]
    assert told == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {submit.sampling.seed for submit in server.engine.submitted[-4:]} == {7}


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_begins_with_the_prompt(client: openai.OpenAI, stream: bool) -> None:
    answer = client.completions.create(model="fake", prompt=[72, 105], max_tokens=3, echo=True, stream=stream)
    text = "".join(part.choices[0].text for part in (answer if stream else [answer]))
    assert text == "Hi" + ANSWER[:3]


def test_an_echo_without_output_scores_the_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt="Hi!", max_tokens=0, echo=True, logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert answer.choices[0].text == "Hi!"
    assert logprobs.tokens == ["H", "i", "!"]
    assert logprobs.token_logprobs == [None, -0.25, -0.25]
    assert logprobs.text_offset == [0, 1, 2]
    assert answer.usage.completion_tokens == 0


def test_cached_tokens_are_reported() -> None:
    with (
        running(cached_tokens=3) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as client,
    ):
        answer = client.chat.completions.create(model="fake", messages=HELLO, max_tokens=2)
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


def test_models_are_listed_and_described(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").owned_by == "headrace"
    assert client.models.retrieve("fake").root == "fake"  # vLLM's word, for its load client
    with pytest.raises(openai.NotFoundError, match="'other' does not exist"):
        client.models.retrieve("other")


def test_errors_arrive_as_the_clients_own_types(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", messages=HELLO)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="fake", messages=HELLO, temperature=9)
    assert wrong.value.param == "temperature"
