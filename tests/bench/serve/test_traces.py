"""Reading recorded traffic."""

from __future__ import annotations

import gzip
from itertools import islice, pairwise
from pathlib import Path

import pytest

from headrace.bench.serve.traces import TracedRequest, read_trace
from headrace.errors import ConfigError

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:59:59.9000000,374,44\n"
    "2023-11-16 19:00:01.4,0,109\n"
)
MOONCAKE = (
    '{"timestamp": 500, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
    '{"timestamp": 2500, "input_length": 512, "output_length": 6, "hash_ids": [0]}\n'
)


def write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["azure.csv", "azure.csv.gz"])
def test_azure_times_are_seconds_since_the_first_request(tmp_path, name):
    first, second = read_trace(write(tmp_path / name, AZURE))
    assert first == TracedRequest(0.0, 374, 44)
    assert second.arrival == pytest.approx(1.5)
    assert (second.input_len, second.output_len) == (1, 109)


@pytest.mark.parametrize("name", ["mooncake.jsonl", "mooncake.jsonl.gz"])
def test_mooncake_blocks_are_kept(tmp_path, name):
    requests = list(read_trace(write(tmp_path / name, MOONCAKE)))
    assert requests == [TracedRequest(0.0, 600, 5, (0, 1)), TracedRequest(2.0, 512, 6, (0,))]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("trace.txt", AZURE, "neither .csv, .jsonl"),
        ("trace.csv", AZURE + "2023-11-16 19:00:02,many,1\n", "after 2 requests"),
        ("trace.csv", "when,what\n1,2\n", "TIMESTAMP"),
        ("trace.jsonl", MOONCAKE + '{"timestamp": 1}\n', "after 2 requests"),
        ("trace.jsonl", MOONCAKE.replace("[0, 1]", "[0]"), "600 tokens"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_place(tmp_path, name, text, said):
    with pytest.raises(ConfigError, match=said):
        list(read_trace(write(tmp_path / name, text)))


def test_a_broken_archive_is_refused(tmp_path):
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(AZURE.encode())[:-20])
    with pytest.raises(ConfigError, match="--trace"):
        list(read_trace(path))


@pytest.mark.parametrize(
    ("name", "blocks"), [("azure_2023_conv.csv.gz", False), ("mooncake_conversation.jsonl.gz", True)]
)
def test_the_published_traces_are_read(traces, name, blocks):
    requests = list(islice(read_trace(traces / name), 1000))
    assert len(requests) == 1000
    assert all(a.arrival <= b.arrival for a, b in pairwise(requests))
    assert all(bool(request.blocks) == blocks for request in requests)
