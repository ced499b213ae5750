"""A server that answers whatever it is sent with bytes written beforehand."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.address import parse_url
from headrace.bench.serve.target import Target


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = chunk(b'data: {"choices":[{"text":"a"}]}\n\n')
_END = chunk(b'data: {"choices":[{"text":"b","finish_reason":"length"}]}\n\ndata: [DONE]\n\n')
WHOLE = HEAD + TOKEN + _END + b"0\r\n\r\n"


class ScriptedServer:
    """Answers the first request with the first answer and so on, the rest with the last. None is no answer;
    a connection is closed after an answer that is not a whole response."""

    def __init__(self, answers: list[bytes | None], pause: float) -> None:
        self._answers = answers
        self._pause = pause
        self.listening = threading.Event()
        self.port = self.connections = self.requests = self.most_at_once = 0
        self._now = 0

    def run(self) -> None:
        asyncio.run(self._run())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)

    async def _run(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self.listening.set()
        await self._stopped.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head.lower())
                await reader.readexactly(int(length[1]) if length else 0)
                answer = self._answers[min(self.requests, len(self._answers) - 1)]
                self.requests += 1
                self._now += 1
                self.most_at_once = max(self.most_at_once, self._now)
                await asyncio.sleep(self._pause if answer is not None else 60)
                writer.write(answer or b"")
                self._now -= 1
                if answer is None or not answer.endswith((b"0\r\n\r\n", b"{}", b"length: 0\r\n\r\n")):
                    break
                if b"connection: close" in answer:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@contextmanager
def scripted(*answers: bytes | None, pause: float = 0.0) -> Iterator[tuple[ScriptedServer, Target]]:
    """A server that gives connection after connection these answers, the last one for ever."""
    server = ScriptedServer(list(answers), pause)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert server.listening.wait(10)
    try:
        yield server, Target(parse_url(f"127.0.0.1:{server.port}"), "m", None)
    finally:
        server.stop()
        thread.join(10)
