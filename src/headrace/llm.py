"""The Python API: a model in this process, without a server."""

from __future__ import annotations

import math
import secrets
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict

from headrace.backends.sampling import SamplingParams
from headrace.engine.stats import EngineStats
from headrace.errors import ConfigError, RequestError
from headrace.models.chat_template import ChatTemplate
from headrace.models.sampling_defaults import SamplingDefaults
from headrace.models.tokenizer import Tokenizer
from headrace.worker.generator import Generator
from headrace.worker.loader import load, open_model
from headrace.worker.messages import Submit, TokenEvent
from headrace.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from typing_extensions import Unpack

Prompt = str | Sequence[int]
"""A text, or token ids."""

_RANGES = {
    "temperature": (0.0, math.inf),
    "top_k": (0, 2**31 - 1),
    "top_p": (1e-6, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, math.inf),
    "presence_penalty": (-math.inf, math.inf),
    "frequency_penalty": (-math.inf, math.inf),
}


class Options(TypedDict, total=False):
    """How to generate; each may be left out.

    Temperature, top_k, top_p and repetition_penalty are then as the model's maker recommends.
    """

    max_tokens: int
    """256 unless given; less where the context ends first."""
    stop: str | Sequence[str]
    """Texts that end the generation; they are not part of it."""
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    """Go on after the model's end-of-text token."""
    seed: int
    """Random unless given. With it, the same prompts give the same tokens."""
    temperature: float
    """0 is greedy."""
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float


@dataclass(frozen=True, slots=True)
class Completion:
    """What a prompt was continued with."""

    text: str
    token_ids: list[int]
    finish_reason: str
    """"stop": the model's end or a stop string; "length": max_tokens or the end of the context."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that were found in the prefix cache."""


