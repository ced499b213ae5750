"""From the words of the responses endpoint to those of the chat endpoint, which all else understands."""

from __future__ import annotations

import msgspec

from headrace.errors import RequestError
from headrace.gateway.errors import missing
from headrace.gateway.openai.requests import (
    ChatRequest,
    Function,
    JsonSchemaFormat,
    NamedFunction,
    NamedTool,
    ResponseFormat,
)
from headrace.gateway.openai.requests import Tool as ChatTool
from headrace.gateway.responses.conversation import chat_messages
from headrace.gateway.responses.requests import NEUTRAL, Format, ResponsesRequest, Tool, ToolChoice, Unserved

NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format.json_schema.schema": "text.format.schema",
    "response_format": "text.format",
}
"""Fields of a chat request that errors may speak of, and what they are called here."""


def chat_request(body: ResponsesRequest) -> ChatRequest:
    """The request as one for a chat. Raises RequestError for what is wrong or not served."""
    _refuse_unserved(body)
    chat = ChatRequest(
        model=body.model,
        messages=chat_messages(body),
        max_tokens=body.max_output_tokens,
        stream=body.stream,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        cache_salt=body.cache_salt,
        priority=body.priority,
        headrace=body.headrace,
        chat_template_kwargs=body.chat_template_kwargs,
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=body.reasoning.effort if body.reasoning is not None else None,
    )
    if body.text is not None and body.text.format is not None:
        chat.response_format = _response_format(body.text.format)
    if body.tools:
        chat.tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools)]
    choice = body.tool_choice
    chat.tool_choice = _named(body, choice) if isinstance(choice, ToolChoice) else choice
    return chat


def _refuse_unserved(body: ResponsesRequest) -> None:
    for name in Unserved.__struct_fields__:
        value = getattr(body, name)
        neutral = NEUTRAL.get(name, ())
        if value is None or any(type(value) is type(allowed) and value == allowed for allowed in neutral):
            continue
        served = " or ".join(msgspec.json.encode(allowed).decode() for allowed in neutral)
        told = f"'{name}' other than {served} is" if served else f"'{name}' is"
        raise RequestError(f"{told} not supported; leave it out.", name, code="unsupported_value")
    if "message.output_text.logprobs" in (body.include or []):
        raise RequestError(
            "'include': 'message.output_text.logprobs' is not supported here; "
            "/v1/chat/completions has 'logprobs'.",
            "include",
            code="unsupported_value",
        )


def _response_format(asked: Format) -> ResponseFormat | None:
    if asked.type != "json_schema":
        return ResponseFormat(asked.type)
    if asked.schema is None:
        raise missing("text.format.schema")
    return ResponseFormat(
        "json_schema", JsonSchemaFormat(asked.name, asked.schema, asked.description, asked.strict)
    )


def _tool(tool: Tool, field: str) -> ChatTool:
    if tool.type != "function":
        raise RequestError(
            f"'{field}.type': only functions are supported, not {tool.type!r:.60}.",
            f"{field}.type",
            code="unsupported_value",
        )
    if tool.name is None:
        raise missing(f"{field}.name")
    return ChatTool("function", Function(tool.name, tool.description, tool.parameters, tool.strict))


def _named(body: ResponsesRequest, choice: ToolChoice) -> NamedTool:
    if choice.type != "function":
        raise RequestError(
            f"'tool_choice.type': only functions are supported, not {choice.type!r:.60}.",
            "tool_choice.type",
            code="unsupported_value",
        )
    where = "tool_choice.name"
    if choice.name is None:
        raise missing(where)
    if choice.name not in {tool.name for tool in body.tools or []}:
        raise RequestError(f"'{where}': there is no tool named {choice.name!r:.100}.", where)
    return NamedTool("function", NamedFunction(choice.name))
