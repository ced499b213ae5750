"""A worker process, spoken to in its own messages over a real socket."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec
import pytest
import zmq

from headrace.backends.cache import BLOCK_TOKENS
from headrace.backends.sampling import SamplingParams
from headrace.engine.stats import EngineStats
from headrace.worker.messages import (
    PROTOCOL_VERSION,
    CacheChanged,
    Cancel,
    Drain,
    Drained,
    Events,
    Failed,
    Ping,
    Ready,
    Rejected,
    Stats,
    Submit,
    ToGateway,
    TokenEvent,
    ToWorker,
    decode_to_gateway,
    encode,
)
from headrace.worker.settings import EXIT_LOAD_FAILED, Launch, WorkerSettings

CONTEXT = 400
Message = TypeVar("Message", bound=ToGateway)


class Peer:
    """A worker process and the gateway's end of its socket."""

    def __init__(self, folder: Path, model: Path, **settings: Any) -> None:
        """`settings` are those of the worker that are not the usual ones here."""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        address = f"ipc://{folder}/socket"
        self._socket.bind(address)
        usual = {"backend": "reference", "threads": 1, "max_batch_tokens": 64, "cache_tokens": CONTEXT}
        launch = Launch(
            address=address, identity="w", settings=WorkerSettings(model=str(model), **usual | settings)
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headrace.worker"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(launch) + b"\n")
        self.process.stdin.flush()

    def send(self, *messages: ToWorker) -> None:
        for message in messages:
            self._socket.send_multipart((b"w", encode(message)))

    def receive(self, kind: type[Message]) -> Message:
        while True:
            assert self._socket.poll(20_000), "the worker is silent"
            _, data = self._socket.recv_multipart()
            message = decode_to_gateway(data)
            if not isinstance(message, CacheChanged):  # told unasked
                break
        assert isinstance(message, kind), message
        return message

    def events(self, request_id: str) -> list[TokenEvent]:
        """Events up to the one that ends this request; of other requests too."""
        found: list[TokenEvent] = []
        while not any(event.id == request_id and event.finish_reason for event in found):
            found += self.receive(Events).events
        return found

    def stats(self) -> EngineStats:
        """The next figures; events before them are skipped."""
        self.send(Ping())
        while True:
            message = self.receive(Stats | Events)  # type: ignore[type-var]
            if isinstance(message, Stats):
                return message.engine

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()
        self._socket.close(linger=0)
        self._context.term()


@pytest.fixture
def worker(tmp_path_factory: pytest.TempPathFactory, synthetic_model: Path) -> Iterator[Peer]:
    with Peer(tmp_path_factory.mktemp("w"), synthetic_model) as peer:
        ready = peer.receive(Ready)
        assert ready.version == PROTOCOL_VERSION
        assert ready.pid == peer.process.pid
        assert ready.cache_blocks * ready.block_tokens == CONTEXT == ready.context_length
        yield peer


def request(request_id: str, tokens: int = 8, prompt: int = 20) -> Submit:
    return Submit(
        id=request_id,
        prompt=[(len(request_id) + 7 * i) % 250 for i in range(prompt)],
        max_tokens=tokens,
        sampling=SamplingParams(temperature=0),
        ignore_eos=True,
    )


def test_a_steps_tokens_travel_in_one_message(worker: Peer) -> None:
    worker.send(*(request(name, tokens=12) for name in ("a", "b", "c")))
    sizes = []
    ended = 0
    while ended < 3:
        events = worker.receive(Events).events
        assert len({event.id for event in events}) == len(events)
        ended += sum(event.finish_reason is not None for event in events)
        sizes.append(len(events))
    assert sizes.count(3) >= 10


def test_a_request_that_cannot_run_is_rejected_by_id_and_reason(worker: Peer) -> None:
    worker.send(request("long", prompt=CONTEXT), request("none", prompt=0))
    assert f"context of {CONTEXT}" in worker.receive(Rejected).reason
    assert worker.receive(Rejected).id == "none"
    worker.send(Submit(id="odd", prompt=[10**6], max_tokens=1, sampling=SamplingParams()))
    assert "Token ids" in worker.receive(Rejected).reason
    worker.send(request("zero", tokens=0))
    assert "max_tokens" in worker.receive(Rejected).reason
    worker.send(request("good"))
    assert worker.events("good")


def test_max_tokens_is_cut_to_what_the_context_allows(worker: Peer) -> None:
    worker.send(request("edge", prompt=CONTEXT - 4, tokens=100))
    events = worker.events("edge")
    assert sum(len(event.token_ids) for event in events) == 4
    assert events[-1].finish_reason == "length"


def test_a_cancelled_request_frees_its_blocks_and_is_heard_of_no_more(worker: Peer) -> None:
    worker.send(request("a", tokens=200, prompt=100))
    worker.receive(Events)
    assert worker.stats().blocks_used >= 100 // BLOCK_TOKENS
    worker.send(Cancel("a"))
    stats = worker.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    worker.send(request("b"))
    assert {event.id for event in worker.events("b")} == {"b"}


def test_draining_finishes_what_was_accepted_rejects_the_rest_and_exits(worker: Peer) -> None:
    worker.send(request("accepted", tokens=20), Drain(), request("late"))
    assert worker.receive(Rejected).id == "late"
    assert worker.events("accepted")[-1].finish_reason == "length"
    worker.receive(Drained)
    assert worker.process.wait(10) == 0


def test_an_idle_worker_uses_no_processor_time(worker: Peer) -> None:
    worker.send(request("a"))
    worker.events("a")
    time.sleep(0.5)  # the reference backend's matrix library spins a while after its last product
    before = cpu_ticks(worker.process.pid)
    time.sleep(0.5)
    assert cpu_ticks(worker.process.pid) - before <= 1


def test_a_worker_ends_with_its_standard_input_even_while_it_computes(worker: Peer) -> None:
    worker.send(request("a", tokens=CONTEXT))
    worker.receive(Events)
    assert worker.process.stdin is not None
    worker.process.stdin.close()
    worker.process.stdin = None
    assert worker.process.wait(5) == 1


@pytest.mark.parametrize("break_file", [lambda data: data[:3000], lambda data: b"GARBAGE!" + data])
def test_a_broken_model_is_refused_in_words_without_a_traceback(
    tmp_path: Path, synthetic_model: Path, break_file: Callable[[bytes], bytes]
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(break_file(synthetic_model.read_bytes()))
    with Peer(tmp_path, broken) as peer:
        assert "broken.gguf" in peer.receive(Failed).reason
        assert peer.process.wait(10) == EXIT_LOAD_FAILED
        assert peer.process.stderr is not None
        assert b"Traceback" not in peer.process.stderr.read()


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    assert os.sysconf("SC_CLK_TCK") == 100
    return int(fields[11]) + int(fields[12])
