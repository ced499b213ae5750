"""Works a file of requests off, many at a time, and goes on where an earlier run ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from headrace.errors import ConfigError
from headrace.gateway.batches.lines import (
    BadLineError,
    Done,
    RequestLine,
    answered,
    not_answered,
    parse_request,
    read_lines,
    read_results,
)

Ask = Callable[[RequestLine], Awaitable[tuple[int, bytes]]]
"""Status and body of a request's answer."""


@dataclass(slots=True)
class Summary:
    """What a run has done so far."""

    total: int
    """Requests in the file."""
    there: int
    """That had their result before."""
    answered: int = 0
    failed: int = 0
    failed_before: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    began: float = 0.0
    """On time.monotonic's clock."""

    def line(self) -> str:
        """For people."""
        seconds = max(1e-9, time.monotonic() - self.began)
        before = f", {self.there:,} were there already" if self.there else ""
        return (
            f"{self.answered:,} requests answered, {self.failed:,} failed{before}; "
            f"{self.prompt_tokens:,} prompt and {self.output_tokens:,} output tokens in {seconds:.1f} s "
            f"({self.output_tokens / seconds:,.1f} output tokens/s)"
        )


class _Usage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    """In the words of /v1/responses, as the next."""
    output_tokens: int = 0


class _Answer(Struct):
    usage: _Usage | None = None


_usage = msgspec.json.Decoder(_Answer).decode


class Run:
    """One run from a file of requests to a file of results, to which it appends."""

    def __init__(self, source: Path, target: Path):
        """Counts what there is to do. Raises ConfigError where a file cannot be read or is no such file."""
        self._source = source
        self._target = target
        self._done = Done(set(), set())
        self._ids: set[str] = set()
        try:
            if target.exists() and source.samefile(target):
                raise ConfigError(f"{target} is the file of requests; name another for the results")
            read_results(target, self._done)
            total = sum(1 for _ in read_lines(source))
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be used: {error.strerror or error}") from None
        except BadLineError as error:
            raise ConfigError(f"{error}; name another file for the results") from None
        there = len(self._done.ids) + len(self._done.lines)
        self.summary = Summary(total, there, failed_before=self._done.failed)

    @property
    def complete(self) -> bool:
        """Whether every request has its result."""
        return self.summary.there >= self.summary.total

    async def work(self, ask: Ask, window: int, progress: Callable[[Summary], None]) -> None:
        """Asks what has no result yet, `window` requests at a time; what `ask` raises ends the run."""
        self.summary.began = time.monotonic()
        asking: set[asyncio.Task[None]] = set()
        with self._target.open("ab") as results:
            try:
                for request in self._to_ask(results, progress):
                    asking.add(asyncio.create_task(self._one(ask, request, results, progress)))
                    if len(asking) >= window:
                        asking = await _some(asking)
                while asking:
                    asking = await _some(asking)
            finally:
                for task in asking:
                    task.cancel()
                await asyncio.gather(*asking, return_exceptions=True)

    def _to_ask(self, results: BinaryIO, progress: Callable[[Summary], None]) -> Iterator[RequestLine]:
        """The requests without a result; a line that is none gets its result at once."""
        for number, line in read_lines(self._source):
            if number in self._done.lines:
                continue
            try:
                request = parse_request(line)
                if request.custom_id in self._ids:
                    told = f"custom_id: {request.custom_id!r:.100} occurs twice"
                    raise BadLineError("duplicate_custom_id", told)
            except BadLineError as error:
                _write(results, not_answered(None, error.code, f"line {number}: {error}", number))
                self.summary.failed += 1
                progress(self.summary)
                continue
            self._ids.add(request.custom_id)
            if request.custom_id not in self._done.ids:
                yield request

    async def _one(
        self, ask: Ask, request: RequestLine, results: BinaryIO, progress: Callable[[Summary], None]
    ) -> None:
        status, body = await ask(request)
        _write(results, answered(request, status, body))
        if status >= 400:
            self.summary.failed += 1
        else:
            self.summary.answered += 1
            self._count(body)
        progress(self.summary)

    def _count(self, body: bytes) -> None:
        try:
            usage = _usage(body).usage or _Usage()
        except msgspec.DecodeError:
            return
        self.summary.prompt_tokens += usage.prompt_tokens + usage.input_tokens
        self.summary.output_tokens += usage.completion_tokens + usage.output_tokens


async def _some(tasks: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Waits until one is done and gives the others; raises what it raised."""
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return rest


def _write(results: BinaryIO, line: bytes) -> None:
    results.write(line)
    results.flush()
