"""Run as a program, `ADDRESS MODEL BLOCKS`: fills blocks of its own cache, and prints a digest of each."""

import hashlib
import sys
from pathlib import Path

from headrace.backends.cpu import CpuBackend
from headrace.models.gguf import GgufFile
from headrace.worker.transfer.listener import connect

address, model, count = sys.argv[1:]
backend = CpuBackend(GgufFile(Path(model)), threads=1)
backend.allocate_cache([int(count)])
views = [backend.block_view(0, block) for block in range(int(count))]
received = 0
with connect(address, secret=b"of both ends") as connection:
    while received < len(views):
        frame = connection.receive(timeout=20)
        connection.receive_blocks(views[received : received + len(frame.sizes)])
        received += len(frame.sizes)
    connection.send(b"done")
for view in views:
    print(hashlib.sha256(view).hexdigest())
