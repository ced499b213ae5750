"""Cores leased between processes: by turns, by all who share them, and given back by whoever dies."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from headrace.backends.cpu import CpuBackend
from headrace.backends.cpu.lease import open_lease
from headrace.models.gguf import GgufFile
from plans import Rows, blocks_for, step_plan, teacher_forced
from talker import Talker

TOKENS = [int(token) for token in np.random.default_rng(3).integers(0, 300, 40)]

HOLDER = """
import sys
from headrace._native import CoreLease

file, cores, count = sys.argv[1:]
lease = CoreLease(file, [int(core) for core in cores.split(",")], int(count))
for line in sys.stdin:
    if line == "begin\\n":
        lease.begin()
    else:
        lease.end()
    print("done", flush=True)
"""

TURNS = """
import os, sys, time
from headrace._native import CoreLease

lease = CoreLease(sys.argv[1], [0, 1], 2)
log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(100):
    lease.begin()
    os.write(log, sys.argv[3].encode())
    time.sleep(0.001)
    lease.end()
print("done", flush=True)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cores"


def begins(holder: Talker) -> None:
    """The process has the cores, though nobody gives them back."""
    holder.say("begin")
    assert holder.hear() == "done"


def waits(holder: Talker) -> None:
    """The process has the cores not at once."""
    holder.say("begin")
    assert holder.silent(0.5)


def ends(holder: Talker) -> None:
    holder.say("end")
    assert holder.hear() == "done"


def stop(holder: Talker) -> None:
    """Returns once it has stopped, which takes the system a moment."""
    holder.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, holder.process.pid, os.WSTOPPED | os.WNOWAIT)


def backend_on(model: Path, file: Path, threads: int = 2) -> CpuBackend:
    lease = open_lease(file, [0, 1], threads)
    assert lease is not None
    backend = CpuBackend(GgufFile(model), threads=threads, lease=lease)
    backend.allocate_cache([8])
    return backend


def test_who_waits_has_the_cores_when_they_are_given_back_or_their_holder_dies(file: Path) -> None:
    with Talker(HOLDER, file, "0,1", 2) as first, Talker(HOLDER, file, "0,1", 2) as second:
        begins(first)
        waits(second)
        ends(first)
        assert second.hear() == "done"
        waits(first)
        second.kill()
        assert first.hear() == "done"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell who is stopped")
@pytest.mark.parametrize("already", [True, False], ids=["already stopped", "stopped while others wait"])
def test_nobody_waits_for_a_process_that_is_stopped(file: Path, already: bool) -> None:
    with ExitStack() as stack:
        holder, *others = (stack.enter_context(Talker(HOLDER, file, "0,1", 2)) for _ in range(3))
        begins(holder)
        if already:
            stop(holder)
        for other in others:
            (begins if already else waits)(other)
        if not already:
            stop(holder)
            assert [other.hear() for other in others] == ["done"] * 2
        for other in others:
            ends(other)
            begins(other)  # nor the next time
            ends(other)
        holder.process.send_signal(signal.SIGCONT)
        ends(holder)
        begins(others[0])
        waits(others[1])  # turns are taken again
        ends(others[0])
        assert others[1].hear() == "done"


def test_a_waiting_process_that_dies_leaves_the_cores_to_others(file: Path) -> None:
    with (
        Talker(HOLDER, file, "0,1", 2) as holder,
        Talker(HOLDER, file, "0,1", 2) as victim,
        Talker(HOLDER, file, "0,1", 2) as other,
    ):
        begins(holder)
        waits(victim)
        waits(other)
        victim.kill()
        ends(holder)
        assert other.hear() == "done"
        ends(other)
        begins(holder)


def test_only_processes_that_share_cores_wait_for_each_other(file: Path) -> None:
    with (
        Talker(HOLDER, file, "0,1", 2) as low,
        Talker(HOLDER, file, "0,1", 2) as low_too,
        Talker(HOLDER, file, "2,3", 2) as high,
        Talker(HOLDER, file, "1,2", 2) as middle,
    ):
        begins(low)
        waits(low_too)
        begins(high)
        waits(middle)


def test_steps_that_leave_cores_free_run_beside_each_other(file: Path) -> None:
    with (
        Talker(HOLDER, file, "0,1,2,5", 2) as first,
        Talker(HOLDER, file, "0,1,2,5", 2) as second,
        Talker(HOLDER, file, "0,1,2,5", 1) as third,
    ):
        begins(first)
        begins(second)
        waits(third)
        ends(second)
        assert third.hear() == "done"


def test_processes_take_turns(file: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    with Talker(TURNS, file, log, "a") as a, Talker(TURNS, file, log, "b") as b:
        for process in (a, b):
            assert process.hear() == "ready"
        for process in (a, b):
            process.say()
        for process in (a, b):
            assert process.hear() == "done"
    turns = log.read_text()
    both = turns[: min(turns.rindex("a"), turns.rindex("b"))].lstrip(turns[0])
    changes = both.count("ab") + both.count("ba")
    assert len(both) > 100
    assert changes > 0.9 * len(both), "only a process that was late to ask again has missed a turn"


@pytest.mark.parametrize("threads", [1, 2])
def test_a_step_waits_for_its_cores_without_pythons_lock(
    threads: int, synthetic_model: Path, file: Path
) -> None:
    backend = backend_on(synthetic_model, file, threads)
    expected = teacher_forced(backend, TOKENS)
    with Talker(HOLDER, file, "0,1", 2) as holder:
        holder.say("begin")
        assert holder.hear(5) == "done", "an idle backend gives its cores up"
        found: list[np.ndarray] = []
        ticket = backend.submit(step_plan(Rows(TOKENS, blocks_for(len(TOKENS)))))
        step = threading.Thread(target=lambda: found.append(backend.collect(ticket).logits))
        step.start()
        time.sleep(0.3)  # which would not return if the lock were held
        assert not found
        holder.kill()
        step.join(10)
    assert np.array_equal(found[0], expected)


def test_a_step_that_nobody_collects_gives_its_cores_back(synthetic_model: Path, file: Path) -> None:
    backend = backend_on(synthetic_model, file)
    backend.submit(step_plan(Rows(TOKENS, blocks_for(len(TOKENS)))))
    with Talker(HOLDER, file, "0,1", 2) as holder:
        holder.say("begin")
        assert holder.hear(10) == "done"


def test_models_that_share_a_lease_compute_in_turn(synthetic_model: Path, file: Path) -> None:
    lease = open_lease(file, [0, 1], 2)
    backends = [CpuBackend(GgufFile(synthetic_model), threads=2, lease=lease) for _ in range(2)]
    for backend in backends:
        backend.allocate_cache([8])
    for _ in range(20):
        first, second = (teacher_forced(backend, TOKENS, chunk=8) for backend in backends)
        assert np.array_equal(first, second)


def test_a_file_that_others_can_write_is_not_used(file: Path, tmp_path: Path) -> None:
    file.touch(mode=0o600)
    file.chmod(0o666)
    assert open_lease(file, [0], 1) is None
    link = tmp_path / "link"
    link.symlink_to(file)
    assert open_lease(link, [0], 1) is None
    assert open_lease(tmp_path / "absent" / "file", [0], 1) is None
