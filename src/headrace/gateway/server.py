"""Serving the application on a socket, with TLS or without, until a signal comes, and then draining."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import math
import resource
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from headrace.errors import ConfigError
from headrace.gateway.app import create_app
from headrace.gateway.bodies import CountedBodies
from headrace.gateway.callers import Callers
from headrace.gateway.connections import BoundedServer, ConnectionLimits, bounded
from headrace.gateway.error_words import refusing
from headrace.gateway.front import Front
from headrace.gateway.request_log import Observer
from headrace.gateway.shortcut import Shortcut
from headrace.gateway.state import Gateway

log = logging.getLogger("headrace.gateway")

_LAST_WORDS_SECONDS = 2.0
"""For streams that were cut short to be told so."""
_COLLECT_AFTER = 25_000, 5, 2
"""When the garbage collector looks at the youngest objects, at younger ones, at all. By default it does so
after a few hundred new ones: each step's events, which are many and live for a moment, would have it look at
the state of every open stream. What cycles may hold until it comes is some tens of MiB."""
_OTHER_FILES = 256
"""File descriptors beside those of clients' connections."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate and key files; read anew at a SIGHUP, for connections that come later."""

    cert: Path
    """The certificate and those that it is signed by, PEM."""
    key: Path
    context: ssl.SSLContext = field(default_factory=lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def load(self) -> None:
        """Reads the files. Raises ConfigError that names the flag."""
        for flag, file in (("--tls-cert", self.cert), ("--tls-key", self.key)):
            if not file.is_file():
                raise ConfigError(f"{flag}: there is no file {file}")
        try:
            self.context.load_cert_chain(self.cert, self.key, password="")
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise ConfigError(
                f"--tls-cert {self.cert} and --tls-key {self.key} do not load: {error}"
            ) from None


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How clients may connect."""

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    origins: Sequence[str] = ()
    """Whose pages may ask (CORS): origins, or "*"."""
    tls: Tls | None = None


@dataclass(frozen=True, slots=True)
class Door:
    """Where clients come in, and who sees them."""

    sock: socket.socket
    options: ServerOptions
    callers: Callers
    observers: Sequence[Observer] = ()


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to the address; port 0 takes a free one. Raises ConfigError where it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle's algorithm off only where it reads TCP there.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(0)  # else a second server could bind the port as well until this one listens
    except OSError as error:
        sock.close()
        raise ConfigError(_why_not(host, port, error)) from None
    sock.set_inheritable(False)
    return sock


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use by another program; choose another with --port or HEADRACE_PORT"
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs rights this user lacks; choose one above 1023 with --port or HEADRACE_PORT"
    return f"cannot listen on host {host!r}, port {port}: {error.strerror or error}; see --host and --port"


class _Server(BoundedServer):
    """Uvicorn, with signals left to `serve`: it must go on answering while the gateway drains."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def application(gateway: Gateway, origins: Sequence[str] = ()) -> ASGIApp:
    """All that answers a request: what every request passes first, and the endpoints."""
    return Front(
        CountedBodies(Shortcut(create_app(gateway)), lambda: gateway.bodies),
        gateway.callers,
        origins=origins,
        clock=time.monotonic,
        refuse=refusing(lambda: gateway.observers),
    )


def configure(gateway: Gateway, options: ServerOptions) -> uvicorn.Config:
    """How uvicorn is to serve the gateway. Raises ConfigError where a TLS file is wrong."""
    return _configure(application(gateway, options.origins), options)


def _configure(app: ASGIApp, options: ServerOptions) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=bounded(options.limits),
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nobody asks where a client is
        timeout_keep_alive=math.ceil(options.limits.idle_seconds),
        timeout_graceful_shutdown=int(_LAST_WORDS_SECONDS),
    )
    config.load()
    if options.tls is not None:
        options.tls.load()
        config.ssl = options.tls.context
    return config


def _prepare(sock: socket.socket, limits: ConnectionLimits) -> None:
    """Lets the system end connections whose other end has vanished, and lends descriptors for the rest.

    Connections inherit the listening socket's options.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 60),
        ("TCP_KEEPINTVL", 15),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", int(limits.write_seconds * 1000)),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def serve(
    gateway: Gateway,
    sock: socket.socket,
    *,
    drain_seconds: float,
    ready: Callable[[], None],
    draining: Callable[[int], None],
    stop_engines: Callable[[], Awaitable[None]],
    options: ServerOptions | None = None,
) -> None:
    """Answers requests until SIGTERM or SIGINT, then drains and returns.

    While it drains, /health says so, new requests are refused, and running ones have `drain_seconds` to
    finish; a second signal ends the wait. `draining` is told how many sequences run, where any do. Then
    `stop_engines` ends what still runs. SIGHUP reads keys and certificates anew.
    """
    options = options or ServerOptions()
    gc.set_threshold(*_COLLECT_AFTER)
    config = configure(gateway, options)
    _prepare(sock, options.limits)
    server = _Server(config)
    serving = asyncio.create_task(server.serve([sock]))
    with _signals() as (stop, hurry), _reloading(gateway, options.tls):
        if await _started(server, serving):
            ready()
        await _first(stop.wait(), serving)
        gateway.admission.draining = True
        if gateway.admission.admitted:
            draining(gateway.admission.admitted)
        await _first(gateway.admission.idle(drain_seconds), hurry.wait())
        await stop_engines()
        await gateway.admission.idle(_LAST_WORDS_SECONDS)
        server.should_exit = True
        await serving


@contextlib.asynccontextmanager
async def answering(app: ASGIApp, sock: socket.socket, options: ServerOptions) -> AsyncIterator[None]:
    """The application answers for as long as the block runs. Who comes after it waits until others listen."""
    server = _Server(_configure(app, options))
    _prepare(sock, options.limits)
    serving = asyncio.create_task(server.serve([sock.dup()]))
    try:
        await _started(server, serving)
        yield
    finally:
        server.should_exit = True
        await serving


async def _started(server: _Server, serving: asyncio.Task[None]) -> bool:
    """Waits until it listens; False where it has ended instead."""
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    return not serving.done()


@contextlib.contextmanager
def _signals() -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """Two events: the first signal sets the first, a second signal the second."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop, hurry
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _reloading(gateway: Gateway, tls: Tls | None) -> Iterator[None]:
    """Reads keys and certificates anew at a SIGHUP, and keys when their file changes."""
    asked = asyncio.Event()

    def on_signal() -> None:
        asked.set()
        if tls is not None:
            try:
                tls.load()
            except ConfigError as error:
                log.warning("the certificate stays as it was: %s", error)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, on_signal)
    watching = asyncio.create_task(gateway.callers.watch(asked))
    try:
        yield
    finally:
        watching.cancel()
        loop.remove_signal_handler(signal.SIGHUP)


async def _first(*things: Awaitable[object]) -> None:
    """Returns when the first of them is done; those that were coroutines are cancelled then."""
    tasks = [thing if isinstance(thing, asyncio.Task) else asyncio.ensure_future(thing) for thing in things]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, thing in zip(tasks, things, strict=True):
        if task is not thing:
            task.cancel()
