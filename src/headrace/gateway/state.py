"""What all endpoints share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from starlette.types import Scope

from headrace.errors import RequestError
from headrace.gateway.admission import Admission
from headrace.gateway.answering import Running
from headrace.gateway.asking import Asking
from headrace.gateway.batches.service import Batches
from headrace.gateway.bodies import Bodies
from headrace.gateway.callers import Caller, Callers
from headrace.gateway.catalogue import Catalogue
from headrace.gateway.metrics import Metrics
from headrace.gateway.openai.requests import ChatRequest
from headrace.gateway.request_log import Observer
from headrace.gateway.served import ServedModel

if TYPE_CHECKING:
    from headrace.gateway.embeddings import EmbeddingsAnswer, EmbeddingsRequest


class Embeddings(Protocol):
    """Answers requests for embeddings that name a model elsewhere."""

    async def answer(
        self, scope: Scope, caller: Caller, request: EmbeddingsRequest
    ) -> EmbeddingsAnswer | None:
        """None where the name is not of such a model. Raises RequestError."""
        ...


class Router(Protocol):
    """Answers requests that name a policy, or a model of the fleet's tables."""

    def covers(self, name: str) -> bool:
        """Whether requests for this name are its to answer."""
        ...

    def check(self, caller: Caller, name: str) -> None:
        """Raises RequestError, 404, where the caller may ask nothing that the name stands for."""
        ...

    def answer(self, asking: Asking) -> AbstractAsyncContextManager[Running]:
        """The answer, for as long as the block runs; leaving it cancels what still runs."""
        ...

    def tokens(self, request: ChatRequest) -> int:
        """Of a prompt, estimated."""
        ...

    @property
    def embeddings(self) -> Embeddings:
        """Answers requests for embeddings of models elsewhere."""
        ...

    def names(self) -> Sequence[str]:
        """What requests can name besides the models that are served here: policies, models elsewhere."""
        ...


@dataclass(slots=True)
class Gateway:
    """The models, who is let in, and what is counted."""

    models: Mapping[str, ServedModel]
    """Those that are loaded now."""
    admission: Admission
    max_body_bytes: int
    bodies: Bodies = field(default_factory=Bodies)
    """What the bodies of all requests take together."""
    callers: Callers = field(default_factory=Callers)
    """Who may ask."""
    request_timeout: float | None = None
    """Seconds after which a request is ended; clients may ask for fewer."""
    metrics: Metrics = field(default_factory=Metrics)
    observers: Sequence[Observer] = ()
    """Are given each request that generates, when it ends."""
    expose_prefixes: bool | None = None
    """Whether clients may see text of cached prompts and pin some; None: those on this machine may."""
    batches: Batches | None = None
    """Files and batches; None where the server keeps none."""
    router: Router | None = None
    """Who answers requests that are routed; None where no fleet is described."""
    catalogue: Catalogue = field(init=False)
    """Those that can be loaded too; none but `models` unless another is set."""

    def __post_init__(self) -> None:
        self.catalogue = Catalogue.fixed(self.models)

    def use(self, name: str, keep_alive: float | None = None) -> AbstractAsyncContextManager[ServedModel]:
        """The model of that name for as long as the block runs, loaded where it is not."""
        return self.catalogue.use(name, keep_alive)

    def check(self, caller: Caller, name: str) -> None:
        """Raises RequestError, 404, where the caller may not ask what the name stands for."""
        if self.router is not None and self.router.covers(name):
            self.router.check(caller, name)
        else:
            caller.check_model(name)

    def may_ask(self, caller: Caller, name: str) -> bool:
        """Whether `check` has nothing against it."""
        try:
            self.check(caller, name)
        except RequestError:
            return False
        return True

    def model(self, name: str) -> ServedModel:
        """The model of that name. Raises RequestError, 404, that says which there are."""
        if (model := self.models.get(name)) is not None:
            return model
        known = ", ".join(f"'{known}'" for known in self.models)
        raise RequestError(
            f"The model {name!r:.200} does not exist. Served: {known}.",
            "model",
            status=404,
            code="model_not_found",
        )
