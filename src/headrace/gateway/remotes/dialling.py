"""Opens connections to one remote: at any of its addresses, by TLS, through the environment's proxy."""

from __future__ import annotations

import asyncio
import base64
import functools
import logging
import os
import socket
import ssl
import sys
import urllib.request
from urllib.parse import SplitResult, unquote, urlsplit

import aiohappyeyeballs

from headrace.gateway.remotes.http_connection import BrokenHttpError, HttpConnection, head_of

log = logging.getLogger("headrace.gateway")

_NEXT_ADDRESS = 0.25
"""Seconds after which the next address is tried beside (RFC 8305)."""
_PORTS = {"http": 80, "https": 443}


class ProxyError(Exception):
    """The proxy does not lead to the remote; the text says why."""


class Dialler:
    """Knows the way to one URL. `path` and `host` are what requests that go that way must say."""

    def __init__(self, name: str, url: str, patience: float):
        """`name` is the remote's. Who takes nothing of what is sent for `patience` seconds is left."""
        self._name = name
        self._target = urlsplit(url)
        self._patience = patience
        proxy = proxy_for(url)
        self._proxy = None if proxy is None else urlsplit(proxy if "//" in proxy else f"//{proxy}")
        self._tls = _trusting() if self._target.scheme == "https" else None
        self.host = self._target.netloc
        self.path = self._target.path or "/"
        self.credentials: dict[str, str] = {}
        """Headers for the proxy, in each request."""
        if self._proxy is not None and self._tls is None:
            self.path = f"http://{self.host}{self.path}"
            self.credentials = _credentials(self._proxy)

    async def connect(self) -> HttpConnection:
        """Raises OSError, of which ssl.SSLError and socket.gaierror are kinds, or ProxyError."""
        loop = asyncio.get_running_loop()
        first = self._target if self._proxy is None else self._proxy
        if first.scheme == "https" and first is self._proxy:
            raise ProxyError("a proxy that is itself asked by TLS is not supported")
        try:
            connected = await self._socket(first)
        except OSError as error:
            if first is self._proxy:
                raise ProxyError(f"its proxy cannot be reached ({why_not(error)})") from None
            raise
        try:
            if self._tls is None or self._proxy is not None:
                made, connection = await loop.create_connection(HttpConnection, sock=connected)
            else:
                made, connection = await loop.create_connection(
                    HttpConnection, sock=connected, ssl=self._tls, server_hostname=self._target.hostname
                )
        except BaseException:
            connected.close()
            raise
        if self._tls is None or self._proxy is None:
            return connection
        try:
            await self._tunnel(connection)
            inner = HttpConnection()
            secured = await loop.start_tls(made, inner, self._tls, server_hostname=self._target.hostname)
            assert secured is not None
            inner.connection_made(secured)
        except BaseException:
            connection.close()
            raise
        return inner

    @property
    def by_proxy(self) -> bool:
        """Whether a proxy leads to it."""
        return self._proxy is not None

    def warn_of_proxy(self, why: str) -> None:
        """Tells the operator which proxy it was, if any. No client learns that, and nobody its password."""
        if self._proxy is not None:
            host, port = self._proxy.hostname or "", self._proxy.port or _PORTS.get(self._proxy.scheme, 80)
            host = f"[{host}]" if ":" in host else host
            log.warning("%s is asked by the environment's proxy %s:%d: %s", self._name, host, port, why)

    async def _socket(self, to: SplitResult) -> socket.socket:
        loop, port = asyncio.get_running_loop(), to.port or _PORTS.get(to.scheme, 80)
        found = await loop.getaddrinfo(to.hostname, port, type=socket.SOCK_STREAM)
        connected = await aiohappyeyeballs.start_connection(
            found, happy_eyeballs_delay=_NEXT_ADDRESS, interleave=1
        )
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sys.platform == "linux":
            # Else one that was given up stays, with the request's body, until the other side reads that.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * self._patience))
        return connected

    async def _tunnel(self, connection: HttpConnection) -> None:
        """Has the proxy connect to the remote."""
        assert self._proxy is not None
        target = self.host if self._target.port else f"{self.host}:{_PORTS[self._target.scheme]}"
        head = head_of("CONNECT", target, target, _credentials(self._proxy))
        connection.send(head + b"\r\n", b"")
        try:
            await connection.begun()
        except BrokenHttpError:
            raise ProxyError("its proxy sends broken HTTP") from None
        except OSError:
            raise ProxyError("its proxy breaks off") from None
        if connection.status != 200:
            raise ProxyError(f"its proxy refuses, with status {connection.status}")


def why_not(error: OSError) -> str:
    """Why no connection came about; without the address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is not valid"
    if isinstance(error, ssl.SSLError):
        return "no TLS connection came about"
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved"
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return "no connection came about"


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for the URL, if it does."""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)


@functools.cache
def _trusting() -> ssl.SSLContext:
    """Whom the system trusts; reading that takes some ten milliseconds."""
    return ssl.create_default_context()


def _credentials(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"proxy-authorization": "Basic " + base64.b64encode(pair.encode()).decode("ascii")}