class LLM:
    """A loaded model. Threads may share it: what they ask for at the same time is computed in one batch.

    with LLM("smollm2-135m") as llm:
        print(llm.generate("The capital of France is", max_tokens=8, temperature=0)[0].text)
    """

    def __init__(self, model: str = "smollm2-135m", **settings: Any) -> None:
        """Loads the model: a name, which is fetched on first use, or the path of a GGUF file.

        Args:
            model: what to load.
            settings: any other field of `WorkerSettings`: threads, cache_tokens, context_length, …

        Raises:
            HeadraceError: the model cannot be had, is broken, or does not fit; the message says what to do.
        """
        unknown = settings.keys() - set(WorkerSettings.__struct_fields__)
        if unknown:
            raise ConfigError(f"LLM has no setting {', '.join(sorted(unknown))}")
        worker = WorkerSettings(model=model, **settings)
        opened = open_model(worker.model)
        self._name = opened.name
        self._sampling = opened.sampling
        self._tokenizer = Tokenizer.from_metadata(opened.weights.metadata)
        self._template = ChatTemplate.from_metadata(opened.weights.metadata)
        self._loaded = load(opened, worker)
        self._generator = Generator(self._loaded, self._tokenizer)
        self._events: dict[str, deque[TokenEvent]] = {}
        self._requests = 0
        self._turn = threading.RLock()

    def generate(self, prompts: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> list[Completion]:
        """Continues each prompt, all in one batch; completions in the order of the prompts.

        Raises:
            RequestError: a prompt or an option cannot be used; nothing was generated.
        """
        texts = _several(prompts)
        runs = self._submit([self._tokens(text) for text in texts], options)
        try:
            return [self._complete(run) for run in runs]
        finally:
            self._forget(runs)

    def chat(self, messages: Sequence[Mapping[str, str]], **options: Unpack[Options]) -> Completion:
        """Answers a conversation: mappings with `role` (system, user, assistant) and `content`.

        Raises:
            RequestError: as `generate`; also where the model was not made to chat.
            TemplateError: the model's template refuses the messages.
        """
        return self.generate(self.chat_prompt(messages), **options)[0]

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Iterator[str]:
        """Yields the continuation's text as it is generated; leaving early cancels the rest.

        What else is generated meanwhile is computed in the same batch. Errors are those of `generate`; like
        the generation itself they come with the first piece.
        """
        runs = self._submit([self._tokens(prompt)], options)
        try:
            for event in self._until_end(runs[0]):
                if event.text:
                    yield event.text
        finally:
            self._forget(runs)

    def chat_prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The tokens of a conversation, up to where the model's answer begins."""
        if self._template is None:
            raise RequestError(f"{self._name} has no chat template: use generate", "messages")
        if not all(isinstance(message, Mapping) for message in messages):
            raise RequestError("messages are mappings with 'role' and 'content'", "messages")
        return self._template.encode(messages, self._tokenizer)

    def stats(self) -> EngineStats:
        """Gauges and counters of the engine."""
        return self._generator.stats()

    def close(self) -> None:
        """Releases threads and memory."""
        self._loaded.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tokens(self, prompt: Prompt) -> list[int]:
        return self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)

    def _submit(self, prompts: list[list[int]], options: Options) -> list[_Run]:
        """Queues the prompts; all of them or, where one cannot be used, none."""
        sampling = _sampling(options, self._sampling)
        stop = options.get("stop", ())
        runs: list[_Run] = []
        max_tokens = _whole("max_tokens", options.get("max_tokens", 256))
        with self._turn:
            try:
                for index, prompt in enumerate(prompts):
                    self._requests += 1
                    message = Submit(
                        id=str(self._requests),
                        prompt=prompt,
                        max_tokens=max_tokens,
                        sampling=SamplingParams(**sampling, prompt_index=index),
                        stop=[stop] if isinstance(stop, str) else list(stop),
                        stop_token_ids=list(options.get("stop_token_ids", ())),
                        ignore_eos=options.get("ignore_eos", False),
                    )
                    self._generator.submit(message)
                    self._events[message.id] = deque()
                    runs.append(_Run(message.id, len(prompt)))
            except BaseException:
                self._forget(runs)
                raise
        return runs

    def _next(self, run: _Run) -> TokenEvent:
        """The request's next event; steps bring events of other requests too, which are kept for them."""
        events = self._events[run.id]
        while not events:
            with self._turn:
                if events:  # another thread's step brought one while this one waited for its turn
                    break
                computing = self._generator.begin()
                assert computing, "a request waits, but the engine has no step to compute"
                for event in self._generator.complete():
                    self._events[event.id].append(event)
        return events.popleft()

    def _complete(self, run: _Run) -> Completion:
        events = list(self._until_end(run))
        return Completion(
            text="".join(event.text for event in events),
            token_ids=[token for event in events for token in event.token_ids],
            finish_reason=events[-1].finish_reason or "",
            prompt_tokens=run.prompt_tokens,
            cached_tokens=events[0].cached_tokens,
        )

    def _until_end(self, run: _Run) -> Iterator[TokenEvent]:
        while True:
            event = self._next(run)
            yield event
            if event.finish_reason is not None:
                return

    def _forget(self, runs: list[_Run]) -> None:
        with self._turn:
            for run in runs:
                self._generator.cancel(run.id)
                del self._events[run.id]


@dataclass(frozen=True, slots=True)
class _Run:
    """A request that was submitted."""

    id: str
    prompt_tokens: int


def _several(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as several: a list of numbers is the tokens of one."""
    if isinstance(prompts, str):
        return [prompts]
    tokens = [part for part in prompts if isinstance(part, int)]
    texts = [part for part in prompts if not isinstance(part, int)]
    if tokens and texts:
        raise RequestError("prompts are texts, token ids, or lists of token ids, not a mixture", "prompts")
    return [tokens] if tokens else texts


def _whole(name: str, value: object) -> int:
    """The option's value, which must be a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be a whole number, not {value!r}", name)
    return value


def _sampling(options: Options, defaults: SamplingDefaults) -> dict[str, Any]:
    """The sampler's share of the options, checked, and the model's defaults for what they leave out."""
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"no such option: {', '.join(sorted(unknown))}")
    seed = options.get("seed")
    given: dict[str, Any] = asdict(defaults)
    given["seed"] = secrets.randbits(64) if seed is None else _whole("seed", seed) % 2**64
    if "top_k" in options:
        _whole("top_k", options["top_k"])
    for name, (least, most) in _RANGES.items():
        value = options.get(name)
        if value is None:
            continue
        if not isinstance(value, (int, float)) or not least <= value <= most or math.isinf(value):
            raise RequestError(f"{name} must be a number from {least} to {most}, not {value!r}", name)
        given[name] = value
    return given
