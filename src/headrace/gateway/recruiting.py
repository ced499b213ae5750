"""The port where workers of other hosts join, for as long as the server runs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ConfigError
from headrace.fleet import EncryptedPort, Registry
from headrace.worker.join import host_and_port
from headrace.worker.secret import Keys, read_keys


@dataclass(frozen=True, slots=True)
class WorkersPort:
    """Where workers join, and who may."""

    host: str
    port: int
    keys: Keys
    heartbeat: float
    """Seconds between two signs of life."""

    @classmethod
    def of(cls, address: str | None, secret_file: Path | None, heartbeat: float) -> WorkersPort | None:
        """From the settings; None where no worker may join. Raises ConfigError that names the setting."""
        if address is None:
            return None
        if secret_file is None:
            raise ConfigError("--listen-workers needs --secret-file; `headrace worker secret` makes a secret")
        return cls(*host_and_port("--listen-workers", address), read_keys(secret_file), heartbeat)


@contextlib.asynccontextmanager
async def open_port(
    port: WorkersPort | None, served: Callable[[], Sequence[str]], tell: Callable[[str], None]
) -> AsyncIterator[Registry | None]:
    """Listens while the block runs; `served` are the models whose workers may join."""
    if port is None:
        yield None
        return
    registry = Registry(
        EncryptedPort(port.host, port.port, port.keys, port.heartbeat), served, port.heartbeat
    )
    try:
        tell(f"workers may join at {registry.address}")
        yield registry
    finally:
        await registry.close()
