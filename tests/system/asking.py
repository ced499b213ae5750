"""What the tests of all clients ask."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

SMALL, CODER = "smollm2-135m", "qwen2.5-coder-0.5b"
KEY = "a-key-of-the-tests"
KEYS = f"""
[keys.tests]
key = "{KEY}"
""" + "".join(
    f"""
[keys.{client}]
key = "for-one-request-of-{client}"
requests_per_minute = 1
"""
    for client in ("openai", "anthropic", "ollama", "litellm", "langchain", "pydantic-ai")
)
HELLO: Any = [{"role": "user", "content": "Say hi."}]
SKY_TEXT = "What is the colour of the sky? Answer in JSON."
SKY: Any = [{"role": "user", "content": SKY_TEXT}]
LONG_TEXT = "Say hi. " * 700
LONG: Any = [{"role": "user", "content": LONG_TEXT}]
"""More than the context of `for_clients` holds, but not for its letters alone."""
FULL = "maximum context length is 1024 tokens"
SIGNAL: Any = {
    "type": "function",
    "function": {
        "name": "set_signal",
        "description": "Sets the signal's colour.",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "green"]}, "blinking": {"type": "boolean"}},
            "required": ["colour", "blinking"],
            "additionalProperties": False,
        },
    },
}


class Paint(BaseModel):
    """A colour and how sure the answer is."""

    colour: Literal["red", "green", "blue"]
    sure: bool
    stars: Literal[1, 2, 3, 4, 5]


def poor(client: str) -> str:
    """A key that is good for one request a minute, of which each client has its own."""
    return f"for-one-request-of-{client}"


def assert_a_signal(arguments: dict[str, Any]) -> None:
    assert set(arguments) == {"colour", "blinking"}
    assert arguments["colour"] in ("red", "green") and isinstance(arguments["blinking"], bool)
