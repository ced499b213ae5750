"""HTTP to one remote: a pool of connections, and responses as they come. Only this module loads aiohttp."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import urllib.request
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import aiohttp
from aiohttp.connector import AddrInfoType

from headrace.gateway.deadline import Deadline
from headrace.gateway.errors import UnavailableError
from headrace.gateway.remotes.errors import RemoteError, cut_off, garbage, timed_out, unreachable

_KEEP_ALIVE = 60.0
"""Seconds for which an unused connection stays open."""
_SETTLE = 0.1
"""Seconds within which a response ends that has said all: else its connection is not used again."""


class Response:
    """A response whose status has come."""

    def __init__(self, name: str, response: aiohttp.ClientResponse):
        self._name = name
        self._response = response
        self._loop = asyncio.get_running_loop()

    @property
    def status(self) -> int:
        """As in HTTP."""
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        """By name, in any case."""
        return self._response.headers

    async def read(self) -> bytes:
        """What has come next; empty at the end. Raises RemoteError."""
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError):
            raise cut_off(self._name) from None
        except aiohttp.http_exceptions.HttpProcessingError:
            raise garbage(self._name, "broken HTTP") from None

    async def read_all(self, most: int, seconds: float) -> bytes:
        """The body's first bytes, at most so many, or what there was before the time was over."""
        body = b""
        timer = self._loop.call_later(seconds, self.close)
        try:
            while len(body) < most and (chunk := await self.read()):
                body += chunk
        except RemoteError:
            pass
        finally:
            timer.cancel()
        return body[:most]

    def fail(self, error: RemoteError) -> None:
        """Closes the connection; whoever waits in `read` gets the error."""
        self._response.content.set_exception(error)
        self._response.close()

    def close(self) -> None:
        """Closes the connection, unless the response had ended."""
        self._response.close()

    async def settle(self) -> None:
        """Waits for the end, which is to be there by now, so that the connection can be used again."""
        content = self._response.content
        if not content.at_eof():
            timer = self._loop.call_later(_SETTLE, self.close)
            try:
                while await content.readany():
                    pass
            except (aiohttp.ClientError, OSError, aiohttp.http_exceptions.HttpProcessingError):
                pass
            finally:
                timer.cancel()
        self._response.close()


class Connections:
    """The pool. Belongs to the event loop in which it is first used."""

    def __init__(self, name: str, url: str, headers: Mapping[str, str], connect_timeout: float):
        """`headers` may hold the key."""
        self._name = name
        self._url = url
        self._headers = dict(headers)
        self._connect_timeout = connect_timeout
        self._proxy = proxy_for(url)
        self._session: aiohttp.ClientSession | None = None

    async def post(self, body: bytes, seconds: float) -> Response:
        """Sends the body, and waits for a response to begin, at most so long. Raises RemoteError."""
        if self._session is None:
            self._session = self._open()
        try:
            async with Deadline(seconds):
                response = await self._session.post(
                    self._url, data=body, proxy=self._proxy, allow_redirects=False
                )
        # Whatever aiohttp raises may hold the request's headers, and with them the key.
        except UnavailableError:
            raise timed_out(self._name, "did not begin to answer", seconds) from None
        except aiohttp.ClientConnectorCertificateError:
            raise unreachable(self._name, "its certificate is not valid") from None
        except aiohttp.ConnectionTimeoutError:
            raise timed_out(self._name, "could not be reached", self._connect_timeout) from None
        except aiohttp.ClientConnectorError as error:
            raise unreachable(self._name, _reason(error)) from None
        except aiohttp.ClientResponseError:
            raise garbage(self._name, "broken HTTP") from None
        except (aiohttp.ClientError, OSError):
            raise cut_off(self._name) from None
        return Response(self._name, response)

    def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=_KEEP_ALIVE, socket_factory=_socket_of(self._connect_timeout)
            ),
            headers=self._headers,
            skip_auto_headers=("user-agent",),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            # Not bound to a task: how long an answer may take, its run looks after.
            timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_timeout),
        )

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()


def _socket_of(patience: float) -> Callable[[AddrInfoType], socket.socket]:
    """Makes sockets that are closed where the other side takes nothing of what is sent for so many seconds.

    Else a connection that was given up stays, with the request's body, until the other side has read that.
    """

    def make(address: AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        if sys.platform == "linux":
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * patience))
        return made

    return make


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for the URL, if it does."""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def _reason(error: aiohttp.ClientConnectorError) -> str:
    """Without the address, of which the operator may not want clients to know."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name cannot be resolved"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return "no TLS connection came about"
    number = error.os_error.errno
    return os.strerror(number).lower() if number is not None and number > 0 else "no connection came about"
