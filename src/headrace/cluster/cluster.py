"""The gateway's side of a cluster: keeps the driver running, and tells it how many workers the load wants."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from types import TracebackType

import msgspec

from headrace.cluster.messages import Plan, Report, Wanted
from headrace.cluster.scaling import Scaler
from headrace.cluster.settings import ClusterSettings
from headrace.errors import ConfigError

log = logging.getLogger("headrace.cluster")

_LOOK_SECONDS = 0.5
"""Between two looks at the load."""
_CONNECT_SECONDS = 90.0
"""For Ray to answer, or a local cluster to start."""
_STOP_SECONDS = 20.0
_RESTART_SECONDS = 5.0


class Driver:
    """The process that speaks with Ray."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, plan: Plan) -> Driver:
        """Returns when Ray has answered. Raises ConfigError where it does not."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.cluster.driver"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # Ray's own words, which it keeps in its logs
            env=os.environ | {"PYTHONSAFEPATH": "1"},
            start_new_session=True,  # Ctrl-C is for the gateway
        )
        driver = cls(process)
        try:
            await driver.send(plan)
            first = await asyncio.wait_for(driver.report(), _CONNECT_SECONDS)
        except BaseException as error:
            await driver.stop()
            if isinstance(error, asyncio.TimeoutError):
                raise ConfigError(f"--cluster ray: Ray did not answer in {_CONNECT_SECONDS:g} s") from None
            raise
        if first is None or first.failed:
            await driver.stop()
            raise ConfigError(f"--cluster ray: {first.failed if first else 'the driver ended at once'}")
        return driver

    async def send(self, message: Plan | Wanted) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it has ended, and `report` tells
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            await self._process.stdin.drain()

    async def report(self) -> Report | None:
        """The next one; None when the process has ended."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        return msgspec.json.decode(line, type=Report) if line.endswith(b"\n") else None

    async def stop(self) -> None:
        """Ends all actors, and the cluster where it is a local one."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
        except asyncio.TimeoutError:
            self._process.kill()
            await self._process.wait()


class Cluster:
    """Workers of a cluster for as long as the block runs: `async with`."""

    def __init__(
        self,
        plan: Plan,
        settings: ClusterSettings,
        load: Callable[[str], int],
        tell: Callable[[str], None],
    ) -> None:
        """`load`: requests of a model that run or wait now. `tell` is given lines for the user."""
        self._plan, self._load, self._tell = plan, load, tell
        self._scalers = [
            Scaler(pool.least, pool.most, settings.load, settings.down_seconds) for pool in plan.pools
        ]
        self._driver: Driver | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Cluster:
        """Raises ConfigError where the cluster does not answer."""
        self._driver = await Driver.start(self._plan)
        self._task = asyncio.create_task(self._run(), name="cluster")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._driver is not None:
            await self._driver.stop()

    async def _run(self) -> None:
        """Follows the load; a driver that ends is started again, and with it all workers."""
        while True:
            if self._driver is not None:
                scaling = asyncio.create_task(self._scale(self._driver))
                try:
                    await self._listen(self._driver)
                finally:
                    scaling.cancel()
                await self._driver.stop()
                self._driver = None
                log.error("the process that speaks with Ray has ended; another is started")
            await asyncio.sleep(_RESTART_SECONDS)
            try:
                self._driver = await Driver.start(self._plan)
            except ConfigError as error:
                log.error("%s", error)

    async def _scale(self, driver: Driver) -> None:
        told: list[int] = []
        while True:
            now = time.monotonic()
            loads = [self._load(pool.model) for pool in self._plan.pools]
            counts = [scaler.look(now, load) for scaler, load in zip(self._scalers, loads, strict=True)]
            if counts != told:
                told = counts
                await driver.send(Wanted(counts))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _listen(self, driver: Driver) -> None:
        """Until the driver has ended."""
        before = Report()
        while (report := await driver.report()) is not None:
            if report.failed:
                log.error("workers on Ray: %s", report.failed)
                return
            if report.ended:
                log.warning("%s; another is started soon", report.ended)
            if (report.placed, report.pending) != (before.placed, before.pending):
                self._tell(self._words(report))
            before = report

    def _words(self, report: Report) -> str:
        parts = []
        for pool, placed, pending in zip(self._plan.pools, report.placed, report.pending, strict=True):
            name = pool.model if pool.role == "both" else f"{pool.model} ({pool.role})"
            waiting = f", {pending} to be placed" if pending else ""
            parts.append(f"{placed} of {name}{waiting}")
        return f"workers on Ray: {'; '.join(parts)}"
