"""The native thread pool where the system is short of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")

ASK = """
import resource, sys
from headrace.backends.cpu import CpuBackend
from headrace.errors import ConfigError
from headrace.models.gguf import GgufFile

weights = GgufFile(sys.argv[1])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))  # no room for the stacks of so many
try:
    CpuBackend(weights, threads=100_000)
except ConfigError as error:
    print("refused:", error)
"""


def test_more_threads_than_the_system_gives_are_an_error_and_not_a_crash(synthetic_model: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run(
        [sys.executable, "-c", ASK, str(synthetic_model)], capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("refused: threads: the system does not give 100000 ")
