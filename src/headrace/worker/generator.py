"""From requests to events: an engine, and the text and stop strings of each request in it."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from headrace.backends.step import TopLogprobs
from headrace.engine.request import FinishReason, Output, PrefixNamespace, Request
from headrace.engine.stats import EngineStats
from headrace.errors import RequestError
from headrace.models.vocabulary import Vocabulary
from headrace.worker.detokenizer import Detokenizer
from headrace.worker.loader import LoadedModel
from headrace.worker.messages import Submit, TokenEvent


@dataclass(slots=True)
class _Live:
    """A request that has not ended."""

    detokenizer: Detokenizer
    stop_token_ids: frozenset[int]


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
        self._live: dict[str, _Live] = {}
        self._began = self._submitted = 0.0

    @property
    def live(self) -> int:
        """Requests that have not ended."""
        return len(self._live)

    def submit(self, message: Submit) -> None:
        """Raises RequestError for a request that cannot run."""
        self._check_context(message)
        stop_ids = frozenset(message.stop_token_ids)
        if not message.ignore_eos:
            stop_ids |= self._vocabulary.eos_ids
        room = self._loaded.context_length - len(message.prompt)
        self._engine.add(
            Request(
                id=message.id,
                prompt=tuple(message.prompt),
                max_tokens=min(message.max_tokens, room),
                namespace=PrefixNamespace(self._loaded.name, message.adapter, message.salt),
                sampling=message.sampling,
                stop_token_ids=stop_ids,
                top_logprobs=message.top_logprobs,
                priority=message.priority,
                use_prefix_cache=message.use_prefix_cache and self._loaded.prefix_cache,
            )
        )
        self._live[message.id] = _Live(Detokenizer(self._vocabulary, message.stop), stop_ids)

    def cancel(self, request_id: str) -> None:
        """Ends the request and frees its blocks; nothing happens where it has ended already."""
        if self._live.pop(request_id, None) is not None:
            self._engine.cancel(request_id)

    def begin(self) -> bool:
        """Submits the next step; False where there is nothing to compute."""
        self._began = perf_counter()
        computing = self._engine.submit()
        self._submitted = perf_counter()
        return computing

    def complete(self) -> list[TokenEvent]:
        """Waits for the step; what it brought. Requests that met a stop string have ended."""
        outputs = self._engine.collect()
        self._engine.observe(self._submitted - self._began, perf_counter() - self._submitted)
        return [self._event(live, out) for out in outputs if (live := self._live.get(out.id))]

    def stats(self) -> EngineStats:
        """The engine's gauges and counters."""
        return self._engine.stats

    def _check_context(self, message: Submit) -> None:
        context = self._loaded.context_length
        if len(message.prompt) >= context:
            raise RequestError(
                f"the prompt has {len(message.prompt)} tokens; with at least one token of output, "
                f"the context of {context} tokens has room for {context - 1}",
                "prompt",
                code="context_length_exceeded",
            )

    def _event(self, live: _Live, out: Output) -> TokenEvent:
        reason = out.finish_reason
        ids, logprobs = out.token_ids, out.logprobs
        # The token that ended the request is reported, but it is no text.
        ended = reason is FinishReason.STOP and ids and ids[-1] in live.stop_token_ids
        text, stopped = "", False
        for count, token in enumerate(ids[:-1] if ended else ids, start=1):
            piece, stopped = live.detokenizer.push((token,))
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
        return TokenEvent(
            id=out.id,
            text=text,
            token_ids=list(ids),
            finish_reason=None if reason is None else reason.value,
            cached_tokens=out.cached_tokens,
            logprobs=[_wire(entry) for entry in logprobs],
            stop_string=live.detokenizer.stop_string,
        )


def _wire(entry: TopLogprobs) -> tuple[float, list[int], list[float]]:
    return float(entry.chosen), entry.token_ids.tolist(), entry.logprobs.tolist()
