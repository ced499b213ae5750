"""Ollama's words in OpenAI's."""

from __future__ import annotations

import json

import pytest

from headrace.errors import RequestError
from headrace.gateway.ollama import requests
from headrace.gateway.ollama.answers import error_json
from headrace.gateway.ollama.durations import seconds


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (None, None),
        ("", None),
        (0, 0.0),
        (90, 90.0),
        (-1, -1.0),
        ("0", 0.0),
        ("-1", -1.0),
        ("300", 300.0),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("-1m", -1.0),
        (1e18, -1.0),
    ],
)
def test_a_keep_alive_is_seconds_or_a_duration(said: float | str | None, meant: float | None) -> None:
    assert seconds(said) == meant


@pytest.mark.parametrize("said", ["soon", "10 m", "m", "5x", "1" * 80, "10m\n"])
def test_what_is_no_duration_is_refused_by_name(said: str) -> None:
    with pytest.raises(RequestError) as error:
        seconds(said)
    assert error.value.field == "keep_alive"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "images": ["aGk="]}, "images"),
        ({"prompt": "a", "template": "{{ .Prompt }}"}, "template"),
        ({"prompt": "a", "format": "xml"}, "format"),
        ({"prompt": "a", "raw": True, "system": "b"}, "system"),
        ({"prompt": "a", "options": requests.Options(mirostat=2)}, "options.mirostat"),
    ],
)
def test_what_is_not_served_is_refused_by_name(body: dict[str, object], field: str) -> None:
    with pytest.raises(RequestError) as error:
        requests.generate(requests.GenerateRequest(model="m", **body), "m")  # type: ignore[arg-type]
    assert error.value.field == field


@pytest.mark.parametrize(
    ("field", "own"),
    [("repetition_penalty", "options.repeat_penalty"), ("response_format.type", "format.type"), ("x", "x")],
)
def test_an_error_is_about_the_clients_own_field(field: str, own: str) -> None:
    told = json.loads(error_json(RequestError(f"'{field}' is wrong", field)))
    assert told == {"error": f"'{own}' is wrong"}


def test_images_in_messages_are_refused_with_their_place() -> None:
    messages = [requests.Message("user", "Hi"), requests.Message("user", "What is it?", images=["aGk="])]
    with pytest.raises(RequestError) as error:
        requests.chat(requests.ChatRequest(model="m", messages=messages), "m")
    assert error.value.field == "messages[1].images"


def test_options_and_thinking_are_translated() -> None:
    options = requests.Options(num_predict=-1, repeat_penalty=1.2, stop=["x"], seed=3)
    asked = requests.chat(
        requests.ChatRequest(
            model="m", messages=[requests.Message("user", "Hi")], options=options, think=False, format="json"
        ),
        "other",
    )
    assert (asked.model, asked.stream, asked.max_tokens, asked.seed) == ("other", True, None, 3)
    assert (asked.repetition_penalty, asked.stop) == (1.2, ["x"])
    assert asked.chat_template_kwargs == {"enable_thinking": False}
    assert asked.response_format is not None and asked.response_format.type == "json_object"
