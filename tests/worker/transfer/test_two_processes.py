"""Blocks that one process computed are in another's cache, bit for bit."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.backends.cache import BLOCK_TOKENS
from headrace.backends.cpu import CpuBackend
from headrace.models.gguf import GgufFile
from headrace.worker.transfer.connection import Connection
from headrace.worker.transfer.listener import Listener
from plans import teacher_forced

RECEIVER = Path(__file__).with_name("receive_blocks.py")
BLOCKS = 12
CHUNKS = ((0, 1), (1, 5), (5, 12))
NEEDS_NIXL = pytest.mark.skipif(
    importlib.util.find_spec("nixl_cu12") is None, reason="needs headrace[nixl]: make test-nixl"
)


@pytest.mark.parametrize(
    "address", ["unix:", "tcp:127.0.0.1:0", pytest.param("nixl:127.0.0.1:0", marks=NEEDS_NIXL)]
)
def test_computed_blocks_arrive_in_another_process(address, synthetic_model):
    backend = CpuBackend(GgufFile(synthetic_model), threads=1)
    backend.allocate_cache([BLOCKS])
    prompt = np.random.default_rng(8).integers(0, backend.vocab_size, BLOCKS * BLOCK_TOKENS)
    teacher_forced(backend, prompt.tolist(), table=list(range(BLOCKS)))
    views = [backend.block_view(0, block) for block in range(BLOCKS)]

    def push(connection: Connection) -> None:
        for first, last in CHUNKS:
            connection.send(b"", views[first:last])
        assert connection.receive(timeout=20).header == b"done"

    listener = Listener(address, push, secret=b"of both ends")
    try:
        command = [sys.executable, RECEIVER, listener.address, synthetic_model, str(BLOCKS)]
        printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    finally:
        listener.close()
    found = [line for line in printed.splitlines() if len(line) == 64]  # NIXL prints on the same output
    assert found == [hashlib.sha256(view).hexdigest() for view in views]
    assert len(set(found)) == BLOCKS
