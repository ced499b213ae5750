"""Fetching models while serving: on threads, one fetch for each model however many clients watch it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field

from headrace.errors import RequestError
from headrace.models.download import ModelEntry, fetch
from headrace.models.registry import known_models, models_folder


@dataclass(frozen=True, slots=True)
class PullProgress:
    """How far a fetch is."""

    sha256: str
    completed: int
    """Bytes that have come; they are checked once all have."""
    total: int
    done: bool = False
    """The file is whole, verified, and in its place."""


class _AbandonedError(Exception):
    """Nobody watches the fetch any more."""


@dataclass(eq=False, slots=True)
class _Fetch:
    """A fetch that runs on a thread of its own."""

    entry: ModelEntry
    loop: asyncio.AbstractEventLoop
    finished: asyncio.Future[None]
    watchers: int = 0
    completed: int = 0
    abandoned: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        try:
            fetch(self.entry, models_folder(), progress=self._progress)
        except Exception as error:
            self._tell(error)
        else:
            self._tell(None)

    def _progress(self, done: int, total: int) -> None:
        if self.abandoned.is_set():
            raise _AbandonedError
        self.completed = done

    def _tell(self, error: Exception | None) -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            self.loop.call_soon_threadsafe(self._finish, error)

    def _finish(self, error: Exception | None) -> None:
        if self.finished.done():
            return
        if error is None:
            self.finished.set_result(None)
        else:
            self.finished.set_exception(error)
            self.finished.exception()  # seen, even where no one waits any more


class Pulls:
    """The fetches that run. Lives in one event loop."""

    def __init__(self) -> None:
        self._fetches: dict[str, _Fetch] = {}

    async def pull(self, name: str, every: float = 0.2) -> AsyncGenerator[PullProgress, None]:
        """Fetches the model unless it is there; progress every so many seconds, the last one `done`.

        To close the iterator before its end gives the fetch up, unless others watch it.

        Raises RequestError, 404, for an unknown name; ModelNotFoundError, DownloadError as `download.fetch`.
        """
        entry = next((entry for entry in known_models() if entry.name == name), None)
        if entry is None:
            known = ", ".join(entry.name for entry in known_models())
            raise RequestError(
                f"There is no model {name!r:.200} to pull. Known: {known}.",
                "model",
                status=404,
                code="model_not_found",
            )
        work = self._fetch(entry)
        work.watchers += 1
        try:
            while not work.finished.done():
                yield PullProgress(entry.sha256, work.completed, entry.size)
                await asyncio.wait([work.finished], timeout=every)
            await work.finished
            yield PullProgress(entry.sha256, entry.size, entry.size, done=True)
        finally:
            work.watchers -= 1
            if not work.watchers:
                self._give_up(work)

    def _fetch(self, entry: ModelEntry) -> _Fetch:
        work = self._fetches.get(entry.name)
        if work is None:
            loop = asyncio.get_running_loop()
            work = self._fetches[entry.name] = _Fetch(entry, loop, loop.create_future())
            # Not a pool's thread: one that waits for another process's fetch must not hold up the end.
            threading.Thread(target=work.run, name=f"pull {entry.name}", daemon=True).start()
        return work

    def _give_up(self, work: _Fetch) -> None:
        work.abandoned.set()
        if self._fetches.get(work.entry.name) is work:
            del self._fetches[work.entry.name]
