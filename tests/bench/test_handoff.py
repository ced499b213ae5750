"""The handoff's measurement: two real processes, and what their speed is compared with."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from headrace.bench.handoff import run

SMALL = {"tokens": 64, "block_bytes": 64 << 10, "repeats": 2}


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_blocks_pass_between_two_processes(transport):
    measured = run(transport, **SMALL)
    assert measured["blocks"] == 4
    assert measured["gb_per_s"] > 0 and measured["memcpy_gb_per_s"] > 0 and measured["of_memcpy"] > 0


@pytest.mark.oracle  # several seconds
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("iperf3") is None,
    reason="needs root, ip and iperf3",
)
def test_between_namespaces_it_is_compared_with_iperf3_and_leaves_none_behind():
    assert run("tcp", namespaces=True, **SMALL)["of_iperf3"] > 0
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert "headrace-" not in left
