"""The worker process: one engine, fed and emptied by messages.

While a step computes, the events of the step before it travel. Stop strings are looked for before the next
step begins, so no token is computed past one.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import threading
from pathlib import Path

import msgspec

from headrace.backends.cache import BLOCK_TOKENS
from headrace.errors import HeadraceError
from headrace.models.vocabulary import Vocabulary
from headrace.worker.generator import Generator
from headrace.worker.handoff.exchange import Exchange
from headrace.worker.loader import LoadedModel, load, open_model
from headrace.worker.messages import (
    PROTOCOL_VERSION,
    CacheChanged,
    Cancel,
    Drain,
    Drained,
    Embed,
    Events,
    ExplainPrefix,
    Failed,
    ListPrefixes,
    Ping,
    PinPrefix,
    Prefill,
    PrefixQuestion,
    Ready,
    Rejected,
    Reset,
    Stats,
    Submit,
    TokenEvent,
    ToWorker,
    UnpinPrefix,
)
from headrace.worker.prefixes import answer
from headrace.worker.settings import EXIT_LOAD_FAILED, Launch
from headrace.worker.transfer.errors import TransferError
from headrace.worker.transport import Channel, Messages

log = logging.getLogger("headrace.worker")


def main() -> int:
    """Reads a `Launch` from standard input and serves until told to drain; the exit status."""
    logging.basicConfig(level=logging.INFO, format="headrace: worker %(process)d: %(message)s")
    # A terminal and a service manager signal the whole group; the gateway decides when a worker drains.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    launch = _read_launch()
    threading.Thread(
        target=_end_with_parent, args=(launch.address,), name="parent-watch", daemon=True
    ).start()
    channel = Channel(launch.address, launch.identity)
    try:
        try:
            model = open_model(launch.settings.model)
            vocabulary = Vocabulary(model.weights.metadata)
            loaded = load(model, launch.settings)
        except HeadraceError as error:
            channel.send(Failed(str(error)))
            return EXIT_LOAD_FAILED
        worker = Worker(loaded, vocabulary, channel, launch.transfer)
        channel.send(ready_message(loaded, worker.transfer))
        del model  # and its metadata, as large as the vocabulary
        # What was made while loading stays: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        worker.run()
        loaded.close()
        return 0
    finally:
        channel.close()


class Worker:
    """The loop between messages and engine."""

    def __init__(
        self,
        loaded: LoadedModel,
        vocabulary: Vocabulary,
        channel: Messages,
        transfer: str = "",
        secret: bytes = b"",
    ) -> None:
        """`transfer` is where blocks are given out to other workers; empty for nowhere."""
        self._loaded = loaded
        self._generator = Generator(loaded, vocabulary)
        self._generator.loans.wake = channel.wake
        self.transfer = self._exchange(transfer, secret) if transfer else ""
        """Where blocks are given out in fact."""
        self._channel = channel
        self._pending: list[TokenEvent] = []
        self._draining = False
        self._cache_told = False

    def run(self) -> None:
        """Returns when told to drain and all that was accepted has ended."""
        while True:
            for message in self._channel.received():
                self._handle(message)
            computing = self._generator.try_begin()
            if self._pending:
                self._channel.send(Events(self._pending))
                self._pending = []
            for answer_or_refusal in self._generator.take_messages():
                self._channel.send(answer_or_refusal)
            self._tell_cache()
            if computing:
                self._pending = self._generator.complete()
                continue
            if self._draining and self._generator.idle:
                self._generator.save()
                self._channel.send(Drained())
                return
            self._channel.wait()

    def _tell_cache(self) -> None:
        anew = not self._cache_told
        stored, evicted = self._loaded.engine.take_cache_events(anew=anew)
        if anew or stored or evicted:
            self._channel.send(CacheChanged(stored, evicted, anew))
            self._cache_told = True

    def _exchange(self, transfer: str, secret: bytes) -> str:
        try:
            exchange = Exchange(self._loaded, self._generator.loans, transfer, secret)
        except TransferError as error:
            log.warning("no blocks are handed to other workers: %s", error)
            return ""
        self._generator.exchange = exchange
        return exchange.outbox.address

    def _handle(self, message: ToWorker) -> None:
        match message:
            case Submit() | Embed() | Prefill():
                self._submit(message)
            case Cancel(id=request_id):
                self._generator.cancel(request_id)
                self._pending = [event for event in self._pending if event.id != request_id]
            case Drain():
                self._draining = True
            case Reset():
                self._generator.cancel_all()
                self._loaded.engine.cache.pins.clear()
                self._pending = []
                self._cache_told = False
            case Ping():
                self._channel.send(Stats(self._generator.stats()))
            case ExplainPrefix() | ListPrefixes() | PinPrefix() | UnpinPrefix():
                self._answer(message)

    def _submit(self, message: Submit | Embed | Prefill) -> None:
        if self._draining:
            self._channel.send(Rejected(message.id, "the worker is shutting down"))
            return
        try:
            match message:
                case Submit():
                    self._generator.submit(message)
                case Prefill():
                    self._generator.prefill(message)
                case Embed():
                    self._generator.embed(message)
        except HeadraceError as error:
            self._channel.send(Rejected(message.id, str(error)))

    def _answer(self, question: PrefixQuestion) -> None:
        try:
            self._channel.send(answer(self._loaded, question))
        except HeadraceError as error:
            self._channel.send(Rejected(question.id, str(error)))


def _read_launch() -> Launch:
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        launch = msgspec.json.decode(stdin.readline(), type=Launch)
    if launch.version != PROTOCOL_VERSION:
        raise SystemExit(f"this worker speaks version {PROTOCOL_VERSION}, its gateway {launch.version}")
    return launch


def _end_with_parent(address: str) -> None:
    """Standard input ends when the process that holds its other end is gone, however it went."""
    while os.read(0, 4096):
        pass
    log.info("the gateway is gone")
    if address.startswith("ipc://"):
        socket = Path(address.removeprefix("ipc://"))
        with contextlib.suppress(OSError):  # what a gateway that was killed could not tidy away itself
            socket.unlink()
            socket.parent.rmdir()
    os._exit(1)


def ready_message(loaded: LoadedModel, transfer: str = "") -> Ready:
    return Ready(
        version=PROTOCOL_VERSION,
        pid=os.getpid(),
        model=loaded.name,
        fingerprint=loaded.fingerprint,
        context_length=loaded.context_length,
        cache_blocks=loaded.cache_blocks,
        block_tokens=BLOCK_TOKENS,
        cache_bytes=loaded.cache_bytes,
        transfer=transfer,
    )
