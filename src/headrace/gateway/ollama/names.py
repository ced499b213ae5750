"""Models' names as Ollama's users write them: family:size, with a tag that may be left out."""

from __future__ import annotations

from headrace.errors import RequestError
from headrace.gateway.catalogue import Catalogue

LATEST = ":latest"


def canonical(catalogue: Catalogue, name: str) -> str:
    """The catalogue's name for it: "a:latest" is "a", and "a:0.5b" is "a-0.5b" where that is known.

    A name that is not known stays as it is, for the error to tell.
    """
    name = name.removesuffix(LATEST)
    joined = name.replace(":", "-")
    if joined == name or name in catalogue.loaded_models:
        return name
    try:
        catalogue.find(joined)
    except RequestError:
        return name
    return joined
