"""What clients may send to /api/chat and /api/generate, and what it means in OpenAI's words."""

from __future__ import annotations

import time
from typing import Annotated, Any

from msgspec import Meta, Struct

from headrace.errors import RequestError
from headrace.gateway.errors import missing, unsupported
from headrace.gateway.openai import requests as openai
from headrace.routing.wants import WantsBody

_StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Unit = Annotated[float, Meta(ge=0, le=1)]


class Options(Struct):
    """How to choose tokens. What says how to load a model (`num_gpu`, `num_thread`, …) is ignored.

    Penalties look back at the whole text.
    """

    num_ctx: int | None = None
    """Ignored: a model always has its whole context. Ollama, too, takes a size that is beyond the model's and
    gives what there is, and its clients send sizes without knowing the model. What counts is the prompt: one
    that is too long is refused."""
    num_predict: int | None = None
    """The most tokens; below 1, as many as the context holds."""
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    top_p: _Unit | None = None
    min_p: _Unit | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: _StopString | Annotated[list[_StopString], Meta(max_length=16)] | None = None
    repeat_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    mirostat: int | None = None
    tfs_z: float | None = None
    typical_p: float | None = None


_NEUTRAL = {"mirostat": 0, "tfs_z": 1.0, "typical_p": 1.0}
"""Ways to sample that are not served, and the values that do not ask for them."""


class Asked(Struct, kw_only=True):
    """What both endpoints share."""

    model: Annotated[str, Meta(min_length=1)]
    stream: bool | None = None
    """As a stream unless it says false."""
    options: Options | None = None
    format: str | dict[str, Any] | None = None
    """"json", or the JSON schema of the answer."""
    keep_alive: float | str | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    headrace: WantsBody | None = None
    """What is asked of the route; as on the chat endpoint."""
    arrived: float = 0.0
    """Time on time.monotonic's clock; not the client's to say."""

    def __post_init__(self) -> None:
        self.arrived = time.monotonic()

    @property
    def asks_for_text(self) -> bool:
        """False where the request only loads or unloads the model."""
        raise NotImplementedError


class Function(Struct):
    """Which function an assistant called, and with what."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    arguments: dict[str, Any] = {}


class ToolCall(Struct):
    function: Function


class Message(Struct):
    """One turn of a conversation."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    """Whose result a message of the role `tool` is."""


class ChatRequest(Asked, kw_only=True):
    """POST /api/chat"""

    messages: list[Message] | None = None
    tools: Annotated[list[openai.Tool], Meta(max_length=128)] | None = None

    @property
    def asks_for_text(self) -> bool:
        return bool(self.messages)


class GenerateRequest(Asked, kw_only=True):
    """POST /api/generate"""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    """The prompt goes to the model as it is, without the chat template."""
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[Any] | None = None

    @property
    def asks_for_text(self) -> bool:
        return bool(self.prompt)


def chat(body: ChatRequest, model: str) -> openai.ChatRequest:
    """The request in OpenAI's words. Raises RequestError that names what is not served."""
    messages = [_message(message, f"messages[{i}]") for i, message in enumerate(body.messages or [])]
    return _conversation(body, model, messages, body.tools)


def generate(body: GenerateRequest, model: str) -> openai.ChatRequest | openai.CompletionRequest:
    """The request in OpenAI's words: a conversation of one turn, or raw text."""
    for field in ("suffix", "template", "context", "images"):
        if getattr(body, field):
            raise unsupported(field)
    if not body.raw:
        system = [openai.ChatMessage("system", body.system)] if body.system else []
        return _conversation(body, model, [*system, openai.ChatMessage("user", body.prompt)], None)
    if body.system:
        raise RequestError("'system' has no place in a raw prompt; write it into the prompt.", "system")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return openai.CompletionRequest(model=model, prompt=body.prompt or "", logprobs=logprobs, **_common(body))


def _conversation(
    body: Asked, model: str, messages: list[openai.ChatMessage], tools: list[openai.Tool] | None
) -> openai.ChatRequest:
    variables: dict[str, Any] | None = None
    if body.think is not None:
        variables = {"enable_thinking": body.think is not False}
    continued = bool(messages) and messages[-1].role == "assistant" and not messages[-1].tool_calls
    return openai.ChatRequest(
        model=model,
        messages=messages,
        tools=tools,
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs if body.logprobs else None,
        reasoning_effort=body.think if isinstance(body.think, str) else None,
        chat_template_kwargs=variables,
        continue_final_message=continued or None,
        **_common(body),
    )


def _common(body: Asked) -> dict[str, Any]:
    options = body.options or Options()
    for name, neutral in _NEUTRAL.items():
        if getattr(options, name) not in (None, neutral):
            raise unsupported(f"options.{name}")
    wanted = options.num_predict
    return {
        "stream": body.stream is not False,
        "headrace": body.headrace,
        "max_tokens": wanted if wanted is not None and wanted > 0 else None,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "seed": options.seed,
        "stop": options.stop or None,
        "repetition_penalty": options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "response_format": _format(body.format),
    }


def _format(asked: str | dict[str, Any] | None) -> openai.ResponseFormat | None:
    if asked is None or asked == "":
        return None
    if asked == "json":
        return openai.ResponseFormat("json_object")
    if isinstance(asked, str):
        raise RequestError(
            f"Invalid 'format': expected \"json\" or a JSON schema, got {asked!r:.60}.", "format"
        )
    return openai.ResponseFormat("json_schema", openai.JsonSchemaFormat(schema=asked))


def _message(message: Message, field: str) -> openai.ChatMessage:
    if message.images:
        raise unsupported(f"{field}.images")
    calls = [
        openai.ToolCall(openai.CalledFunction(call.function.name, call.function.arguments))
        for call in message.tool_calls or []
    ]
    return openai.ChatMessage(
        role=message.role,
        content=message.content if message.content is not None or calls else "",
        name=message.tool_name,
        tool_calls=calls or None,
        reasoning_content=message.thinking,
    )


class ModelRequest(Struct):
    """A body that names a model: POST /api/show, /api/pull, /api/embed."""

    model: str | None = None
    name: str | None = None
    """What older clients call it."""
    stream: bool | None = None
    input: str | Annotated[list[str], Meta(max_length=2048)] | None = None
    prompt: str | None = None

    def named(self) -> str:
        """Raises RequestError where there is no name."""
        name = self.model or self.name
        if not name:
            raise missing("model")
        return name
