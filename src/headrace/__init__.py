"""Headrace: a fast, exact inference server for open language models."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["LLM"]

if TYPE_CHECKING:
    from headrace.llm import LLM as LLM
else:

    def __getattr__(name: str) -> object:
        """Loads the engine only for programs that ask for it: the command line starts without it."""
        if name == "LLM":
            from headrace.llm import LLM

            return LLM
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
