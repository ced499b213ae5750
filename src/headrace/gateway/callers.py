"""Who asks: the caller that a request's key stands for, with its limits; one caller for all without keys."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from starlette.types import Scope

from headrace.errors import ConfigError, RequestError
from headrace.gateway.errors import UnauthorizedError
from headrace.gateway.keys import ApiKey, KeyLimits, KeyRing, read_keys, shown_key
from headrace.gateway.limits import Limits

log = logging.getLogger("headrace.gateway")

ANONYMOUS = "anonymous"
"""The caller's name where the server needs no key."""
_LOOK_SECONDS = 1.0
"""How often the keys file is looked at."""


class Caller:
    """One key's owner. Lives on when the keys file is read anew, so what it has used is not forgotten."""

    def __init__(self, name: str, limits: KeyLimits):
        self.name = name
        self.allowed = limits
        self.limits = Limits(limits, time.monotonic())

    @property
    def weight(self) -> float:
        """Its share against the other callers'."""
        return self.allowed.weight

    def update(self, limits: KeyLimits) -> None:
        """Takes the limits of a new keys file."""
        self.allowed = limits
        self.limits.set(limits, time.monotonic())

    def priority(self, asked: int) -> int:
        """The priority that the engine gives a request which asks for this one; lower is more urgent."""
        most_urgent = self.allowed.priority
        return asked if most_urgent is None else max(asked, most_urgent)

    def rank(self, priority: int) -> int:
        """What a priority that it was given counts against other callers' requests in a full queue.

        None goes before the usual 0 unless the keys file says so.
        """
        return max(priority, 0) if self.allowed.priority is None else priority

    def may_ask(self, model: str) -> bool:
        """Whether the model is one of its."""
        return self.allowed.models is None or model in self.allowed.models

    def check_model(self, model: str) -> None:
        """Raises RequestError, 404 as OpenAI has it, for a model that this key may not ask."""
        if not self.may_ask(model):
            raise RequestError(
                f"The model {model!r:.200} does not exist, or this key may not use it.",
                "model",
                status=404,
                code="model_not_found",
            )


class Callers:
    """The keys that open the server and whom they stand for. Without any key the server is open."""

    def __init__(self, file: Path | None = None, key: ApiKey | None = None):
        """Keys of a file, and one from elsewhere. Raises ConfigError where the file is wrong."""
        self._file = file
        self._key = key
        self._callers: dict[str, Caller] = {}
        self._anonymous = Caller(ANONYMOUS, KeyLimits())
        self._ring = KeyRing(())
        self._seen = _state(file)
        self._take(read_keys(file) if file is not None else [])

    @property
    def open(self) -> bool:
        """Whether no key is needed."""
        return self._file is None and self._key is None

    def identify(self, scope: Scope) -> Caller:
        """The caller of a request. Raises UnauthorizedError, 401, without a key that is known."""
        if (known := scope.get("headrace.caller")) is not None:
            assert isinstance(known, Caller)
            return known
        if self.open:
            caller = self._anonymous
        else:
            shown = shown_key(scope["headers"])
            if shown is None:
                raise UnauthorizedError(
                    "An API key is needed: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'."
                )
            found = self._ring.find(shown)
            if found is None:
                raise UnauthorizedError("The API key is not known here.")
            caller = self._callers[found.name]
        scope["headrace.caller"] = caller
        return caller

    def named(self, name: str) -> Caller | None:
        """The caller of that name, for work that goes on without its client; None where its key is gone."""
        return self._anonymous if self.open and name == ANONYMOUS else self._callers.get(name)

    def _take(self, keys: Sequence[ApiKey]) -> None:
        every = [*keys, self._key] if self._key is not None else keys
        callers: dict[str, Caller] = {}
        for key in every:
            callers[key.name] = self._callers.get(key.name) or Caller(key.name, key.limits)
            callers[key.name].update(key.limits)
        self._ring = KeyRing(every)
        self._callers = callers

    async def watch(self, hurry: asyncio.Event) -> None:
        """Reads the file anew when it changes or `hurry` is set, for ever; a broken one changes nothing.

        Looks and reads on a thread, so that no stream waits for a disk.
        """
        if self._file is None:
            return
        while True:
            try:
                await asyncio.wait_for(hurry.wait(), _LOOK_SECONDS)
            except asyncio.TimeoutError:
                state = await asyncio.to_thread(_state, self._file)
                if state == self._seen:
                    continue
            else:
                hurry.clear()
                state = await asyncio.to_thread(_state, self._file)
            self._seen = state
            try:
                keys = await asyncio.to_thread(read_keys, self._file)
            except ConfigError as error:
                log.warning("the keys stay as they were: %s", error)
                continue
            self._take(keys)
            log.warning("%s: %d keys read", self._file, len(keys))


def _state(file: Path | None) -> tuple[int, int, int] | None:
    """What changes when a file does; None where it is absent."""
    try:
        stat = file.stat() if file is not None else None
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat is not None else None
