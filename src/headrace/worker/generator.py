"""From requests to events: an engine, and the text and stop strings of each request in it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING

from headrace.backends.step import TopLogprobs
from headrace.engine.request import FinishReason, Output, PrefixNamespace, Request
from headrace.engine.stats import EngineStats
from headrace.errors import HeadraceError, RequestError
from headrace.models.gguf import GgufFile
from headrace.models.tokenizer import Tokenizer
from headrace.models.vocabulary import Vocabulary
from headrace.worker.constraints import Constraints, TokenMatcher
from headrace.worker.detokenizer import Delivery, Detokenizer
from headrace.worker.embeddings import Pool
from headrace.worker.handoff.exchange import Exchange
from headrace.worker.loader import LoadedModel
from headrace.worker.loans import Loans
from headrace.worker.messages import (
    Embed,
    Embedded,
    Prefill,
    Prefilled,
    Rejected,
    Submit,
    TokenEvent,
)
from headrace.worker.pace import Pace

if TYPE_CHECKING:
    from headrace.worker.tiers.fetcher import Fetch


@dataclass(slots=True)
class _Live:
    """A request that has not ended."""

    detokenizer: Detokenizer
    stop_token_ids: frozenset[int]
    min_tokens: int = 0
    tokens: int = 0
    """How many it has."""
    resumed: bool = False
    """Whether another worker began it."""
    fetch: Fetch | None = None
    """Of blocks that follow what is cached of its prompt."""
    prompt_logprobs: list[TopLogprobs] = field(default_factory=list)
    """Not yet reported."""

    @property
    def fetched(self) -> int:
        """Prompt tokens that came from a slower tier of the cache."""
        return 0 if self.fetch is None else self.fetch.tokens

    def push(self, token: int) -> Delivery:
        """Takes a token that is text; what can be delivered then."""
        self.tokens += 1
        return self.detokenizer.push((token,), may_stop=self.tokens >= self.min_tokens)


class Generator:
    """Runs requests on a loaded model, a step at a time.

    `begin` and `complete` frame a step, so that other work can be done while it computes. A request is only
    added or cancelled between steps.
    """

    def __init__(self, loaded: LoadedModel, vocabulary: Vocabulary) -> None:
        """`vocabulary` is the model's: it turns token ids into text, and says which ids end it."""
        self._loaded = loaded
        self._vocabulary = vocabulary
        self._engine = loaded.engine
        self._tiers = loaded.tiers
        self._live: dict[str, _Live] = {}
        self._constraints = Constraints(loaded.backend.vocab_size, self._tokenizer)
        self._compiling: dict[str, tuple[Submit, Future[TokenMatcher]]] = {}
        self._pools: dict[str, Pool] = {}
        self.loans = Loans(self._engine.transfers)
        self.exchange: Exchange | None = None
        """For handoffs; without one every prompt is computed here."""
        self._prefills: set[str] = set()
        self._messages: list[Rejected | Embedded | Prefilled] = []
        self._began = self._submitted = 0.0
        self._pace = Pace()

    @property
    def live(self) -> int:
        """Requests that have not ended."""
        return len(self._live) + len(self._compiling) + len(self._pools) + len(self._prefills)

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do: no request, and no transfer that still touches blocks."""
        return not (self.live or self._engine.has_work)

    def submit(self, message: Submit) -> None:
        """Raises RequestError for a request that cannot run.

        One with a constraint begins when that is compiled; if it cannot be, `take_messages` says so.
        """
        self._check_context(message)
        if message.constraint is None:
            self._add(message)
        else:
            matcher = self._constraints.compile(message.constraint)
            self._compiling[message.id] = message, matcher
            matcher.add_done_callback(lambda _: self.loans.ring())

    def embed(self, message: Embed) -> None:
        """Raises RequestError for a prompt that cannot be embedded. `take_messages` has the vector."""
        context = self._loaded.context_length
        if len(message.prompt) > context:
            raise RequestError(
                f"the prompt has {len(message.prompt)} tokens; the context has room for {context}",
                "prompt",
                code="context_length_exceeded",
            )
        pool = Pool(self._loaded.pooling)
        self._engine.add(
            Request(
                id=message.id,
                prompt=tuple(message.prompt),
                max_tokens=0,
                namespace=PrefixNamespace(self._loaded.name),
                use_prefix_cache=False,  # hidden states are not cached
                embed=True,
            )
        )
        self._pools[message.id] = pool

    def prefill(self, message: Prefill) -> None:
        """Computes a prompt for another worker; `take_messages` tells when. Raises RequestError."""
        assert self.exchange is not None
        try:
            self._add_request(
                Request(
                    id=message.id,
                    prompt=tuple(message.prompt),
                    max_tokens=0,
                    namespace=PrefixNamespace(self._loaded.name, message.adapter, message.salt),
                    priority=message.priority,
                    use_prefix_cache=message.use_prefix_cache and self._loaded.prefix_cache,
                    prefill_only=True,
                    exporting=True,
                )
            )
        except HeadraceError as error:
            self.exchange.outbox.refuse(message.id, str(error))
            raise
        self._prefills.add(message.id)
        self.loans.add_export(message.id, self.exchange.outbox.outgoing(message.id))

    def take_messages(self) -> list[Rejected | Embedded | Prefilled]:
        """Vectors, computed prompts, and requests that cannot begin or go on, since this was last called."""
        messages, self._messages = self._messages, []
        return messages

    def _add(self, message: Submit, matcher: TokenMatcher | None = None) -> None:
        vocabulary = range(self._loaded.backend.vocab_size)
        stop_ids = frozenset(token for token in message.stop_token_ids if token in vocabulary)
        if not message.ignore_eos:
            stop_ids |= self._vocabulary.eos_ids
        room = self._loaded.context_length - len(message.prompt)
        detokenizer = Detokenizer(self._vocabulary, message.stop, include_stop=message.include_stop)
        handoff = message.handoff if self.exchange is not None else None
        fetch = self._add_request(
            Request(
                id=message.id,
                prompt=tuple(message.prompt),
                max_tokens=min(message.max_tokens, room),
                namespace=PrefixNamespace(self._loaded.name, message.adapter, message.salt),
                sampling=message.sampling,
                stop_token_ids=stop_ids,
                top_logprobs=message.top_logprobs,
                priority=message.priority,
                # Positions found in the cache would have no log-probabilities.
                use_prefix_cache=message.use_prefix_cache
                and self._loaded.prefix_cache
                and message.prompt_logprobs < 0,
                logit_bias=tuple(message.logit_bias),
                min_tokens=message.min_tokens,
                constraint=matcher,
                prompt_logprobs=message.prompt_logprobs,
                output=tuple(message.output),
                importing=handoff is not None,
            )
        )
        if handoff is not None and self.exchange is not None:
            self.loans.add_import(message.id, self.exchange.inbox.incoming(message.id, handoff))
        live = self._live[message.id] = _Live(
            detokenizer, stop_ids, message.min_tokens, resumed=bool(message.output), fetch=fetch
        )
        for token in message.output:  # their text has been delivered
            live.push(token)

    def _add_request(self, request: Request) -> Fetch | None:
        """Give the engine a request; and begin the fetch, if any, of what a slower tier has of its prompt."""
        fetch = None
        if self._tiers is not None and request.use_prefix_cache and not request.importing:
            fetch = self._tiers.find(request.namespace, (*request.prompt, *request.output), self.loans)
        self._engine.add(request if fetch is None else replace(request, importing=True))
        if fetch is not None:
            self.loans.add_import(request.id, fetch)
        return fetch

    def cancel(self, request_id: str) -> None:
        """Ends the request and frees its blocks, those too that are kept for another worker."""
        self._compiling.pop(request_id, None)
        prefill = request_id in self._prefills
        self._prefills.discard(request_id)
        if self._live.pop(request_id, None) or self._pools.pop(request_id, None) or prefill:
            self._engine.cancel(request_id)
        else:
            self.loans.stop(request_id)

    def cancel_all(self) -> None:
        """Ends every request."""
        for request_id in [*self._compiling, *self._live, *self._pools, *self._prefills]:
            self.cancel(request_id)
        self._messages = []

    def begin(self) -> bool:
        """Submits the next step; False where there is nothing to compute. Waits for what is on its way."""
        while not (computing := self.try_begin()) and not self.idle:
            self.loans.wait()
        return computing

    def try_begin(self) -> bool:
        """Submits the next step; False where there is nothing to compute yet.

        `idle` says whether there will be; `loans.wake` is called when it is worth trying again.
        """
        self._add_compiled()
        self.loans.apply()
        self._began = perf_counter()
        computing = self._engine.submit()
        self.loans.tell()
        self._submitted = perf_counter()
        return computing

    def complete(self) -> list[TokenEvent]:
        """Waits for the step; what it brought. Requests that met a stop string have ended."""
        before = self._engine.computed_tokens
        outputs = self._engine.collect()
        self.loans.tell()
        now = perf_counter()
        self._engine.observe(self._submitted - self._began, now - self._submitted)
        rows = self._engine.computed_tokens - before
        self._pace.step(rows, now - self._began)
        if self._tiers is not None:
            self._tiers.speeds.computed(rows, now - self._began)
        events = (self._take(out) for out in outputs)
        return [event for event in events if event is not None]

    def stats(self) -> EngineStats:
        """The engine's gauges and counters."""
        base, row = self._pace.line
        stats = self._engine.stats._replace(step_base=base, step_row=row)
        return stats if self._tiers is None else self._tiers.counted(stats)

    def save(self) -> None:
        """Keep the cache beyond this process, where there is a tier for it; called when nothing runs."""
        if self._tiers is not None:
            self._tiers.save()

    def _check_context(self, message: Submit) -> None:
        context = self._loaded.context_length
        if len(message.prompt) >= context:
            raise RequestError(
                f"the prompt has {len(message.prompt)} tokens; with at least one token of output, "
                f"the context of {context} tokens has room for {context - 1}",
                "prompt",
                code="context_length_exceeded",
            )

    def _add_compiled(self) -> None:
        """Give the engine the requests whose constraints have been compiled."""
        done = [(message, future) for message, future in self._compiling.values() if future.done()]
        for message, future in done:
            del self._compiling[message.id]
            try:
                self._add(message, future.result())
            except HeadraceError as error:
                self._messages.append(Rejected(message.id, str(error)))

    def _tokenizer(self) -> Tokenizer:
        if isinstance(self._vocabulary, Tokenizer):
            return self._vocabulary
        with GgufFile(self._loaded.path) as weights:
            return Tokenizer.from_metadata(weights.metadata)

    def _take(self, out: Output) -> TokenEvent | None:
        """The event that an output makes, if it makes one."""
        if pool := self._pools.get(out.id):
            if out.hidden is not None:
                pool.add(out.hidden)
            if out.finish_reason is not None:
                del self._pools[out.id]
                self._messages.append(Embedded(out.id, pool.vector()))
        if out.id in self._prefills and out.finish_reason is not None:
            self._prefills.remove(out.id)
            self._messages.append(Prefilled(out.id, out.cached_tokens))
        live = self._live.get(out.id)
        if live is None:
            return None
        if out.finish_reason is FinishReason.ERROR:
            del self._live[out.id]
            self._messages.append(Rejected(out.id, out.error))
            return None
        live.prompt_logprobs += out.prompt_logprobs
        return self._event(live, out) if out.token_ids else None

    def _event(self, live: _Live, out: Output) -> TokenEvent:
        reason = out.finish_reason
        ids, logprobs = out.token_ids, out.logprobs
        # The token that ended the request is reported, but it is no text.
        ended = reason is FinishReason.STOP and ids and ids[-1] in live.stop_token_ids
        text, stopped = "", False
        for count, token in enumerate(ids[:-1] if ended else ids, start=1):
            piece, stopped = live.push(token)
            text += piece
            if stopped:
                # What speculation computed after the stop string would else not have been computed.
                ids, logprobs = ids[:count], logprobs[:count]
                break
        if stopped:
            if reason is None:
                self._engine.finish(out.id)
            reason = FinishReason.STOP
        elif reason is not None:
            text += live.detokenizer.finish()
        if reason is not None:
            del self._live[out.id]
        scored, live.prompt_logprobs = live.prompt_logprobs, []
        return TokenEvent(
            id=out.id,
            text=text,
            token_ids=list(ids),
            finish_reason=None if reason is None else reason.value,
            cached_tokens=0 if live.resumed else out.cached_tokens + live.fetched,
            logprobs=[_wire(entry) for entry in logprobs],
            prompt_logprobs=[_wire(entry) for entry in scored],
            stop_string=live.detokenizer.stop_string,
        )


def _wire(entry: TopLogprobs) -> tuple[float, list[int], list[float]]:
    return float(entry.chosen), entry.token_ids.tolist(), entry.logprobs.tolist()
