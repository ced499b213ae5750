"""A worker's answers about its prefix cache."""

from __future__ import annotations

from headrace.engine.prefix_report import explain, hot
from headrace.engine.request import PrefixNamespace
from headrace.errors import RequestError
from headrace.worker.loader import LoadedModel
from headrace.worker.messages import (
    ExplainPrefix,
    ListPrefixes,
    PinPrefix,
    PrefixAnswer,
    PrefixesListed,
    PrefixExplained,
    PrefixPinned,
    PrefixQuestion,
    UnpinPrefix,
)


def answer(loaded: LoadedModel, question: PrefixQuestion) -> PrefixAnswer:
    """Answers between two steps. Raises RequestError for a pin that cannot be."""
    cache = loaded.engine.cache
    namespace = PrefixNamespace(loaded.name, salt=question.salt)
    match question:
        case ExplainPrefix(id=asked, prompt=prompt):
            cached, continuation = explain(cache.tree, namespace, prompt)
            return PrefixExplained(asked, cached, list(continuation))
        case ListPrefixes(id=asked, limit=limit):
            return PrefixesListed(asked, hot(cache.tree, namespace, limit))
        case PinPrefix(id=asked, prompt=prompt):
            if not loaded.prefix_cache:
                raise RequestError("prefixes are not cached: the server runs with --no-prefix-cache")
            tokens = cache.pins.pin(namespace, prompt)
            return PrefixPinned(asked, tokens, cache.pins.blocks, cache.pins.limit)
        case UnpinPrefix(id=asked, prompt=prompt):
            cache.pins.unpin(namespace, prompt)
            return PrefixPinned(asked, 0, cache.pins.blocks, cache.pins.limit)
