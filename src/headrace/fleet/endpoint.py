"""Where workers connect: a socket file for those on this host, an encrypted port for those on others."""

from __future__ import annotations

import logging
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Protocol

import zmq
from zmq.auth.thread import ThreadAuthenticator

from headrace.errors import ConfigError
from headrace.worker.messages import LOST_BEATS
from headrace.worker.secret import Keys
from headrace.worker.session import MAX_MESSAGE_BYTES

log = logging.getLogger("headrace.fleet")

_MAX_FOLDER = 90
"""A Unix socket's path has at most 107 bytes; a temporary folder longer than this leaves too few."""
_ZAP_DOMAIN = "workers"


class Endpoint(Protocol):
    """A place to bind a ROUTER socket to."""

    def bind(self, context: zmq.Context[zmq.Socket[bytes]], router: zmq.Socket[bytes]) -> str:
        """Prepares and binds the socket; the address to connect to."""
        ...

    def close(self) -> None:
        """Tidies up after the socket was closed, and before its context ends."""
        ...


class PrivateFolder:
    """A socket file in a folder of mode 0700, which only this user can enter."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-"))
        if len(bytes(self._folder)) > _MAX_FOLDER:
            self._folder.rmdir()
            self._folder = Path(tempfile.mkdtemp(prefix="headrace-", dir="/tmp"))

    def bind(self, context: zmq.Context[zmq.Socket[bytes]], router: zmq.Socket[bytes]) -> str:
        address = f"ipc://{self._folder}/fleet"
        router.bind(address)
        return address

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class EncryptedPort:
    """A TCP port where CURVE admits one client key alone: that of who knows the secret."""

    def __init__(self, host: str, port: int, keys: Keys, beat: float) -> None:
        """Port 0 takes a free one. `beat`: seconds between signs of life."""
        self._host, self._port, self._keys, self._beat = host, port, keys, beat
        self._gatekeeper: ThreadAuthenticator | None = None

    def bind(self, context: zmq.Context[zmq.Socket[bytes]], router: zmq.Socket[bytes]) -> str:
        """Raises ConfigError where the port cannot be had."""
        self._gatekeeper = ThreadAuthenticator(context, log=log)
        self._gatekeeper.start()
        self._gatekeeper.configure_curve_callback(_ZAP_DOMAIN, _OneKey(self._keys.worker.public))
        router.setsockopt_string(zmq.ZAP_DOMAIN, _ZAP_DOMAIN)
        router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # nobody is admitted unasked
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, self._keys.gateway.secret)
        router.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        router.setsockopt(zmq.IPV6, ":" in self._host)
        # A message to a worker whose connection has ended is refused, which tells that at once.
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # Connections that a cut line left half open end, and what was to be sent on them is freed.
        router.setsockopt(zmq.HEARTBEAT_IVL, round(1000 * LOST_BEATS * self._beat))
        router.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(2000 * LOST_BEATS * self._beat))
        try:
            host = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)[0][4][0]
            router.bind(f"tcp://[{host}]:{self._port}" if ":" in str(host) else f"tcp://{host}:{self._port}")
        except OSError as error:  # ZMQError is one
            raise ConfigError(
                f"--listen-workers: cannot listen on {self._host}:{self._port}: {error.strerror}"
            ) from None
        return router.getsockopt_string(zmq.LAST_ENDPOINT)

    def close(self) -> None:
        if self._gatekeeper is not None:
            self._gatekeeper.stop()


class _OneKey:
    """What pyzmq asks about a client that has shown that it has a key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._key
