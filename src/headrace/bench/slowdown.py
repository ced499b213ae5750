"""How much longer steps take while other workers of the host compute too: they share its cores and memory."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

import numpy as np

from headrace.bench.timed_steps import Samples, timed_steps
from headrace.fleet.step_time import StepTime
from headrace.worker.loader import load, open_model
from headrace.worker.settings import WorkerSettings

BATCHES = ((2, 200), (4, 100), (1, 300))
"""As `timed_steps` takes them, again and again: about as many seconds of prefill as of decode."""
_SECONDS = 1.5
_ROUNDS = 2


def measure(settings: WorkerSettings, alone: StepTime, workers: int) -> list[float]:
    """How many times as long as alone steps take while 1, 2 ... `workers` compute at once."""
    with _started(settings, workers) as pipes:
        rounds = [
            [_slower(_computing(pipes[:count]), alone) for count in range(1, workers + 1)]
            for _ in range(_ROUNDS)
        ]
    slower = np.mean(rounds, axis=0) / np.mean(rounds, axis=0)[0]
    return [round(float(times), 3) for times in slower]


def _slower(samples: Samples, alone: StepTime) -> float:
    rows, context, seconds = samples.T
    return float(seconds.sum() / (alone.base + alone.row * rows + alone.context * context).sum())


def _computing(pipes: Sequence[Connection]) -> Samples:
    """The steps of these workers, all at once, while the others do nothing."""
    until = time.monotonic() + _SECONDS
    for pipe in pipes:
        pipe.send(until)
    return np.concatenate([pipe.recv() for pipe in pipes])


@contextmanager
def _started(settings: WorkerSettings, workers: int) -> Iterator[list[Connection]]:
    """A pipe to each of so many processes, in which models are loaded."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    try:
        for _ in range(workers):
            mine, theirs = context.Pipe()
            processes.append(context.Process(target=_work, args=(theirs, settings), daemon=True))
            processes[-1].start()
            theirs.close()
            pipes.append(mine)
        for pipe in pipes:
            pipe.recv()
        yield pipes
    finally:
        for pipe in pipes:
            pipe.close()  # the process ends then
        for process in processes:
            process.join()


def _work(pipe: Connection, settings: WorkerSettings) -> None:
    """What each process does: computes until the time it is told, and hands over its steps."""
    loaded = load(open_model(settings.model), settings)
    try:
        timed_steps(loaded.engine, (1, 64))
        pipe.send(None)
        while True:
            until, samples = pipe.recv(), []
            while time.monotonic() < until:
                samples += [timed_steps(loaded.engine, batch, until) for batch in BATCHES]
            pipe.send(np.concatenate(samples))
    except EOFError:
        pass
    finally:
        loaded.close()
