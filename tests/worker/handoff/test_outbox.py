"""Prompts computed for workers that end meanwhile: nothing is kept for who is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from headrace.engine.transfers import Progress
from headrace.worker.handoff.outbox import Outbox
from headrace.worker.handoff.words import Wanted, encode
from headrace.worker.transfer.connection import Connection
from headrace.worker.transfer.listener import connect

COMPUTED = Progress("prompt", 16, ((0,),), True)


@pytest.fixture
def ended() -> SimpleQueue[str]:
    """The exports that read no more."""
    return SimpleQueue()


@pytest.fixture
def outbox(ended: SimpleQueue[str]) -> Iterator[Outbox]:
    made = Outbox("unix:", lambda group, block: memoryview(bytes(64)), "same", ended.put)
    yield made
    made.close()


def wanted(outbox: Outbox) -> Connection:
    """A worker that has asked for the prompt."""
    worker = connect(outbox.address)
    worker.send(encode(Wanted("prompt", 0, "same")))
    return worker


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.002)


def test_a_prompt_is_given_back_when_it_is_computed_after_its_worker_has_gone(outbox: Outbox, ended) -> None:
    outgoing = outbox.outgoing("prompt")
    worker = wanted(outbox)
    wait_for(lambda: outgoing.link is not None)
    worker.close()
    wait_for(lambda: outgoing.stopped)
    outgoing.advance(COMPUTED)
    assert ended.get(timeout=5) == "prompt"


def test_a_prompt_is_given_back_when_its_worker_goes_after_it_was_computed(outbox: Outbox, ended) -> None:
    outgoing = outbox.outgoing("prompt")
    worker = wanted(outbox)
    wait_for(lambda: outgoing.link is not None)
    outgoing.advance(COMPUTED._replace(complete=False))
    worker.close()
    assert ended.get(timeout=5) == "prompt"
