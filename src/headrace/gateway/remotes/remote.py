"""A model that is served elsewhere: how to ask it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Raw

from headrace.gateway.embeddings import EmbeddingsRequest, split_inputs
from headrace.gateway.openai.answers import Usage
from headrace.gateway.openai.requests import ChatRequest, CompletionRequest
from headrace.gateway.remotes.abilities import asks_logprobs
from headrace.gateway.remotes.apis import API_OF
from headrace.gateway.remotes.embeddings import (
    embeddings_body,
    most_bytes,
    read_embeddings,
)
from headrace.gateway.remotes.errors import RemoteError, chats_only, garbage, no_embeddings, not_expressible
from headrace.gateway.remotes.logprobs import Vocabulary
from headrace.gateway.remotes.outgoing import There, outgoing
from headrace.gateway.remotes.parts import Parts
from headrace.gateway.remotes.refusals import MAX_ERROR_BYTES, Told, by_status, in_stream
from headrace.gateway.remotes.run import RemoteRun
from headrace.gateway.remotes.secret import Secret
from headrace.gateway.remotes.tally import Asked, Tally
from headrace.routing.tables import ModelTable

if TYPE_CHECKING:
    from headrace.gateway.remotes.connections import Response

_LEFT_OUT = ("stream_options", "max_completion_tokens")
"""Words that some servers refuse, and that a request can do without."""
_ERROR_SECONDS = 2.0
"""For the body of a refusal."""
_NO_SUCH_PATH = (404, 405)
"""What servers say that do not know a path, and what OpenAI says of text completions of a model for chats."""


class Remote:
    """One remote model, and the connections to it. Belongs to the event loop in which it is first asked."""

    def __init__(self, name: str, table: ModelTable, key: str | None):
        """`key` is sent to the table's URL and told nowhere. Raises ConfigError if no header can hold it."""
        # A server without remotes does not pay for loading an HTTP client.
        from headrace.gateway.remotes.connections import Connections

        assert table.url is not None
        self.name = name
        self._table = table
        self._there = There(table.upstream or name, table.max_output)
        self._secret = Secret(name, key)
        self._api = api = API_OF[table.api]
        patience = min(table.connect_timeout, table.first_token_timeout)
        self._connections = {
            path: Connections(name, api.url(table.url, path), api.headers(self._secret, path), patience)
            for path in api.paths
        }
        """By path; nothing is connected before it is asked for."""

    def __repr__(self) -> str:
        return f"Remote({self.name!r})"

    def check(self, request: ChatRequest | CompletionRequest) -> None:
        """Raises RemoteError where its API has no words for what is asked."""
        words = self._api.words(self.name, request)
        if asks_logprobs(request) and "logprobs" not in (self._table.abilities or ()):
            raise not_expressible(self.name, "logprobs", "cannot be asked for this")
        words.check(self.name, request)

    @asynccontextmanager
    async def ask(self, answer_id: str, request: ChatRequest | CompletionRequest) -> AsyncIterator[RemoteRun]:
        """The answer, for which the remote has been asked. Leaving the block early cancels it.

        Raises RemoteError, here or while the answer is read; RequestError for what is wrong with the request.
        """
        self.check(request)
        asked_at = asyncio.get_running_loop().time()
        response, asked = await self._send(request)
        # All that does not depend on the response is done while the remote computes it.
        vocabulary = Vocabulary() if asks_logprobs(request) else None
        parts = Parts(self.name, answer_id, asked.choices, asked.most_tokens, vocabulary)
        stream = self._api.stream(self.name, parts, self._secret)
        check = partial(self._check_stream, request)
        run = RemoteRun(self.name, response, check, stream, parts, Tally(asked, parts), self._table, asked_at)
        orderly = False
        try:
            yield run
            orderly = True
        finally:
            await run.leave(orderly)

    async def _send(self, request: ChatRequest | CompletionRequest) -> tuple[Response, Asked]:
        table = self._table
        words = self._api.words(self.name, request)
        body = words.body(self._there, request)
        out = outgoing(body, request, table.max_output, table.context_length)
        return await self._connections[words.path].send(out.body), out.asked

    async def _check_stream(
        self, request: ChatRequest | CompletionRequest, response: Response
    ) -> Response | None:
        """Raises RemoteError where the response is no stream; None where it is one.

        Where the remote has refused but a word, which is learnt, it is asked again: that response, then.
        """
        try:
            if response.status in _NO_SUCH_PATH and not isinstance(request, ChatRequest):
                raise chats_only(self.name)
            await self._check(response)
            return None
        except RemoteError as error:
            if not (isinstance(request, ChatRequest) and self._learns_of(error)):
                raise
        response.close()
        again, _ = await self._send(request)
        return again

    def check_embeds(self) -> None:
        """Raises RemoteError where its API has no embeddings."""
        if self._api.embeddings is None:
            raise no_embeddings(self.name)

    async def embed(self, request: EmbeddingsRequest) -> tuple[Sequence[Raw], Usage]:
        """The vectors of the request's inputs, as JSON, and their tokens. Raises RemoteError."""
        path, table, inputs = self._api.embeddings, self._table, len(split_inputs(request))
        if path is None:
            raise no_embeddings(self.name)
        body = embeddings_body(self._there, request)
        post = self._connections[path].post
        try:
            response = await post(body, table.first_token_timeout)
        except RemoteError as error:
            if error.code != "remote_cut_off":  # as by a server that is just being replaced
                raise
            response = await post(body, table.first_token_timeout)
        try:
            if response.status in _NO_SUCH_PATH:
                raise no_embeddings(self.name)
            await self._check(response, "application/json")
            answer = await response.whole(most_bytes(inputs), table.first_token_timeout)
        finally:
            response.close()
        vectors, told = read_embeddings(self.name, answer, inputs, request)
        context = None if table.context_length is None else table.context_length * inputs
        tally = Tally(Asked(len(body), 0, 1, 1, context), Parts(self.name, "", 1, 1))
        tally.reported = told
        return vectors, tally.usage()

    def _learns_of(self, error: RemoteError) -> bool:
        """Whether the refusal is of a word that can be left out or said otherwise: it is tried again."""
        known = self._there
        if (error.code, error.field) == ("unsupported_parameter", "max_tokens"):
            self._there = replace(known, newer_limit=True)
        elif error.elsewhere and not error.broken:
            told = frozenset(word for word in _LEFT_OUT if word in str(error))
            self._there = replace(known, forbids=known.forbids | told)
        return self._there != known

    async def _check(self, response: Response, expected: str = "text/event-stream") -> None:
        """Raises RemoteError where the response is nothing of the kind."""
        if response.status != 200:
            body = await response.read_all(MAX_ERROR_BYTES, _ERROR_SECONDS)
            told = Told.in_body(body).scrubbed(self._secret)
            raise by_status(self.name, response.status, response.headers, told)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise garbage(self.name, "a compressed answer, though none was asked for")
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != expected:
            if kind == "application/json":
                told = Told.in_body(await response.read_all(MAX_ERROR_BYTES, _ERROR_SECONDS))
                if told.message:
                    raise in_stream(self.name, told.scrubbed(self._secret))
            raise garbage(self.name, f"something else than {expected}")

    async def close(self) -> None:
        """Closes the connections."""
        for connections in self._connections.values():
            await connections.close()
