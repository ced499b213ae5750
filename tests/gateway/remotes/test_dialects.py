"""Images in the other dialects, on their way to a remote model."""

from __future__ import annotations

import msgspec
import pytest

from headrace.errors import RequestError
from headrace.gateway.anthropic.requests import MessagesRequest
from headrace.gateway.anthropic.translate import chat_request as from_anthropic
from headrace.gateway.openai.requests import ChatRequest
from headrace.gateway.remotes.contents import images_in
from headrace.gateway.remotes.openai_request import openai_body
from headrace.gateway.remotes.outgoing import There
from headrace.gateway.responses.requests import ResponsesRequest
from headrace.gateway.responses.translate import chat_request as from_responses

URL = "https://a.example/b.png"
HELD = "data:image/png;base64,AAAA"


def contents(request: ChatRequest) -> list[object]:
    body = msgspec.json.decode(openai_body(There("far-1"), request))
    return [message["content"] for message in body["messages"]]


def image(url: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


def text(words: str) -> dict[str, object]:
    return {"type": "text", "text": words}


def test_an_anthropic_clients_images_stand_where_they_stood() -> None:
    held = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    first = [text("This"), {"type": "image", "source": held}, text("or this?")]
    second = [{"type": "image", "source": {"type": "url", "url": URL}}]
    messages = [{"role": "user", "content": first}, {"role": "user", "content": second}]
    body = {"model": "far", "max_tokens": 5, "system": "Look.", "messages": messages}
    request = from_anthropic(msgspec.convert(body, MessagesRequest))
    assert list(images_in(request.messages)) == [HELD, URL]
    assert contents(request) == ["Look.", [text("This"), image(HELD), text("or this?"), image(URL)]]


def test_a_responses_clients_images_stand_where_they_stood() -> None:
    parts = [
        {"type": "input_text", "text": "This?"},
        {"type": "input_image", "image_url": HELD, "detail": "auto"},
    ]
    body = {"model": "far", "input": [{"role": "user", "content": parts}]}
    request = from_responses(msgspec.convert(body, ResponsesRequest))
    shown = {"type": "image_url", "image_url": {"url": HELD, "detail": "auto"}}
    assert contents(request) == [[text("This?"), shown]]


def test_an_image_that_is_somewhere_else_is_refused() -> None:
    source = {"type": "file", "file_id": "file_1"}
    messages = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    body = {"model": "far", "max_tokens": 5, "messages": messages}
    with pytest.raises(RequestError) as caught:
        from_anthropic(msgspec.convert(body, MessagesRequest))
    assert caught.value.field == "messages[0].content[0].source.type"
