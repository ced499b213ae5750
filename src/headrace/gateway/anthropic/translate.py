"""From Anthropic's words to OpenAI's, which all else understands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.errors import RequestError
from headrace.gateway.anthropic.conversation import chat_messages
from headrace.gateway.anthropic.requests import Conversation, MessagesRequest, Tool
from headrace.gateway.errors import missing, unsupported
from headrace.gateway.openai.requests import (
    ChatRequest,
    Function,
    JsonSchemaFormat,
    NamedFunction,
    NamedTool,
    ResponseFormat,
)
from headrace.gateway.openai.requests import Tool as ChatTool

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_request(body: Conversation) -> ChatRequest:
    """The request in OpenAI's words. Raises RequestError for what is wrong or not served."""
    for name in ("mcp_servers", "container"):
        if getattr(body, name):
            raise unsupported(name)
    chat = ChatRequest(model=body.model, messages=chat_messages(body))
    _set_tools(chat, body)
    chat.chat_template_kwargs = _thinking(body) | (body.chat_template_kwargs or {})
    last = chat.messages[-1]
    chat.continue_final_message = last.role == "assistant" and not last.tool_calls
    if (config := body.output_config) is not None:
        chat.reasoning_effort = config.effort
        if config.format is not None:
            chat.response_format = ResponseFormat(
                "json_schema", JsonSchemaFormat("answer", config.format.schema)
            )
    if isinstance(body, MessagesRequest):
        _set_sampling(chat, body)
    return chat


def _set_sampling(chat: ChatRequest, body: MessagesRequest) -> None:
    chat.max_tokens = body.max_tokens
    chat.stop = body.stop_sequences
    chat.stream = body.stream
    chat.temperature, chat.top_p, chat.top_k, chat.min_p = (
        body.temperature,
        body.top_p,
        body.top_k,
        body.min_p,
    )
    chat.seed, chat.repetition_penalty = body.seed, body.repetition_penalty
    chat.min_tokens, chat.ignore_eos = body.min_tokens, body.ignore_eos
    chat.cache_salt, chat.priority = body.cache_salt, body.priority
    chat.headrace = body.headrace


def _thinking(body: Conversation) -> dict[str, Any]:
    """Variables for the chat template. Here a model thinks only where it is told to."""
    asked = body.thinking
    variables: dict[str, Any] = {"enable_thinking": asked is not None and asked.type != "disabled"}
    if asked is not None and asked.budget_tokens is not None:
        variables["thinking_budget"] = asked.budget_tokens
    return variables


def _set_tools(chat: ChatRequest, body: Conversation) -> None:
    tools = body.tools or []
    if tools:
        chat.tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    choice = body.tool_choice
    if choice is None:
        return
    if choice.disable_parallel_tool_use:
        chat.parallel_tool_calls = False
    if choice.type == "tool":
        chat.tool_choice = _named(choice.name, tools)
        return
    if choice.type == "any" and not tools:
        raise RequestError("'tool_choice.type' is \"any\", but there are no 'tools'.", "tool_choice.type")
    chat.tool_choice = _CHOICES[choice.type]  # type: ignore[assignment]  # of the literals there


def _tool(tool: Tool, field: str) -> ChatTool:
    if tool.type not in (None, "custom"):
        raise RequestError(
            f"'{field}.type': only the client's own tools are supported, not {tool.type!r:.60}.",
            f"{field}.type",
            code="unsupported_value",
        )
    if tool.input_schema is None:
        raise missing(f"{field}.input_schema")
    return ChatTool("function", Function(tool.name, tool.description, tool.input_schema, tool.strict))


def _named(name: str | None, tools: Sequence[Tool]) -> NamedTool:
    where = "tool_choice.name"
    if name is None:
        raise missing(where)
    if name not in {tool.name for tool in tools}:
        raise RequestError(f"'{where}': there is no tool named {name!r:.100}.", where)
    return NamedTool("function", NamedFunction(name))
