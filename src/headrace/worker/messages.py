"""What gateway and worker say to each other: plain structs, encoded as MessagePack.

One step's tokens of all requests travel in one message. A worker's first message is `Ready` or `Failed`,
on another host `Hello`; both sides refuse a peer whose PROTOCOL_VERSION differs.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.backends.fingerprint import Fingerprint
from headrace.backends.sampling import SamplingParams
from headrace.engine.prefix_report import CachedPrefix
from headrace.engine.stats import EngineStats

PROTOCOL_VERSION = 6

LOST_BEATS = 5
"""Signs of life, of a worker on another host or of its gateway, that may be missing before it is lost."""


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Tagged by class name; positional on the wire, so fields are only ever added at the end."""


class Constraint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the output must match, token by token."""

    kind: Literal["json_schema", "regex", "lark"]
    text: str
    """The schema as JSON text, the regular expression, or the grammar in llguidance's Lark dialect."""


class Handoff(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who computes a prompt for another worker."""

    id: str
    """Of the `Prefill` that it was asked with."""
    address: str
    """Where it gives out blocks."""


# gateway to worker


class Submit(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """Generate. The gateway has tokenized, checked and limited the request."""

    id: str
    prompt: list[int]
    max_tokens: int
    sampling: SamplingParams
    stop: list[str] = []
    """Stop strings; the worker ends the request where one appears and sends no text from it on."""
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    top_logprobs: int = -1
    priority: int = 0
    adapter: str = ""
    salt: str = ""
    use_prefix_cache: bool = True
    min_tokens: int = 0
    """No stop token, end-of-text token or stop string ends the request before it has so many tokens."""
    logit_bias: list[tuple[int, float]] = []
    """(token id, addend to its logit); ids are distinct and in the vocabulary."""
    constraint: Constraint | None = None
    include_stop: bool = False
    """Text ends with the stop string that was met instead of before it."""
    prompt_logprobs: int = -1
    """As top_logprobs, for every prompt token but the first; they come with the first event."""
    output: list[int] = []
    """Tokens that another worker has delivered: what follows them is what that one would have sent."""
    handoff: Handoff | None = None
    """Take prompt and output's keys and values from there; compute what does not come."""


class Prefill(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """Compute a prompt and give its blocks to the worker that asks for them; answer with `Prefilled`.

    May be cancelled as a request.
    """

    id: str
    prompt: list[int]
    """Of the request, and what it was given of output."""
    priority: int = 0
    adapter: str = ""
    salt: str = ""
    use_prefix_cache: bool = True


class Embed(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """Answer with `Embedded`, or `Rejected`; may be cancelled as a request."""

    id: str
    prompt: list[int]


class Cancel(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """The client went away. No further event of this request is sent."""

    id: str


class Drain(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """Finish what is accepted, answer `Drained`, and exit."""


class Ping(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """Answer with `Stats`."""


class ExplainPrefix(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """Answer with `PrefixExplained`; the cache stays as it is."""

    id: str
    prompt: list[int]
    salt: str = ""


class ListPrefixes(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """Answer with `PrefixesListed`: those that saved most, and those that are pinned."""

    id: str
    limit: int
    salt: str = ""


class PinPrefix(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """Keep what is cached of the prompt; answer with `PrefixPinned`, or `Rejected` beyond the limit."""

    id: str
    prompt: list[int]
    salt: str = ""


class UnpinPrefix(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """Take back a pin of the very same tokens; answer with `PrefixPinned`."""

    id: str
    prompt: list[int]
    salt: str = ""


class Beat(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """A sign of life, to and from workers on other hosts."""


class Welcome(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """The answer to `Hello`: load the model, and send `Ready`."""

    beat: float
    """Seconds between two signs of life, in either direction."""


class Refused(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """The other answer to `Hello`, or to `Ready`. Of the same shape in every version."""

    reason: str


class Reset(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """Forget all requests and pins: they are nobody's any more. Then begin again with `Hello`."""


# worker to gateway


class Ready(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """The model is loaded; requests are welcome."""

    version: int
    pid: int
    model: str
    fingerprint: Fingerprint
    context_length: int
    """The most tokens of prompt and output together."""
    cache_blocks: int
    block_tokens: int
    cache_bytes: int
    """Of the whole cache, a draft model's included."""
    transfer: str = ""
    """Where this worker gives out blocks; empty where it does not."""


class Failed(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """The model could not be loaded: the first and last message of this worker."""

    reason: str


class TokenEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one step brought for one request."""

    id: str
    text: str
    """New text that no stop string can take back; whole characters only."""
    token_ids: list[int]
    finish_reason: str | None = None
    """stop, length, cancelled; None while it goes on."""
    cached_tokens: int = 0
    """Prompt tokens found in the cache; 0 where the request goes on from another worker's output."""
    logprobs: list[tuple[float, list[int], list[float]]] = []
    """For each of token_ids where asked: the chosen token's, then the top ids and theirs."""
    prompt_logprobs: list[tuple[float, list[int], list[float]]] = []
    """As `logprobs`, for the prompt's second and later tokens, where asked, with the first event."""
    stop_string: str = ""
    """The stop string that ended it, if one did."""


class Events(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """All that one step brought."""

    events: list[TokenEvent]


class Rejected(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """This request cannot run, or not go on, or this question not be answered."""

    id: str
    reason: str


class Prefilled(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """The answer to `Prefill`: the prompt is computed, though not all of it need have been sent."""

    id: str
    cached_tokens: int
    """Of the prompt's, found in the cache."""


class Embedded(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """The answer to `Embed`."""

    id: str
    vector: list[float]
    """Of length 1."""


class Stats(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """The answer to `Ping`."""

    engine: EngineStats
    """Counted since the worker started."""


class Hello(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """The first message of a worker on another host. `version` stands here in every version."""

    version: int
    name: str
    """How people know it."""
    instance: str
    """Drawn when the process started: it stays when the connection is another."""
    model: str
    role: Literal["both", "prefill", "decode"]
    pid: int


class Leaving(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """Send nothing new, and `Drain` when all has ended; what has not after so many seconds goes elsewhere."""

    seconds: float


class CacheChanged(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """Full blocks that the prefix cache has stored and given up, by `engine.block_digest`; told unasked."""

    stored: list[bytes]
    """Parents before children."""
    evicted: list[bytes]
    anew: bool = False
    """Whether these are all there are, and nothing told before counts."""


class Drained(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """The last message of a worker that was told to drain."""


class PrefixExplained(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """The answer to `ExplainPrefix`."""

    id: str
    cached: int
    """Leading tokens of the prompt that are cached, all of them perhaps."""
    continuation: list[int]
    """What the nearest cached sequence has from there on; empty where none goes on."""


class PrefixesListed(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """The answer to `ListPrefixes`."""

    id: str
    prefixes: list[CachedPrefix]


class PrefixPinned(_Message, frozen=True, tag=True, array_like=True, gc=False):
    """The answer to `PinPrefix` and `UnpinPrefix`."""

    id: str
    tokens: int
    """Of the prompt's that are pinned now: whole blocks."""
    blocks: int
    """Pinned in all."""
    limit: int
    """Blocks that may be pinned in all."""


PrefixQuestion = ExplainPrefix | ListPrefixes | PinPrefix | UnpinPrefix
PrefixAnswer = PrefixExplained | PrefixesListed | PrefixPinned

Question = PrefixQuestion | Embed
Answer = PrefixAnswer | Embedded

ToWorker = Submit | Prefill | Cancel | Drain | Ping | Question | Beat | Welcome | Refused | Reset
ToGateway = (
    Ready
    | Failed
    | Events
    | Rejected
    | Prefilled
    | Stats
    | CacheChanged
    | Drained
    | Answer
    | Beat
    | Hello
    | Leaving
)

encode = msgspec.msgpack.Encoder().encode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_to_gateway = msgspec.msgpack.Decoder(ToGateway).decode
