"""What a request needs, as far as the choice of a model depends on it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headrace.errors import RequestError
from headrace.gateway.openai.requests import ChatMessage, ChatRequest, CompletionRequest
from headrace.gateway.prompts import answer_tokens, split_prompts
from headrace.gateway.remotes.abilities import abilities_needed, asks_logprobs
from headrace.gateway.remotes.contents import images_in
from headrace.routing.output_length import cues_of

BYTES_PER_TOKEN = 4.0
"""A first guess, before a model has counted any."""
_MESSAGE_TOKENS = 4
"""Around each message, in most chat templates."""


@dataclass(frozen=True, slots=True)
class Need:
    """Known before any model is asked."""

    text: str
    """What the quality of an answer is estimated from: the last message of the user, or the prompt."""
    size: int
    """Bytes of all that the prompt is written from, without images."""
    messages: int
    most_output: int | None
    """Tokens of each answer that are asked for at most; None where that is left open."""
    sequences: int
    abilities: frozenset[str]
    chat: bool
    cues: tuple[float, ...]
    """Of the text, for the length of its answer."""
    prompts: int = 1
    """How many there are; each has a context of its own."""
    given_tokens: int = 0
    """Of prompts that came as tokens."""
    images: int = 0
    """How many there are; `size` does not hold them."""

    def tokens(self, bytes_per_token: float = BYTES_PER_TOKEN) -> int:
        """Of the prompt, estimated."""
        around = _MESSAGE_TOKENS * self.messages
        return max(1, round(self.size / bytes_per_token) + around + self.given_tokens)


def need_of(request: ChatRequest | CompletionRequest, *, one_model: bool = False) -> Need:
    """Raises RequestError for a prompt of tokens, which mean another thing to each model, where several may
    answer.
    """
    most, choices = answer_tokens(request), request.n or 1
    if isinstance(request, ChatRequest):
        texts = [_text(message) for message in request.messages]
        size = sum(map(_size, texts)) + _size_beside(request)
        pairs = zip(request.messages, texts, strict=True)
        users = [text for message, text in pairs if message.role == "user"]
        last = users[-1] if users else texts[-1]
        needed, images = abilities_needed(request), sum(1 for _ in images_in(request.messages))
        return Need(last, size, len(texts), most, choices, needed, True, cues_of(last), images=images)
    prompts = split_prompts(request)
    plain = [prompt for prompt in prompts if isinstance(prompt, str)]
    given = sum(len(prompt) for prompt in prompts if not isinstance(prompt, str))
    if given and not one_model:
        raise RequestError(
            "'prompt' has token ids, and each model has its own: name a model, or send the text.", "prompt"
        )
    size = sum(map(_size, plain))
    text = "\n".join(plain)
    count = len(prompts)
    needed = frozenset({"logprobs"} if asks_logprobs(request) else ())
    return Need(text, size, 0, most, choices * count, needed, False, cues_of(text), count, given_tokens=given)


def _text(message: ChatMessage) -> str:
    if isinstance(message.content, list):
        return "".join(part.text or part.refusal or "" for part in message.content)
    return message.content or ""


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _size_beside(request: ChatRequest) -> int:
    """Bytes of tools, calls, thoughts and the answer's form, as JSON: roughly what templates make of them."""
    told: list[object] = [request.tools, request.response_format]
    for message in request.messages:
        told += message.tool_calls, message.reasoning_content
    return sum(len(msgspec.json.encode(each)) for each in told if each)
