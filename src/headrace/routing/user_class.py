"""A class of the user's that headrace.toml names as "package.module:Class"."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TypeVar

from headrace.errors import ConfigError

Base = TypeVar("Base")


def class_named(path: str, base: type[Base]) -> type[Base]:
    """The class of that name, which must derive from `base` and lack nothing of it.

    Raises ConfigError, also for whatever its module raises.
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(import_module(module), name, None)
    except Exception as error:  # the user's code
        raise ConfigError(f"'{path}' cannot be imported: {type(error).__name__}: {error}") from error
    if found is None:
        raise ConfigError(f"'{path}': the module {module} has no {name}")
    if not isinstance(found, type) or not issubclass(found, base):
        raise ConfigError(f"'{path}' must be a class that derives from {base.__module__}.{base.__qualname__}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise ConfigError(f"'{path}' lacks {missing}")
    return found
