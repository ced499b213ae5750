"""From the prompts and messages that clients send to token ids that fit the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.errors import HeadraceError, RequestError
from headrace.gateway.errors import missing, unsupported
from headrace.gateway.openai.requests import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    ContentPart,
    NamedTool,
)
from headrace.gateway.served import ServedModel, off_the_loop
from headrace.models.control_tokens import MarkedText

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""`developer` is OpenAI's newer word for what templates know as `system`."""

Prompt = str | list[int]


def split_prompts(request: CompletionRequest) -> list[Prompt]:
    """The request's prompts, one or several. Raises RequestError where texts, ids and lists are mixed."""
    if isinstance(request.prompt, str):
        return [request.prompt]
    kinds = {type(part) for part in request.prompt}
    if kinds == {int}:
        return [[part for part in request.prompt if isinstance(part, int)]]
    if len(kinds) != 1:
        raise RequestError(
            "Invalid 'prompt': expected a string, strings, token ids, or lists of token ids, not a mixture.",
            "prompt",
        )
    return [part for part in request.prompt if not isinstance(part, int)]


def answer_tokens(request: ChatRequest | CompletionRequest) -> int | None:
    """The most tokens of answer that the request asks for, None where it leaves that open."""
    if request.max_completion_tokens is not None:
        return request.max_completion_tokens
    return request.max_tokens if request.max_tokens is None else max(1, request.max_tokens)


def stop_strings(request: ChatRequest | CompletionRequest) -> list[str]:
    """Where the answer is to end."""
    return [request.stop] if isinstance(request.stop, str) else request.stop or []


async def encode_prompt(
    model: ServedModel, prompt: Prompt, field: str, answer: int | None = None
) -> list[int]:
    """A prompt's tokens, checked against vocabulary and context; up to `answer` tokens are to follow."""
    if isinstance(prompt, str):
        return await off_the_loop(len(prompt), lambda: _tokenize(model, prompt, field, answer))
    _check_fits(model, len(prompt), field, answer)
    vocab_size = model.prompter.vocab_size
    for i, token in enumerate(prompt):
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"Invalid '{field}[{i}]': expected a token id from 0 to {vocab_size - 1}, got {token}.",
                f"{field}[{i}]",
            )
    return prompt


def text_of(model: ServedModel, prompt: Prompt) -> str:
    """A completion prompt as text."""
    if isinstance(prompt, str):
        return prompt
    return b"".join(map(model.prompter.token_bytes, prompt)).decode("utf-8", errors="replace")


def offered_tools(request: ChatRequest) -> list[dict[str, Any]]:
    """The tools that the model may call, as its chat template wants them; none where the choice is none."""
    choice = request.tool_choice
    tools = request.tools or []
    if choice == "required" and not tools:
        raise RequestError("'tool_choice' is \"required\", but there are no 'tools'.", "tool_choice")
    if isinstance(choice, NamedTool) and choice.function.name not in {t.function.name for t in tools}:
        raise RequestError(
            f"'tool_choice.function.name': there is no tool named {choice.function.name!r:.100}.",
            "tool_choice.function.name",
        )
    return [] if choice == "none" else [msgspec.to_builtins(tool) for tool in tools]


async def render_messages(
    model: ServedModel, request: ChatRequest, tools: Sequence[dict[str, Any]]
) -> tuple[MarkedText, list[int]]:
    """A conversation as text, up to where the assistant's answer begins, and its tokens."""
    messages = [_plain(message, f"messages[{i}]") for i, message in enumerate(request.messages)]
    if tools and not model.prompter.knows_tools:
        raise RequestError(
            f"The chat template of '{model.name}' knows no tools; leave 'tools' out or use another model.",
            "tools",
            code="unsupported_value",
        )
    size = sum(len(message["content"] or "") for message in messages)
    continued = bool(request.continue_final_message)
    if continued and request.messages[-1].role != "assistant":
        raise RequestError(
            "'continue_final_message' needs a last message of the role assistant.", "continue_final_message"
        )

    def work() -> tuple[MarkedText, list[int]]:
        text = model.prompter.render(
            messages,
            tools=tools or None,
            extra=_template_variables(request) or None,
            add_generation_prompt=not continued and request.add_generation_prompt is not False,
            continue_final=continued,
        )
        return text, _tokenize(model, text, "messages", answer_tokens(request))

    try:
        return await off_the_loop(size, work)
    except RequestError:
        raise
    except HeadraceError as error:
        raise RequestError(
            f"The chat template of '{model.name}' refuses these messages: {error}",
            "messages",
            code="chat_template_error",
        ) from error


