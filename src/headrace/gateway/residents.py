"""A model in memory, or on its way there: who uses it, what it holds, and until when it stays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView

from headrace.fleet import Fleet, State
from headrace.gateway.served import ServedModel
from headrace.worker.footprint import Footprint

NEVER = -1.0
"""As a time to stay: until the memory is needed, or someone asks for the model to go."""


class Resident:
    """A model that is loaded or being loaded.

    A timer begins when the last user leaves. `expired` is called when it ends.
    """

    def __init__(self, name: str, keep_alive: float, expired: Callable[[Resident], None]) -> None:
        """`keep_alive`: seconds to stay after the last use, 0 not at all; negative: for good."""
        self.name = name
        self.keep_alive = keep_alive
        self.footprint = Footprint(0, 0)
        """Reserved as soon as it is known what the model will take."""
        self.served: ServedModel | None = None
        """None while it is being loaded."""
        self.fleet: Fleet | None = None
        self.loading: asyncio.Task[None] | None = None
        self.since = time.time()
        """When it was loaded; seconds since 1970."""
        self.users = 0
        self.last_used = time.monotonic()
        self._expired = expired
        self._timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        return self.served is not None and self.users == 0

    @property
    def failed(self) -> bool:
        """Its workers were given up."""
        if self.fleet is None:
            return False
        return all(replica.state is State.FAILED for replica in self.fleet.health())

    @property
    def expires_at(self) -> float | None:
        """When it goes if nobody uses it any more, in seconds since 1970; None: never."""
        if self.keep_alive < 0:
            return None
        unused = 0.0 if self.users else time.monotonic() - self.last_used
        return time.time() + self.keep_alive - unused

    def loaded(self, served: ServedModel, fleet: Fleet, footprint: Footprint) -> None:
        """It can be used now."""
        self.served, self.fleet, self.footprint = served, fleet, footprint
        self.loading = None
        self.since = time.time()
        self.last_used = time.monotonic()
        self.start_timer()

    def enter(self, keep_alive: float | None) -> None:
        """Someone uses it, or waits for it. A time to stay holds until another user names another."""
        self.users += 1
        if keep_alive is not None:
            self.keep_alive = keep_alive
        self.stop_timer()

    def leave(self) -> None:
        """A user has gone."""
        self.users -= 1
        self.last_used = time.monotonic()
        self.start_timer()

    def start_timer(self) -> None:
        """Lets the time run where nobody uses it."""
        if not self.idle or self.keep_alive < 0:
            return
        self.stop_timer()
        # Later even where no time is left: who leaves is not kept waiting.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.keep_alive, self._expired, self)

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class LoadedModels(Mapping[str, ServedModel]):
    """The loaded models by name. May be gone through while models come and go: a change makes a new table."""

    def __init__(self, models: Mapping[str, ServedModel] | None = None) -> None:
        self._now: dict[str, ServedModel] = dict(models or {})

    def put(self, model: ServedModel) -> None:
        self._now = {**self._now, model.name: model}

    def drop(self, name: str) -> None:
        self._now = {known: model for known, model in self._now.items() if known != name}

    def __getitem__(self, name: str) -> ServedModel:
        return self._now[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now)

    def __len__(self) -> int:
        return len(self._now)

    def items(self) -> ItemsView[str, ServedModel]:
        return self._now.items()

    def values(self) -> ValuesView[ServedModel]:
        return self._now.values()
