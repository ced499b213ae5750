"""Serving the application on a socket until a signal comes, and then draining."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator

import uvicorn

from headrace.errors import ConfigError
from headrace.gateway.app import create_app
from headrace.gateway.state import Gateway

_LAST_WORDS_SECONDS = 2.0
"""For streams that were cut short to be told so."""
_KEEP_ALIVE_SECONDS = 75


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


class _Server(uvicorn.Server):
    """Uvicorn, with signals left to `serve`: it must go on answering while the gateway drains."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    gateway: Gateway,
    sock: socket.socket,
    *,
    drain_seconds: float,
    ready: Callable[[], None],
    draining: Callable[[int], None],
    stop_engines: Callable[[], Awaitable[None]],
) -> None:
    """Answers requests until SIGTERM or SIGINT, then drains and returns.

    While it drains, /health says so, new requests are refused, and running ones have `drain_seconds` to
    finish; a second signal ends the wait. `draining` is told how many sequences run, where any do. Then
    `stop_engines` ends what still runs.
    """
    config = uvicorn.Config(
        create_app(gateway),
        http="httptools",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(_LAST_WORDS_SECONDS),
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve([sock]))
    with _signals() as (stop, hurry):
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if not serving.done():
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


async def _first(*things: Awaitable[object]) -> None:
    """Returns when the first of them is done; those that were coroutines are cancelled then."""
    tasks = [thing if isinstance(thing, asyncio.Task) else asyncio.ensure_future(thing) for thing in things]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, thing in zip(tasks, things, strict=True):
        if task is not thing:
            task.cancel()
