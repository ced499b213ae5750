"""A remote model played by a script on a real socket, so that it can misbehave in every way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

Script = Callable[["Exchange"], Awaitable[None]]
"""Answers one request."""

WORDS = ("Water ", "flows ", "downhill.")


class Exchange:
    """One request, and the means to answer it."""

    def __init__(
        self, path: str, headers: Mapping[str, str], raw: bytes, writer: asyncio.StreamWriter, number: int
    ) -> None:
        self.path = path
        self.headers = headers
        """Names in lower case."""
        self.raw = raw
        self.number = number
        """Counted from 0 within the upstream."""
        self.writer = writer

    @property
    def body(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.raw)
        return decoded

    async def send(self, data: bytes | str) -> None:
        """Bytes as they are."""
        self.writer.write(data if isinstance(data, bytes) else data.encode())
        await self.writer.drain()

    async def answer(self, status: int, body: bytes | str | Mapping[str, Any] = b"", **headers: str) -> None:
        """A whole response; underscores in headers' names are hyphens."""
        if isinstance(body, Mapping):
            body = json.dumps(body)
        data = body if isinstance(body, bytes) else body.encode()
        told = {"content-type": "application/json", "content-length": str(len(data))}
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        await self.send(head(status, told) + data)

    async def begin(self, **headers: str) -> None:
        """The head of a chunked stream of events."""
        told = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        await self.send(head(200, told | {k.replace("_", "-"): v for k, v in headers.items()}))

    async def piece(self, data: bytes | str) -> None:
        """A chunk of the body with these bytes."""
        data = data if isinstance(data, bytes) else data.encode()
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, value: object) -> None:
        """A server-sent event; of a mapping its JSON, under its type where it has one."""
        await self.piece(event(value))

    async def end(self) -> None:
        """The end of a chunked body."""
        await self.send(b"0\r\n\r\n")

    async def cut(self) -> None:
        """Closes the connection where it is."""
        self.writer.close()

    async def until_left(self) -> None:
        """Waits until the other side has closed the connection."""
        while not self.writer.transport.is_closing():
            await asyncio.sleep(0.005)


class Upstream:
    """A server whose requests are answered by `script`, which may be changed at any time."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.exchanges: list[Exchange] = []
        """Of all requests that came whole, in order."""
        self.connections = 0
        """Ever made."""
        self.open = 0
        """Open now."""
        self.left = 0
        """Connections that the other side closed while a request was being answered."""
        self.url = ""
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def openai(self) -> str:
        """The URL for a table whose API is OpenAI's."""
        return f"{self.url}/v1"

    @asynccontextmanager
    async def serving(
        self, certificate: Path | None = None, key: Path | None = None
    ) -> AsyncIterator[Upstream]:
        """Listens on a free port for as long as the block runs; with a certificate and its key, by TLS."""
        tls = None
        if certificate is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certificate, key)
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=tls)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while not writer.is_closing():
                    await self._exchange(reader, writer)
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        exchange = Exchange(lines[0].split()[1], headers, raw, writer, len(self.exchanges))
        self.exchanges.append(exchange)
        answering = asyncio.ensure_future(self.script(exchange))
        leaving = asyncio.ensure_future(reader.read(1))  # nothing comes before the answer but the end
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and leaving.done():
                self.left += 1
                writer.close()
                return
            await answering
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """The head of a response."""
    lines = [f"HTTP/1.1 {status} Told", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def event(value: object) -> bytes:
    """A server-sent event."""
    if isinstance(value, Mapping):
        name = f"event: {value['type']}\n" if isinstance(value.get("type"), str) else ""
        return f"{name}data: {json.dumps(value)}\n\n".encode()
    return f"data: {value}\n\n".encode()


def chunk(index: int = 0, reason: str | None = None, **delta: Any) -> dict[str, Any]:
    """A chunk of OpenAI's."""
    choice = {"index": index, "delta": delta, "finish_reason": reason}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]}


def openai_usage(prompt: Any, completion: Any, cached: Any = 0) -> dict[str, Any]:
    """The chunk with the usage."""
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return {"id": "chatcmpl-1", "choices": [], "usage": usage}


def openai_answer(
    words: Sequence[str] = WORDS, reason: str = "stop", usage: tuple[Any, Any] | None = (9, 3)
) -> Script:
    """Streams the words as OpenAI's API does."""

    async def script(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.event(chunk(role="assistant", content=""))
        for word in words:
            await exchange.event(chunk(content=word))
        await exchange.event(chunk(reason=reason))
        if usage is not None:
            await exchange.event(openai_usage(*usage))
        await exchange.event("[DONE]")
        await exchange.end()

    return script


def refusing(status: int, message: str = "", **headers: str) -> Script:
    """Answers every request with an error, as both APIs word it."""

    async def script(exchange: Exchange) -> None:
        await exchange.answer(
            status, {"error": {"message": message, "type": "error", "code": None}}, **headers
        )

    return script


def in_turn(*scripts: Script) -> Script:
    """The first request gets the first, and so on; all further ones get the last."""

    async def script(exchange: Exchange) -> None:
        await scripts[min(exchange.number, len(scripts) - 1)](exchange)

    return script


async def stalling(exchange: Exchange) -> None:
    """Takes the request and says nothing."""
    await exchange.until_left()


def anthropic_answer(
    words: Sequence[str] = WORDS, stop_reason: str = "end_turn", usage: tuple[Any, Any] = (9, 3)
) -> Script:
    """Streams the words as Anthropic's API does."""
    blocks = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *(text_delta(word) for word in words),
        {"type": "content_block_stop", "index": 0},
    ]
    return anthropic_events(blocks, {"stop_reason": stop_reason, "stop_sequence": None}, usage)


def anthropic_events(
    blocks: Sequence[Mapping[str, Any]], stopped: Mapping[str, Any], usage: tuple[Any, Any] = (9, 3)
) -> Script:
    """Streams a message with these events about its blocks."""
    prompt, completion = usage
    begun = {"id": "msg_1", "usage": {"input_tokens": prompt, "output_tokens": 1}}

    async def script(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.event({"type": "message_start", "message": begun})
        for block in blocks:
            await exchange.event(block)
        await exchange.event(
            {"type": "message_delta", "delta": stopped, "usage": {"output_tokens": completion}}
        )
        await exchange.event({"type": "message_stop"})
        await exchange.end()

    return script


def text_delta(text: str, index: int = 0) -> dict[str, Any]:
    """A piece of a block of text."""
    delta = {"type": "text_delta", "text": text}
    return {"type": "content_block_delta", "index": index, "delta": delta}
