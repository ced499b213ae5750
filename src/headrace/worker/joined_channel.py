"""The end of the messages on a worker that joined a gateway: it finds the gateway again, whatever happens."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from socket import socketpair

import zmq

from headrace.errors import ConfigError, HeadraceError
from headrace.worker.messages import (
    LOST_BEATS,
    Beat,
    Drain,
    Hello,
    Leaving,
    Ready,
    Refused,
    Reset,
    ToGateway,
    ToWorker,
    Welcome,
)
from headrace.worker.secret import Keys
from headrace.worker.session import Session, UntrustedError

log = logging.getLogger("headrace.worker")

_WELCOME_SECONDS = 5.0
"""For the connection and the answer to `Hello`."""
_RETRY_SECONDS = 1.0
_UNTRUSTED_ATTEMPTS = 3
"""A gateway may vanish amid a handshake, but hardly so often in turn."""
_LINGER_SECONDS = 2.0


class RefusedError(HeadraceError):
    """The gateway does not want this worker; the message says why."""


class JoinedChannel:
    """Messages from and to a gateway on another host, over one session after another.

    Where one session ends, the loop that reads the messages gets a `Reset`: what it computes, it computes for
    nobody. Sending never blocks, and drops what no session can take. Signs of life come from a thread while
    the loop is busy, with a step or with loading; so all that touches a socket holds a lock.
    """

    def __init__(self, address: str, keys: Keys, hello: Hello) -> None:
        """`address` is HOST:PORT. Connects when `join` is called."""
        self._address, self._keys, self._hello = address, keys, hello
        self._context = zmq.Context()
        self._session: Session | None = None
        self._welcomed = False
        self._ever_welcomed = False
        self._ready: Ready | None = None
        self._heard = self._next_try = 0.0
        self._untrusted = 0
        self._told_why = ""
        self._beat = 1.0
        self._last_beat = 0.0
        self._leaving: float | None = None
        self._leave_by: float | None = None
        self._bell, self._cord = socketpair()
        self._bell.setblocking(False)
        self._cord.setblocking(False)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._heart = threading.Thread(target=self._keep_beating, name="heartbeat", daemon=True)
        self._heart.start()

    def join(self) -> None:
        """Returns once a gateway has welcomed the worker.

        Raises:
            RefusedError: it does not want it.
            ConfigError: it does not know the secret.
        """
        while not self._welcomed:
            for message in self.received():
                assert isinstance(message, Reset), message
            self.wait()

    def ready(self, ready: Ready) -> None:
        """The model is loaded: this gateway is told, and every later one."""
        self._ready = ready
        self.send(ready)

    def leave(self, seconds: float) -> None:
        """Lets the gateway take leave of the worker: `Drain` comes within so many seconds and a few.

        At once where there is no gateway. May be called from a signal handler.
        """
        self._leaving = seconds
        self.wake()

    def send(self, message: ToGateway) -> None:
        """Dropped where no gateway has welcomed the worker."""
        with self._lock:
            if self._session is not None and self._welcomed:
                self._session.send(message)

    def received(self) -> Iterator[ToWorker]:
        """All messages that have arrived; none is waited for. Raises as `join` does."""
        with self._lock:
            messages = self._take()
        yield from messages

    def wait(self) -> None:
        """Sleeps until a message arrives, or another thread has called `wake`, but not for long."""
        with self._lock:
            poller = zmq.Poller()
            poller.register(self._bell, zmq.POLLIN)
            if self._session is not None:
                self._session.register(poller)
            poller.poll(round(1000 * min(self._beat, _RETRY_SECONDS)))
            # The gateway's own beats may end every sleep just before one of this side's is due.
            if time.monotonic() - self._last_beat >= self._beat:
                self._send_beat()
        with suppress(BlockingIOError):
            self._bell.recv(4096)

    def wake(self) -> None:
        """Ends the `wait` that is going on, or the next one; from any thread."""
        with suppress(BlockingIOError):  # it has been rung often enough
            self._cord.send(b"!")

    def close(self) -> None:
        """Waits until what was sent is out, then closes."""
        self._closed.set()
        self._heart.join()
        if self._session is not None:
            self._session.close(_LINGER_SECONDS)
        self._context.term()
        self._bell.close()
        self._cord.close()

    def _keep_beating(self) -> None:
        while not self._closed.wait(self._beat):
            # Where the loop holds the lock it sends something itself, or has just done so.
            if self._lock.acquire(blocking=False):
                try:
                    self._send_beat()
                finally:
                    self._lock.release()

    def _send_beat(self) -> None:
        if self._session is not None and self._welcomed:
            self._session.send(Beat())
            self._last_beat = time.monotonic()

    def _take(self) -> list[ToWorker]:
        now = time.monotonic()
        taken: list[ToWorker] = []
        if self._session is None and now >= self._next_try:
            self._introduce(now)
        if self._session is not None:
            try:
                for message in self._session.received():
                    self._heard = now
                    if self._concerns_the_worker(message):
                        taken.append(message)
                patience = LOST_BEATS * self._beat if self._welcomed else _WELCOME_SECONDS
                if now - self._heard > patience:
                    raise _SilentError("it is silent")
            except RefusedError:
                raise
            except UntrustedError as error:
                self._distrust(error)
                taken.append(self._end_session(now, str(error)))
            except HeadraceError as error:
                taken.append(self._end_session(now, str(error)))
        if self._leaving is not None:
            taken += self._take_leave(now, self._leaving)
        return taken

    def _introduce(self, now: float) -> None:
        self._session = Session(self._context, self._address, self._keys)
        self._heard = now
        self._session.send(self._hello)

    def _concerns_the_worker(self, message: ToWorker) -> bool:
        match message:
            case Welcome(beat=beat):
                log.info("joined the gateway at %s", self._address)
                self._welcomed = self._ever_welcomed = True
                self._beat = beat
                self._untrusted, self._told_why = 0, ""
                if self._ready is not None and self._session is not None:
                    self._session.send(self._ready)
            case Refused(reason=reason):
                raise RefusedError(f"the gateway at {self._address} refuses this worker: {reason}")
            case Reset():
                raise _SilentError("it had given this worker up")
            case Beat():
                pass
            case _:
                return True
        return False

    def _end_session(self, now: float, why: str) -> Reset:
        assert self._session is not None
        self._session.close()
        self._session, self._welcomed = None, False
        self._next_try = now + random.uniform(0.2, 1.0) * _RETRY_SECONDS
        if why != self._told_why:
            log.warning("the gateway at %s: %s; trying again until it answers", self._address, why)
            self._told_why = why
        return Reset()

    def _distrust(self, error: UntrustedError) -> None:
        self._untrusted += 1
        if self._untrusted >= _UNTRUSTED_ATTEMPTS and not self._ever_welcomed:
            raise ConfigError(f"the gateway at {self._address}: {error}")

    def _take_leave(self, now: float, seconds: float) -> list[ToWorker]:
        if self._leave_by is None and self._welcomed and self._session is not None:
            self._session.send(Leaving(seconds))
            self._leave_by = now + seconds + LOST_BEATS * self._beat
        if self._welcomed and self._leave_by is not None and now < self._leave_by:
            return []
        self._leaving = None
        return [Drain()]


class _SilentError(HeadraceError):
    """The session is over, though its connection may stand."""
