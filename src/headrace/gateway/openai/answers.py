"""What clients are sent: the bodies and stream chunks of OpenAI's completion endpoints."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from headrace.gateway.prefix_report import PrefixReport
from headrace.gateway.route_report import RouteReport

DONE = b"data: [DONE]\n\n"


class PromptTokensDetails(Struct):
    cached_tokens: int
    prefix: list[PrefixReport] | UnsetType = UNSET
    """For each prompt, where the request asked: where it leaves what was cached before."""


class Usage(Struct):
    """Tokens of a request, over all its prompts and choices; a prompt counts once for all its choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    headrace: RouteReport | UnsetType = UNSET
    """Of a routed request."""


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(Struct):
    """Parallel lists, one element for each token; a prompt's first token has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CalledFunction(Struct):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCall(Struct):
    id: str
    function: CalledFunction
    type: str = "function"


class ToolCallDelta(Struct):
    index: int
    function: CalledFunction
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class ChatAnswerMessage(Struct):
    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatDelta(Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChoice(Struct):
    index: int
    message: ChatAnswerMessage
    finish_reason: str | None
    logprobs: ChatLogprobs | None = None


class ChatChunkChoice(Struct):
    index: int
    delta: ChatDelta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None


class CompletionChoice(Struct):
    """A whole answer, or a piece of one in a stream."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: CompletionLogprobs | None = None


Choice = ChatChoice | ChatChunkChoice | CompletionChoice


class Envelope(Struct):
    """What every body and every chunk of one answer has around its choices."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[Choice]
    usage: Usage | UnsetType | None = UNSET


def server_sent_event(data: bytes) -> bytes:
    """One event of a stream."""
    return b"data: " + data + b"\n\n"
