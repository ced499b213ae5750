"""From the prompts and messages that clients send to token ids that fit the model."""

from __future__ import annotations

from headrace.errors import HeadraceError, RequestError
from headrace.gateway.requests import ChatMessage, ChatRequest, CompletionRequest
from headrace.gateway.served import ServedModel, off_the_loop
from headrace.models.control_tokens import MarkedText

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
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


async def encode_prompt(model: ServedModel, prompt: Prompt, field: str) -> list[int]:
    """A completion prompt's tokens, checked against the model's vocabulary and context."""
    if isinstance(prompt, str):
        return await off_the_loop(len(prompt), lambda: _tokenize(model, prompt, field))
    _check_fits(model, len(prompt), field)
    vocab_size = model.prompter.vocab_size
    for i, token in enumerate(prompt):
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"Invalid '{field}[{i}]': expected a token id from 0 to {vocab_size - 1}, got {token}.",
                f"{field}[{i}]",
            )
    return prompt


async def encode_messages(model: ServedModel, request: ChatRequest) -> list[int]:
    """A conversation's tokens, up to where the assistant's answer begins."""
    messages = [_plain(message, f"messages[{i}]") for i, message in enumerate(request.messages)]
    size = sum(len(message["content"]) for message in messages)
    try:
        return await off_the_loop(size, lambda: _tokenize(model, model.prompter.render(messages), "messages"))
    except RequestError:
        raise
    except HeadraceError as error:
        raise RequestError(
            f"The chat template of '{model.name}' refuses these messages: {error}",
            "messages",
            code="chat_template_error",
        ) from error


def _tokenize(model: ServedModel, prompt: str | MarkedText, field: str) -> list[int]:
    """The prompt's tokens, checked; one that is far too long is refused before that work is done."""
    fewest = model.prompter.fewest_tokens(prompt)
    if fewest >= model.context_length:
        raise _too_long(model, f"at least {fewest}", field)
    tokens = model.prompter.encode(prompt)
    _check_fits(model, len(tokens), field)
    return tokens


def _check_fits(model: ServedModel, tokens: int, field: str) -> None:
    """Raises RequestError where the prompt is empty or leaves no room for one token of answer."""
    if not tokens:
        raise RequestError(f"Invalid '{field}': expected at least one token, got none.", field)
    if tokens >= model.context_length:
        raise _too_long(model, str(tokens), field)


def _too_long(model: ServedModel, tokens: str, field: str) -> RequestError:
    return RequestError(
        f"The context of '{model.name}' is {model.context_length} tokens, prompt and answer together; "
        f"this prompt has {tokens}. Shorten it to at most {model.context_length - 1}.",
        field,
        code="context_length_exceeded",
    )


def _plain(message: ChatMessage, field: str) -> dict[str, str]:
    role = _ROLES.get(message.role)
    if role is None:
        if message.role in ("tool", "function"):
            raise RequestError(
                f"'{field}.role': tools are not supported yet.", f"{field}.role", code="unsupported_value"
            )
        raise RequestError(
            f"Invalid '{field}.role': expected one of {', '.join(_ROLES)}, got {message.role!r:.60}.",
            f"{field}.role",
        )
    for name in ("tool_calls", "function_call", "audio"):
        if getattr(message, name) not in (None, []):
            raise RequestError(
                f"'{field}.{name}' is not supported yet; leave it out.",
                f"{field}.{name}",
                code="unsupported_value",
            )
    if message.content is None:
        raise RequestError(f"Missing required field '{field}.content'.", f"{field}.content")
    if isinstance(message.content, str):
        return {"role": role, "content": message.content}
    texts = []
    for i, part in enumerate(message.content):
        where = f"{field}.content[{i}]"
        if part.type != "text":
            raise RequestError(
                f"'{where}.type': only text is supported yet, not {part.type!r:.60}.",
                f"{where}.type",
                code="unsupported_value",
            )
        if part.text is None:
            raise RequestError(f"Missing required field '{where}.text'.", f"{where}.text")
        texts.append(part.text)
    return {"role": role, "content": "".join(texts)}
