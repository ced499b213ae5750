"""A remote that speaks OpenAI's API: what it is asked, and what becomes of its answer."""

from __future__ import annotations

from gateway.remotes.asking import KEY, ask
from gateway.remotes.upstream import openai_answer


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
    assert exchange.body["model"] == "far-1"
