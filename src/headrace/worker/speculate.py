"""Speculation as the settings ask for it: the drafter, and the model that it may need."""

from __future__ import annotations

from headrace.backends.base import Backend
from headrace.engine.lookup_first import LookupFirst
from headrace.engine.model_drafter import ModelDrafter
from headrace.engine.prompt_lookup import PromptLookup
from headrace.engine.speculation import Speculation
from headrace.errors import ConfigError
from headrace.models.vocabulary import TOKENS_KEY
from headrace.models.weights import Weights
from headrace.worker.settings import WorkerSettings


def check_vocabularies(target: Weights, draft: Weights, name: str) -> None:
    """Raises ConfigError where a token of one model means something else to the other."""
    if target.metadata.get(TOKENS_KEY) != draft.metadata.get(TOKENS_KEY):
        raise ConfigError(
            f"draft-model: {name} has another vocabulary than the model it is to draft for; "
            "take a smaller model of the same family"
        )


def make_speculation(
    settings: WorkerSettings, draft_backend: Backend | None, cache_blocks: int
) -> Speculation | None:
    """None where the settings want none. The draft model's cache gets so many blocks in each group."""
    if settings.speculate == "none":
        return None
    if draft_backend is None:
        return Speculation(PromptLookup(), settings.draft_tokens)
    return Speculation(LookupFirst(ModelDrafter(draft_backend, cache_blocks)), settings.draft_tokens)
