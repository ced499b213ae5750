"""Who answers the requests of a batch: a worker of its own, or a server that runs already."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import msgspec

from headrace.address import Address
from headrace.batch.run import Ask
from headrace.errors import HeadraceError, RequestError
from headrace.gateway.admission import Admission
from headrace.gateway.batches.endpoints import batch_endpoints
from headrace.gateway.batches.lines import MAX_LINE_BYTES, RequestLine
from headrace.gateway.batches.local_call import call
from headrace.gateway.catalogue import Catalogue
from headrace.gateway.loading import ModelLoader
from headrace.gateway.state import Gateway
from headrace.models.local import LocalFile
from headrace.worker.settings import WorkerSettings

_ATTEMPTS = 5
"""At a request that fails for no fault of its own, as far as one can know."""
_LONGEST_PAUSE_SECONDS = 30.0
_TRY_AGAIN = (500, 502, 503, 504)


@contextlib.asynccontextmanager
async def own_worker(file: LocalFile, settings: WorkerSettings) -> AsyncIterator[Ask]:
    """A worker for as long as the block runs. Raises HeadraceError where the model cannot be loaded."""
    async with contextlib.AsyncExitStack() as stack:
        catalogue = Catalogue(ModelLoader(settings, budgeted=False), [file])
        try:
            await stack.enter_async_context(catalogue)
        except RequestError as error:
            raise error.__cause__ or error from None
        gateway = Gateway(catalogue.loaded_models, Admission(2**31), 2 * MAX_LINE_BYTES)
        gateway.catalogue = catalogue
        endpoints = batch_endpoints(gateway)

        async def ask(request: RequestLine) -> tuple[int, bytes]:
            body = msgspec.json.encode(request.body)
            endpoint = endpoints.get(request.url)
            if endpoint is None:
                return 404, b'{"error":{"message":"there is no such endpoint","code":"not_found"}}'
            return await call(endpoint, request.url, body, {})

        yield lambda request: _patiently(ask, request)


@contextlib.asynccontextmanager
async def server(address: Address, connections: int, timeout: float) -> AsyncIterator[Ask]:
    """A server; it is asked over so many connections, and `timeout` is the seconds an answer may take."""
    posts = _Posts(address, timeout)
    pool = ThreadPoolExecutor(connections, "ask")

    async def ask(request: RequestLine) -> tuple[int, bytes]:
        body = msgspec.json.encode(request.body)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, posts.post, request.url, body)

    try:
        yield lambda request: _patiently(ask, request)
    finally:
        posts.abort()
        pool.shutdown(wait=True, cancel_futures=True)


async def _patiently(ask: Ask, request: RequestLine) -> tuple[int, bytes]:
    """Asks again where that may help: for ever where there were too many requests.

    Raises HeadraceError where nobody answers.
    """
    pause = 0.5
    failures = 0
    while True:
        try:
            status, body = await ask(request)
        except (OSError, http.client.HTTPException) as error:
            failures += 1
            if failures >= _ATTEMPTS:
                raise HeadraceError(
                    f"the server does not answer ({error}); run the same command again to go on"
                ) from None
        else:
            failures += status in _TRY_AGAIN
            if status != 429 and (status not in _TRY_AGAIN or failures >= _ATTEMPTS):
                return status, body
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


class _Posts:
    """Posts from many threads, each on a connection of its own."""

    def __init__(self, address: Address, timeout: float):
        self._address = address
        self._timeout = timeout
        self._of_thread = threading.local()
        self._open: set[http.client.HTTPConnection] = set()

    def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Raises OSError or HTTPException where there is no answer."""
        connection = getattr(self._of_thread, "connection", None)
        if connection is None:
            connection = self._of_thread.connection = self._address.connection(self._timeout)
            self._open.add(connection)
        headers = self._address.headers | {"Content-Type": "application/json"}
        try:
            connection.request("POST", self._address.base + path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            connection.close()  # it opens anew with the next request
            raise

    def abort(self) -> None:
        """Ends what is under way, with an error for who waits for it."""
        for connection in list(self._open):
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