def _template_variables(request: ChatRequest) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if request.documents:
        extra["documents"] = request.documents
    if request.reasoning_effort is not None:
        extra["reasoning_effort"] = request.reasoning_effort
        if request.reasoning_effort == "none":
            extra["enable_thinking"] = False
    return extra | (request.chat_template_kwargs or {})


def _tokenize(model: ServedModel, prompt: str | MarkedText, field: str, answer: int | None) -> list[int]:
    """The prompt's tokens, checked; one that is far too long is refused before that work is done."""
    fewest = model.prompter.fewest_tokens(prompt)
    if fewest >= model.context_length:
        raise _too_long(model, f"at least {fewest}", field, answer)
    tokens = model.prompter.encode(prompt)
    _check_fits(model, len(tokens), field, answer)
    return tokens


def _check_fits(model: ServedModel, tokens: int, field: str, answer: int | None) -> None:
    """Raises RequestError where the prompt is empty or leaves no room for one token of answer."""
    if not tokens:
        raise RequestError(f"Invalid '{field}': expected at least one token, got none.", field)
    if tokens >= model.context_length:
        raise _too_long(model, str(tokens), field, answer)


def _too_long(model: ServedModel, tokens: str, field: str, answer: int | None) -> RequestError:
    """Clients tell this error from others by its first words, or by "prompt is too long"."""
    asked = "" if answer is None else f", and up to {answer} of answer were asked for"
    return RequestError(
        f"This model's maximum context length is {model.context_length} tokens, prompt and answer together, "
        f"and this prompt is too long: it has {tokens}{asked}. "
        f"Shorten it to at most {model.context_length - 1}.",
        field,
        code="context_length_exceeded",
    )


def _plain(message: ChatMessage, field: str) -> dict[str, Any]:
    """The message as chat templates know it."""
    role = _ROLES.get(message.role)
    if role is None:
        raise RequestError(
            f"Invalid '{field}.role': expected one of {', '.join(_ROLES)}, got {message.role!r:.60}.",
            f"{field}.role",
        )
    for name in ("function_call", "audio"):
        if getattr(message, name) not in (None, []):
            raise unsupported(f"{field}.{name}")
    plain: dict[str, Any] = {"role": role, "content": _content(message, field)}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if message.reasoning_content is not None:
        plain["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        if role != "assistant":
            raise RequestError(f"'{field}.tool_calls': only an assistant calls tools.", f"{field}.tool_calls")
        plain["tool_calls"] = [_call(i, call, field) for i, call in enumerate(message.tool_calls)]
    return plain


def _call(index: int, call: Any, field: str) -> dict[str, Any]:
    """The call with its arguments as an object, which is what templates write as JSON."""
    arguments = call.function.arguments
    if isinstance(arguments, str):
        where = f"{field}.tool_calls[{index}].function.arguments"
        try:
            arguments = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"Invalid '{where}': expected a JSON object in a text.", where) from error
    plain = {"type": "function", "function": {"name": call.function.name, "arguments": arguments}}
    return plain if call.id is None else {"id": call.id} | plain


def _content(message: ChatMessage, field: str) -> str:
    if message.content is None:
        if message.tool_calls:
            return ""
        raise missing(f"{field}.content")
    if isinstance(message.content, str):
        return message.content
    return "".join(_part(part, f"{field}.content[{i}]") for i, part in enumerate(message.content))


def _part(part: ContentPart, where: str) -> str:
    if part.image_url is not None:  # in other dialects the place has another name
        raise RequestError(
            "'messages': this model takes no images; leave them out, or ask one that does.",
            "messages",
            code="unsupported_value",
        )
    if part.type not in ("text", "input_text", "output_text", "refusal"):
        raise RequestError(
            f"'{where}.type': only text is supported, not {part.type!r:.60}.",
            f"{where}.type",
            code="unsupported_value",
        )
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        raise missing(f"{where}.text")
    return text
