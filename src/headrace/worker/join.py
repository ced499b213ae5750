"""`headrace worker --join`: one worker, for a gateway on another host."""

from __future__ import annotations

import gc
import os
import secrets
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

from headrace.errors import ConfigError, HeadraceError
from headrace.models.vocabulary import Vocabulary
from headrace.worker.joined_channel import JoinedChannel
from headrace.worker.loader import load, open_model
from headrace.worker.messages import PROTOCOL_VERSION, Failed, Hello
from headrace.worker.process import Worker, ready_message
from headrace.worker.secret import read_keys
from headrace.worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """Which gateway, and as whom."""

    gateway: str
    """HOST:PORT."""
    secret_file: Path
    name: str | None = None
    """None: the host's and the process's."""
    role: Literal["both", "prefill", "decode"] = "both"
    drain_seconds: float = 30.0
    """For what it computes to end, once a signal has come; what then runs goes on at another worker."""

    @classmethod
    def of(
        cls,
        gateway: str | None,
        secret_file: Path | None,
        name: str | None,
        role: Literal["both", "prefill", "decode"],
        drain_seconds: float,
    ) -> JoinSettings:
        """From the settings. Raises ConfigError that names the one that is missing or wrong."""
        if gateway is None or secret_file is None:
            raise ConfigError(
                "a worker needs --join HOST:PORT, where the server listens for workers, and --secret-file"
            )
        host_and_port("--join", gateway)
        return cls(gateway, secret_file, name, role, drain_seconds)


def join_gateway(joining: JoinSettings, settings: WorkerSettings) -> None:
    """Loads the model and serves; returns when a signal has come and what ran has ended.

    A gateway that vanishes is looked for until it is back, and served again.

    Raises:
        ConfigError: the secret is wrong.
        RefusedError: the gateway does not want this worker.
        HeadraceError: the model cannot be loaded.
    """
    keys = read_keys(joining.secret_file)
    leave = _Leave(joining.drain_seconds)
    model = open_model(settings.model)
    vocabulary = Vocabulary(model.weights.metadata)
    hello = Hello(
        version=PROTOCOL_VERSION,
        name=joining.name or f"{socket.gethostname()}:{os.getpid()}",
        instance=secrets.token_hex(8),
        model=model.name,
        role=joining.role,
        pid=os.getpid(),
    )
    channel = JoinedChannel(joining.gateway, keys, hello)
    try:
        channel.join()
        try:
            loaded = load(model, settings)
        except HeadraceError as error:
            channel.send(Failed(str(error)))
            raise
        worker = Worker(loaded, vocabulary, channel, _transfer_address(joining.gateway), keys.blocks)
        del model  # and its metadata, as large as the vocabulary
        gc.collect()
        gc.freeze()
        leave.channel = channel
        channel.ready(ready_message(loaded, worker.transfer))
        worker.run()
        loaded.close()
    finally:
        channel.close()


def host_and_port(flag: str, address: str) -> tuple[str, int]:
    """The parts of HOST:PORT, an IPv6 address in brackets. Raises ConfigError that names the flag."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{flag}: expected HOST:PORT, such as 10.0.0.1:7000, not {address!r}")
    return host.strip("[]"), int(port)


def _transfer_address(gateway: str) -> str:
    """Where other workers reach this one: the address of this host by which it reaches the gateway."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        *host_and_port("--join", gateway), type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # sends nothing
        return f"tcp:{probe.getsockname()[0]}:0"


class _Leave:
    """What a signal to end does: at once while there is nothing to lose, and the second time."""

    def __init__(self, drain_seconds: float) -> None:
        self.channel: JoinedChannel | None = None
        """Set when the worker may have work."""
        self._drain_seconds = drain_seconds
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.channel is None:
            raise SystemExit(0)
        self.channel.leave(self._drain_seconds)
        self.channel = None
