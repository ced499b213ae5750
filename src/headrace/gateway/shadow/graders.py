"""Graders by the names that the configuration has for them."""

from __future__ import annotations

from headrace.errors import ConfigError
from headrace.gateway.shadow.agreement import Agreement
from headrace.gateway.shadow.grader import Grader
from headrace.gateway.shadow.judge import Judge
from headrace.routing.user_class import class_named

_OURS: dict[str, type[Grader]] = {"agreement": Agreement, "judge": Judge}


def grader_of(name: str) -> Grader:
    """The grader of `[routing] grader`: one of ours, or a user's "package.module:Class".

    Raises ConfigError where there is none of that name, or it cannot be made.
    """
    if (ours := _OURS.get(name)) is not None:
        return ours()
    if ":" not in name:
        raise ConfigError(
            f"'{name}' is no grader; use {', '.join(_OURS)}, or a class of your own as package.module:Class"
        )
    try:
        return class_named(name, Grader)()  # type: ignore[type-abstract]
    except TypeError as error:
        raise ConfigError(f"'{name}' cannot be made without arguments: {error}") from None
