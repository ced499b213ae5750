"""Loading a model for the gateway: its words in this process, its workers in their own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

from headrace.errors import HeadraceError, RequestError, WorkerUnavailableError
from headrace.fleet import Fleet, FleetShape, Registry, Shapes
from headrace.fleet.planner import Limits
from headrace.gateway.errors import UnavailableError
from headrace.gateway.prompter import ModelPrompter
from headrace.gateway.served import Prompter, ServedModel
from headrace.models.local import LocalFile
from headrace.models.sampling_defaults import SamplingDefaults
from headrace.worker.footprint import Footprint, footprint, weights_bytes
from headrace.worker.loader import OpenModel, open_model
from headrace.worker.settings import WorkerSettings

RETRY_SECONDS = 10
"""What a client is told to wait where a model cannot be loaded now."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How a model is going to be loaded, and what it will take."""

    file: LocalFile
    model: OpenModel
    prompter: ModelPrompter
    settings: WorkerSettings
    """Of each worker."""
    shape: FleetShape
    footprint: Footprint
    """Of all workers together; they share the weights."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that can be asked."""

    served: ServedModel
    fleet: Fleet
    footprint: Footprint


class ModelLoader:
    """Loads models one like the other, after the settings of one of them."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        budgeted: bool,
        shapes: Shapes | None = None,
        registry: Registry | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`settings.model` is loaded just as they say; a draft model serves that one alone.

        Where memory is budgeted a cache's size is decided here; else a worker decides by what it finds free.
        Workers change their roles as the limits need it.
        """
        self._settings = settings
        self._budgeted = budgeted
        self._shapes = shapes or Shapes()
        self._registry = registry
        self._limits = limits

    @property
    def draft_model(self) -> str | None:
        """The name or path of the model that drafts for the first one."""
        return self._settings.draft_model

    async def plan(self, file: LocalFile, free_bytes: int) -> LoadPlan:
        """Opens the file and counts; `free_bytes` are what weights and cache may take together.

        Raises RequestError, 400, for a file that cannot be run or not within so much memory.
        """
        try:
            return await asyncio.to_thread(self._plan, file, free_bytes)
        except RequestError:
            raise
        except HeadraceError as error:
            raise RequestError(
                f"The model '{file.name}' cannot be loaded: {error}.", "model", code="model_not_loadable"
            ) from error

    def _plan(self, file: LocalFile, free_bytes: int) -> LoadPlan:
        model = open_model(file.source)
        shape = self._shapes.of(file.name)
        settings = msgspec.structs.replace(self.settings_of(file, model), workers=max(1, shape.count))
        draft = settings.draft_model
        models = [model] if draft is None else [model, open_model(draft)]
        if not shape.count:
            expected = Footprint(0, 0)  # all of it lies on other hosts
        elif self._budgeted:
            expected = footprint(models, settings, free_bytes)
            if settings.cache_tokens is None:
                settings = msgspec.structs.replace(settings, cache_bytes=expected.cache)
            expected = Footprint(expected.weights, expected.cache * shape.count)
        else:
            expected = Footprint(weights_bytes(models), 0)
        return LoadPlan(file, model, ModelPrompter(model), settings, shape, expected)

    def settings_of(self, file: LocalFile, model: OpenModel) -> WorkerSettings:
        """Of each of the model's workers, but for the size of the cache where memory is budgeted."""
        if file.source == self._settings.model:
            return self._settings
        asked, most = self._settings.context_length, model.config.context_length
        speculate = self._settings.speculate
        return msgspec.structs.replace(
            self._settings,
            model=file.source,
            context_length=None if asked is None else min(asked, most),
            speculate="none" if speculate == "draft" else speculate,
            draft_model=None,
        )

    async def load(self, plan: LoadPlan) -> LoadedModel:
        """Starts the workers. Raises UnavailableError, 503, with their reason where they do not start."""
        name = plan.file.name
        fleet = Fleet(plan.settings, plan.shape, registry=self._registry, model=name, limits=self._limits)
        try:
            await fleet.start()
        except WorkerUnavailableError as error:
            raise UnavailableError(
                f"The model '{plan.file.name}' could not be loaded: {error}.",
                status=503,
                code="model_load_failed",
                retry_after=RETRY_SECONDS,
            ) from error
        served = served_model(plan.file.name, fleet, plan.prompter, plan.model.sampling)
        return LoadedModel(served, fleet, Footprint(plan.footprint.weights, fleet.cache_bytes))


def served_model(name: str, fleet: Fleet, prompter: ModelPrompter, sampling: SamplingDefaults) -> ServedModel:
    """The model as its workers have it now."""
    facts = fleet.facts
    return ServedModel(
        name=name,
        engine=fleet,
        prompter=prompter,
        context_length=facts.context_length,
        sampling=sampling,
        fingerprint=f"fp_{facts.fingerprint.digest()}",
    )


def reopened(file: LocalFile, before: Prompter) -> tuple[ModelPrompter, SamplingDefaults]:
    """The words of a model whose file is another one now; takes seconds.

    Raises RequestError: 400, the file cannot be run; 409, its tokens are others, so that a prompt would mean
    something else to workers that have the old one.
    """
    try:
        model = open_model(file.source)
    except HeadraceError as error:
        raise RequestError(
            f"The model '{file.name}' cannot be loaded: {error}.", "model", code="model_not_loadable"
        ) from error
    prompter = ModelPrompter(model)
    tokens = range(before.vocab_size)
    if prompter.vocab_size != before.vocab_size or any(
        prompter.token_bytes(token) != before.token_bytes(token) for token in tokens
    ):
        raise RequestError(
            f"The new file of '{file.name}' has other tokens: serve it under a name of its own.",
            "model",
            status=409,
            code="other_vocabulary",
        )
    return prompter, model.sampling
