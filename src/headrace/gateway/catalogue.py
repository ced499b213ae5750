"""The models that may be asked for: loaded when they are, unloaded when idle, within a budget of memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from headrace.errors import RequestError
from headrace.gateway.admission import DRAINING
from headrace.gateway.errors import UnavailableError
from headrace.gateway.loading import RETRY_SECONDS, ModelLoader, reopened, served_model
from headrace.gateway.model_refusals import fixed_models, in_use, not_deletable
from headrace.gateway.pulls import PullProgress, Pulls
from headrace.gateway.residents import NEVER, LoadedModels, Resident
from headrace.gateway.served import ServedModel
from headrace.models.details import ModelDetails, model_details
from headrace.models.local import LocalFile, local_files, remove_local
from headrace.worker.footprint import Footprint

log = logging.getLogger("headrace.gateway")

KEEP_ALIVE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Budget:
    """What models may take and how long they stay."""

    bytes: int | None = None
    """Of weights and caches together; None: not counted, for a server of one model."""
    keep_alive: float = KEEP_ALIVE_SECONDS
    """Seconds that a model stays after its last use where nobody says; negative: for good."""
    drain_seconds: float = 30.0
    """For what a model that is unloaded still computes: nothing, but for a client that has just gone away."""


class Catalogue:
    """Who is loaded. Lives in one event loop; leaving it as a context manager ends all workers.

    A model is loaded once however many wait for it, held while it is in use, and unloaded some time after.
    Where memory is short the models idle for longest go first, those that were to stay for good last.
    """

    def __init__(
        self,
        loader: ModelLoader | None,
        named: Sequence[LocalFile],
        *,
        at_once: Sequence[str] | None = None,
        on_demand: bool = False,
        budget: Budget | None = None,
    ) -> None:
        """Offers the models `named`, and `on_demand` all in the models folder.

        Those named in `at_once`, the first where None, are loaded at the start and stay.
        """
        self.on_demand = on_demand
        self.elsewhere: Sequence[str] = ()
        """Other names that requests can have: policies, and models that are not served from here."""
        self.loaded_models = LoadedModels()
        self._loader = loader
        self._named = {file.name: file for file in named}
        self._at_once = [file.name for file in named[:1]] if at_once is None else list(at_once)
        self._budget = budget or Budget()
        self._residents: dict[str, Resident] = {}
        self._leaving: dict[asyncio.Task[None], Resident] = {}
        self._planning = asyncio.Lock()
        self._pulls = Pulls()
        self._closed = False

    @classmethod
    def fixed(cls, models: Mapping[str, ServedModel]) -> Catalogue:
        """Of models that are there and stay."""
        catalogue = cls(None, ())
        for name, model in models.items():
            resident = Resident(name, NEVER, catalogue._expired)
            resident.served = model
            catalogue._residents[name] = resident
        catalogue.loaded_models = LoadedModels(models)
        return catalogue

    # what there is

    def available(self) -> list[LocalFile]:
        """Every model that can be asked for and lies in a file here, by name."""
        files = {file.name: file for file in local_files() if file.supported} if self.on_demand else {}
        return [file for _, file in sorted((files | self._named).items())]

    def residents(self) -> list[Resident]:
        """Every model that is loaded."""
        return [resident for resident in self._residents.values() if resident.served is not None]

    def workers(self, name: str) -> int:
        """Those of a model that take requests now."""
        resident = self._residents.get(name)
        return resident.fleet.workers if resident is not None and resident.fleet is not None else 0

    async def details(self, file: LocalFile) -> ModelDetails:
        """What the file says of itself; read on a thread, once. Raises HeadraceError for a broken file."""
        return await asyncio.to_thread(model_details, file.path)

    def find(self, name: str) -> LocalFile:
        """The file of a model that may be served. Raises RequestError, 404, that says which there are."""
        if (file := self._named.get(name)) is not None:
            return file
        files = {file.name: file for file in self.available()}
        if (file := files.get(name)) is not None:
            return file
        here = [*(files or self.loaded_models)]
        if name in self.elsewhere:
            told = f"This needs a model that runs here, not {name!r:.200}. Here are: {_quoted(here)}."
        else:
            told = f"The model {name!r:.200} does not exist. Served: {_quoted([*here, *self.elsewhere])}."
        raise RequestError(told, "model", status=404, code="model_not_found")

    async def pull(self, name: str) -> AsyncGenerator[PullProgress, None]:
        """Fetches a model unless it is there. Raises as `Pulls.pull`; 403 where clients may not add any."""
        if not self.on_demand:
            raise fixed_models("pull")
        async with contextlib.aclosing(self._pulls.pull(name)) as pull:
            async for progress in pull:
                yield progress

    def delete(self, name: str) -> None:
        """Deletes the file of a model that a pull can bring back; one that is idle is unloaded.

        Raises RequestError: 403 where clients may not, or not this one; 404; 409 while it is in use.
        """
        if not self.on_demand:
            raise fixed_models("delete")
        file = self.find(name)
        draft = self._loader.draft_model if self._loader is not None else None
        if name in self._named or draft in (file.source, str(file.path)):
            raise not_deletable(name, "the server was started with it")
        if file.sha256 is None:
            raise not_deletable(name, "it was not pulled but put here by hand")
        if (resident := self._residents.get(name)) is not None:
            if not resident.idle:
                raise in_use(name)
            self._unload(resident)
        remove_local(name)  # what still ends keeps the file that it has open
        log.warning("%s is deleted, as a client asked", name)

    # using

    @contextlib.asynccontextmanager
    async def use(self, name: str, keep_alive: float | None = None) -> AsyncIterator[ServedModel]:
        """The model, loaded and kept in memory for as long as the block runs.

        `keep_alive`: seconds that it stays after its last use, 0 not at all, negative for good; None leaves
        that as it is. Only where models are loaded on demand is it the client's to say.

        Raises:
            RequestError: 404, there is no such model; 400, it cannot be run.
            UnavailableError: 503, it cannot be loaded now: no memory, or its worker does not start.
        """
        resident = self._resident(name)
        resident.enter(keep_alive if self.on_demand else None)
        try:
            if resident.loading is not None:
                await _loaded(resident.loading)
            assert resident.served is not None
            yield resident.served
        finally:
            resident.leave()

    def _resident(self, name: str) -> Resident:
        resident = self._residents.get(name)
        if resident is not None and not (self.on_demand and resident.idle and resident.failed):
            return resident
        if self._closed:
            raise UnavailableError(DRAINING, status=503, code="draining", retry_after=5)
        file = self.find(name)
        if resident is not None:
            self._unload(resident)
        keep_alive = NEVER if name in self._at_once else self._budget.keep_alive
        resident = self._residents[name] = Resident(name, keep_alive, self._expired)
        resident.loading = asyncio.create_task(self._load(file, resident), name=f"load {name}")
        resident.loading.add_done_callback(_retrieve)
        return resident

    async def _load(self, file: LocalFile, resident: Resident) -> None:
        assert self._loader is not None
        try:
            total = self._budget.bytes
            plan = await self._loader.plan(file, total or 0)
            if total is not None:
                await self._reserve(resident, plan.footprint, total)
            loaded = await self._loader.load(plan)
        except BaseException:
            del self._residents[file.name]
            raise
        resident.loaded(loaded.served, loaded.fleet, loaded.footprint)
        self.loaded_models.put(loaded.served)
        log.info("%s is loaded", file.name)

    async def reloading(self, name: str) -> Callable[[], None]:
        """Reads the file of a loaded model anew; call what it returns once the workers have the new one.

        Raises as `loading.reopened`, and as `find`.
        """
        file, resident = self.find(name), self._residents[name]
        assert resident.served is not None and resident.fleet is not None
        fleet = resident.fleet
        prompter, sampling = await asyncio.to_thread(reopened, file, resident.served.prompter)

        def take() -> None:
            if self._residents.get(name) is resident:
                resident.served = served_model(name, fleet, prompter, sampling)
                self.loaded_models.put(resident.served)

        return take

    # memory

    async def _reserve(self, resident: Resident, wanted: Footprint, total: int) -> None:
        """Unloads idle models until there is room; for one load at a time: each sees what others took."""
        async with self._planning:
            if wanted.bytes > total:
                raise RequestError(
                    f"The model '{resident.name}' takes {_told(wanted.bytes)}, more than the {_told(total)} "
                    "that all models may take together (--memory-gib).",
                    "model",
                    code="model_too_large",
                )
            while wanted.bytes > total - self._held():
                if self._leaving:
                    await asyncio.wait(self._leaving, return_when=asyncio.FIRST_COMPLETED)
                elif (victim := self._longest_idle()) is not None:
                    log.info("%s is unloaded to make room for %s", victim.name, resident.name)
                    self._unload(victim)
                else:
                    raise self._no_room(resident, wanted, total)
            resident.footprint = wanted

    def _held(self) -> int:
        return sum(r.footprint.bytes for r in (*self._residents.values(), *self._leaving.values()))

    def _longest_idle(self) -> Resident | None:
        idle = [resident for resident in self._residents.values() if resident.idle]
        return min(idle, key=lambda resident: (resident.keep_alive < 0, resident.last_used), default=None)

    def _no_room(self, resident: Resident, wanted: Footprint, total: int) -> UnavailableError:
        holders = ", ".join(
            f"'{r.name}' ({_told(r.footprint.bytes)})" for r in self._residents.values() if r.footprint.bytes
        )
        return UnavailableError(
            f"There is no memory for the model '{resident.name}' now: it takes {_told(wanted.bytes)} of "
            f"{_told(total)}, and models in use hold the rest: {holders}. Retry in {RETRY_SECONDS} s.",
            status=503,
            code="no_memory_for_model",
            retry_after=RETRY_SECONDS,
        )

    # unloading

    async def unload(self, name: str) -> bool:
        """Unloads a model that is idle, and lets one in use go with its last user. True where it is gone."""
        resident = self._residents.get(name)
        if resident is None:
            return True
        if not resident.idle:
            resident.keep_alive = 0.0
            return False
        await asyncio.shield(self._unload(resident))
        return True

    def _expired(self, resident: Resident) -> None:
        if resident.idle and self._residents.get(resident.name) is resident:
            log.info("%s is unloaded, for nobody used it", resident.name)
            self._unload(resident)

    def _unload(self, resident: Resident) -> asyncio.Task[None]:
        """New users load it anew at once; its memory counts until its workers are gone."""
        del self._residents[resident.name]
        self.loaded_models.drop(resident.name)
        resident.stop_timer()
        task = asyncio.create_task(self._drain(resident, self._budget.drain_seconds))
        self._leaving[task] = resident
        task.add_done_callback(self._leaving.pop)
        return task

    async def _drain(self, resident: Resident, timeout: float) -> None:
        if resident.fleet is not None:
            await resident.fleet.drain(timeout)

    # the end

    async def drain(self, timeout: float) -> None:
        """Loads no more, and lets workers finish what they have accepted, for so many seconds at the most."""
        self._closed = True
        residents = list(self._residents.values())
        loading = [r.loading for r in residents if r.loading is not None]
        for task in loading:
            task.cancel()
        leaving = (self._drain(resident, timeout) for resident in residents)
        await asyncio.gather(*loading, *self._leaving, *leaving, return_exceptions=True)

    async def __aenter__(self) -> Catalogue:
        """Loads the models that are to be there from the start; raises as `use` does."""
        for name in self._at_once:
            async with self.use(name):
                pass
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain(0.0)


async def _loaded(loading: asyncio.Task[None]) -> None:
    """Waits for a load. Who goes away does not end it for others; who stays learns that the server ends."""
    try:
        await asyncio.shield(loading)
    except asyncio.CancelledError:
        if loading.cancelled():
            raise UnavailableError(DRAINING, status=503, code="draining", retry_after=5) from None
        raise


def _retrieve(task: asyncio.Task[None]) -> None:
    """An error that nobody waited for is no news to the event loop: the next user meets it again."""
    if not task.cancelled():
        task.exception()


def _told(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
