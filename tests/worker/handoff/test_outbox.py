"""Prompts computed for workers that end meanwhile: nothing is kept for who is gone."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from unittest.mock import ANY

import pytest

from headrace.engine.transfers import Progress
from headrace.models.vocabulary import Vocabulary
from headrace.worker.generator import Generator
from headrace.worker.handoff.exchange import Exchange
from headrace.worker.handoff.outbox import Outbox, Outgoing
from headrace.worker.handoff.words import Ended, Wanted, decode_told, encode
from headrace.worker.loader import load, open_model
from headrace.worker.messages import Prefill
from headrace.worker.settings import WorkerSettings
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


def kept() -> int:
    """Exports that somebody holds."""
    gc.collect()
    return sum(type(each) is Outgoing for each in gc.get_objects())


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


def test_nothing_is_left_of_a_prompt_that_is_cancelled_before_it_has_blocks(synthetic_model: Path) -> None:
    settings, before = WorkerSettings(model=str(synthetic_model), threads=1, cache_tokens=256), kept()
    opened = open_model(settings.model)
    with closing(load(opened, settings)) as loaded:
        generator = Generator(loaded, Vocabulary(opened.weights.metadata))
        with closing(Exchange(loaded, generator.loans, "unix:")) as generator.exchange:
            for number in range(3):
                generator.prefill(Prefill(f"prompt {number}", [1, 2, 3]))
                generator.cancel(f"prompt {number}")
            assert kept() == before + 3
            assert not generator.begin()
            assert kept() == before


def test_nor_when_its_worker_has_gone_before(outbox: Outbox, ended) -> None:
    outgoing = outbox.outgoing("prompt")
    worker = wanted(outbox)
    wait_for(lambda: outgoing.link is not None)
    worker.close()
    wait_for(lambda: outgoing.stopped)
    outgoing.forsake()
    assert ended.get(timeout=5) == "prompt"


def test_who_waits_for_a_prompt_that_is_cancelled_is_told_so(outbox: Outbox, ended) -> None:
    outgoing = outbox.outgoing("prompt")
    with wanted(outbox) as worker:
        wait_for(lambda: outgoing.link is not None)
        outgoing.forsake()
        assert decode_told(worker.receive(5).header) == Ended("prompt", ANY)
    assert ended.get(timeout=5) == "prompt"
