"""The engine: requests in, tokens out, one step after another on a backend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count

from headrace.backends.base import Backend, Ticket
from headrace.backends.cache import BLOCK_TOKENS
from headrace.backends.step import TokenMasks
from headrace.engine.cache_events import CacheEvents
from headrace.engine.constraint import fill_masks
from headrace.engine.kv_cache import KVCache
from headrace.engine.plan import ChunkResult, build_plan, read_result
from headrace.engine.request import FinishReason, Output, Request
from headrace.engine.scheduler import Chunk, Scheduler
from headrace.engine.sequence import Sequence
from headrace.engine.speculation import Ask, Speculation, count_accepted
from headrace.engine.stats import EngineStats
from headrace.engine.transfers import Transfers
from headrace.errors import CacheTooSmallError, ConfigError, RequestError


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of one engine. Raises ConfigError, naming the one that is wrong."""

    cache_blocks: int
    """Blocks in the pool of each cache group."""
    max_batch_tokens: int = 256
    """The most tokens one step computes."""
    max_running: int = 64
    """The most sequences that run at a time; never more than `max_batch_tokens`."""
    prefill_chunk: int | None = None
    """The most tokens of one sequence that a step computes; None for no limit of its own."""
    max_pinned_blocks: int = 0
    """The most blocks of each pool that pinned prefixes may take; no request can count on these."""

    def __post_init__(self) -> None:
        for name in ("cache_blocks", "max_batch_tokens", "max_running"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.prefill_chunk is not None and self.prefill_chunk < 1:
            raise ConfigError(f"prefill_chunk must be at least 1, not {self.prefill_chunk}")
        if not 0 <= self.max_pinned_blocks < self.cache_blocks:
            raise ConfigError(f"max_pinned_blocks must be from 0 to {self.cache_blocks - 1}")


class Engine:
    """Runs requests on a backend.

    A step is `submit`, then `collect`. Requests may be added, cancelled and finished at any time, in between
    too; whatever takes effect on blocks waits until the step in flight is collected.
    """

    def __init__(self, backend: Backend, config: EngineConfig, speculation: Speculation | None = None):
        """Without `speculation` every step of the backend's brings a sequence one token at most."""
        self.backend = backend
        self.config = config
        self.speculation = speculation
        groups = len(backend.cache_spec.groups)
        backend.allocate_cache([config.cache_blocks] * groups)
        self.cache = KVCache(groups, config.cache_blocks, config.max_pinned_blocks)
        batch_tokens = min(config.max_batch_tokens, backend.max_rows)
        self.scheduler = Scheduler(self.cache, batch_tokens, config.max_running, config.prefill_chunk)
        self.transfers = Transfers(self.cache)
        self._sequences: dict[str, Sequence] = {}
        self._arrivals = count()
        self._ticket: Ticket | None = None
        self._in_flight: list[Chunk] = []
        self._masks: TokenMasks | None = None
        self._steps = self._computed_tokens = self._generated_tokens = 0
        self._drafted_tokens = self._accepted_tokens = 0

    @property
    def longest_request(self) -> int:
        """The most tokens, of prompt and output together, that the cache can hold for one request."""
        blocks = self.config.cache_blocks - self.config.max_pinned_blocks
        return blocks * BLOCK_TOKENS + 1  # the last token of all is never computed

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting, running, in a step that is not collected, or has blocks on loan."""
        return bool(self._sequences or self._in_flight or self.transfers)

    @property
    def computed_tokens(self) -> int:
        """Rows of all steps collected."""
        return self._computed_tokens

    @property
    def stats(self) -> EngineStats:
        pools = self.cache.pools
        return EngineStats(
            waiting=len(self.scheduler.waiting),
            running=len(self.scheduler.running),
            blocks_total=sum(pool.total for pool in pools),
            blocks_used=sum(pool.used for pool in pools),
            blocks_cached=sum(pool.idle for pool in pools),
            prompt_tokens=self.scheduler.prompt_tokens,
            computed_tokens=self._computed_tokens,
            cached_tokens=self.scheduler.cached_tokens,
            generated_tokens=self._generated_tokens,
            preemptions=self.scheduler.preemptions,
            steps=self._steps,
            drafted_tokens=self._drafted_tokens,
            accepted_tokens=self._accepted_tokens,
            imported_tokens=self.transfers.imported_tokens,
        )

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises CacheTooSmallError where it could never be held, RequestError where it makes no sense.
        """
        self._check(request)
        seq = Sequence(request, next(self._arrivals), len(self.cache.pools))
        if request.constraint is not None:
            for token in request.output:
                request.constraint.advance(token)
        self._sequences[request.id] = seq
        self.transfers.add(seq)
        self.scheduler.add(seq)

    def cancel(self, request_id: str) -> bool:
        """End a request and report nothing more of it; False if there is none of that id.

        Its blocks are free at once, or when the step in flight that computes it is collected and the
        transfers that have them have ended.
        """
        seq = self._sequences.pop(request_id, None)
        if seq is None:
            return False
        seq.recalled = seq.lent
        if any(chunk.seq is seq for chunk in self._in_flight):
            seq.dropped = True
        else:
            self._end(seq)
        return True

    def finish(self, request_id: str) -> bool:
        """End a request that has said enough (a stop string was found); as `cancel` in all it does.

        Either way what has been computed stays in the prefix tree.
        """
        return self.cancel(request_id)

    def submit(self) -> bool:
        """Plan a step and begin computing it; False if there is nothing to run."""
        assert self._ticket is None, "the step in flight must be collected first"
        chunks = self.scheduler.schedule()
        if not chunks:
            return False
        if self.speculation is not None:
            chunks = self._draft(chunks, self.speculation)
        plan = build_plan(chunks, self.backend.vocab_size)
        self._ticket = self.backend.submit(plan)
        self._in_flight, self._masks = chunks, plan.token_masks
        for chunk in chunks:
            if chunk.seq.copies:
                self.cache.copied(chunk.seq)
        return True

    def collect(self) -> list[Output]:
        """Wait for the step in flight; what it brought, for each request that it brought something.

        The masks of constrained requests are computed first, while the backend computes the layers.
        """
        assert self._ticket is not None, "no step is in flight"
        if self._masks is not None:
            fill_masks(self._in_flight, self._masks.bits)
        result = self.backend.collect(self._ticket)
        chunks, self._in_flight, self._ticket = self._in_flight, [], None
        self._steps += 1
        outputs = []
        for part in read_result(chunks, result):
            output = self._advance(part)
            if output is not None:
                outputs.append(output)
        return outputs

    def take_cache_events(self, *, anew: bool = False) -> CacheEvents:
        """The full blocks cached and given up since the last call, by their digests.

        The first call, and one `anew`, tells all that are cached; before it nothing is collected.
        """
        return self.cache.tree.take_events(anew=anew)

    def observe(self, submit_seconds: float, step_seconds: float) -> None:
        """Say how long the last `submit` took, and then the step; from that it learns how much to draft."""
        if self.speculation is not None:
            self.speculation.observe(submit_seconds, step_seconds)

    def _draft(self, chunks: list[Chunk], speculation: Speculation) -> list[Chunk]:
        """Add drafted tokens to the chunks of decoding sequences, in what room there is."""
        budget = self.scheduler.budget_left
        decoding: list[int] = []
        asks: list[Ask] = []
        for index, chunk in enumerate(chunks):
            seq = chunk.seq
            # The last token a request may have is sampled, but never drafted.
            room = min(speculation.draft_tokens, budget, seq.remaining - 1)
            if room > 0 and chunk.start >= seq.prefill_end:
                decoding.append(index)
                asks.append(Ask(seq, room))
        rows = sum(chunk.count for chunk in chunks)
        drafts = speculation.drafts(asks, rows, budget)
        for index, drafted in zip(decoding, drafts, strict=True):
            chunk = chunks[index]
            room = self.cache.grow_if_available(chunk.seq, chunk.end + len(drafted)) - chunk.end
            drafted = drafted[:room]
            if (matcher := chunk.seq.request.constraint) is not None:
                drafted = drafted[: matcher.allowed(drafted)]
            if drafted:
                chunks[index] = replace(chunk, drafts=drafted)
        return chunks

    def _advance(self, part: ChunkResult) -> Output | None:
        """Take in what a chunk computed: tokens for the prefix tree, and for the request."""
        chunk, seq, tokens = part.chunk, part.chunk.seq, part.tokens
        seq.computed = chunk.end
        seq.logits_done = max(seq.logits_done, chunk.end)
        self._computed_tokens += chunk.rows
        if seq.dropped:
            self._end(seq)
            return None
        if chunk.drafts:
            tokens = tokens[: 1 + self._verify(chunk, tokens)]
        matcher, finish_reason = seq.request.constraint, None
        if matcher is not None and matcher.error:  # there was no mask, so the token is none of its
            tokens, finish_reason = [], FinishReason.ERROR
        for taken, token in enumerate(tokens):
            finish_reason = seq.append(token)
            seq.computed = chunk.end + taken
            if finish_reason is not None:
                tokens = tokens[: taken + 1]
                break
        if not seq.request.samples and seq.computed == seq.prompt_length:
            finish_reason = FinishReason.STOP
        self._generated_tokens += len(tokens)
        if finish_reason is not None:
            del self._sequences[seq.request.id]
            self._end(seq)
        else:
            if chunk.drafts:
                self.cache.shrink(seq)
            self.cache.commit(seq, partial=chunk.start < seq.prefill_end)
        if not tokens and finish_reason is None and not part.has_prompt:
            return None
        return Output(
            seq.request.id,
            tuple(tokens),
            finish_reason,
            seq.cached_tokens or 0,
            part.logprobs[: len(tokens)],
            part.logits,
            part.prompt_start,
            part.prompt_logprobs,
            part.hidden,
            matcher.error if matcher is not None and finish_reason is FinishReason.ERROR else "",
        )

    def _verify(self, chunk: Chunk, sampled: list[int]) -> int:
        """How many of a chunk's drafted tokens are what the model sampled."""
        assert self.speculation is not None
        accepted = count_accepted(sampled, chunk.drafts)
        self.speculation.verified(chunk.seq, len(chunk.drafts), accepted)
        self._drafted_tokens += len(chunk.drafts)
        self._accepted_tokens += accepted
        return accepted

    def _end(self, seq: Sequence) -> None:
        """Forget a sequence that no step in flight computes."""
        self.scheduler.end(seq)
        self.transfers.ended(seq)
        if self.speculation is not None:
            self.speculation.forget(seq)

    def _check(self, request: Request) -> None:
        if request.id in self._sequences or request.id in self.transfers:
            raise RequestError(f"A request with the id {request.id!r} is running already.", "id")
        if not request.prompt:
            raise RequestError("The prompt must have at least one token.", "prompt")
        for field, tokens in (("prompt", request.prompt), ("output", request.output)):
            if tokens and not 0 <= min(tokens) <= max(tokens) < self.backend.vocab_size:
                raise RequestError(f"Token ids must be from 0 to {self.backend.vocab_size - 1}.", field)
        if any(not 0 <= token < self.backend.vocab_size for token, _ in request.logit_bias):
            raise RequestError(f"Token ids must be from 0 to {self.backend.vocab_size - 1}.", "logit_bias")
        if request.max_tokens < 1 and request.samples:
            raise RequestError(f"max_tokens must be at least 1, not {request.max_tokens}.", "max_tokens")
        if request.output and len(request.output) >= request.max_tokens:
            raise RequestError(f"The output has all of its {request.max_tokens} tokens already.", "output")
        length = len(request.prompt) + request.max_tokens
        if length > self.longest_request:
            raise CacheTooSmallError(
                f"The request may take {length} tokens, {len(request.prompt)} of prompt and "
                f"{request.max_tokens} more, but the cache can hold {self.longest_request}. "
                "Ask for less, or start with a larger cache."
            )
