"""What a worker is told at its start."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.errors import ConfigError
from headrace.worker.messages import PROTOCOL_VERSION

EXIT_LOAD_FAILED = 3
"""Exit status of a worker whose last message was `Failed`."""


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The model and how to run it. Raises ConfigError for a number that makes no sense."""

    model: str
    """A name of the registry, or the path of a GGUF file."""
    backend: Literal["cpu", "reference"] = "cpu"
    threads: int | None = None
    """None: the CPUs of the affinity mask, within the cgroup's quota."""
    max_batch_tokens: int = 256
    """The most rows of one step. A prompt is computed no faster by longer steps, but others wait longer."""
    max_running: int = 64
    """The most requests that run at the same time."""
    cache_tokens: int | None = None
    """Size of the cache in tokens; None: `cache_bytes`, else a quarter of free memory."""
    cache_bytes: int | None = None
    workers: int = 1
    """How many like it start on the host at a time: by default their caches share what one's would be."""
    kv_dtype: Literal["f16", "int8"] = "f16"
    """Element type of the cache. int8 takes 64% of the room (heads of 64) and is less exact."""
    context_length: int | None = None
    """The most tokens of prompt and output together; None: the model's, or what the cache can hold."""
    prefix_cache: bool = True
    """False computes every prompt in full."""
    cache_disk_bytes: int = 0
    """What is kept on disk of the blocks that the cache gives up; 0: nothing."""
    cache_dir: str | None = None
    """The folder for that, which workers may share; None: the one in HEADRACE_HOME."""
    packed_cache: bool = True
    """Keep the weights on disk as the kernels want them: starts are faster, and workers share the memory."""
    speculate: Literal["none", "prompt-lookup", "draft"] = "none"
    """Whence drafted tokens: nowhere, the text itself, `draft_model` too. No output depends on it."""
    draft_model: str | None = None
    """As `model`; smaller, and of the same vocabulary."""
    draft_tokens: int = 8
    """The most tokens drafted at a time for a sequence; fewer where they would not pay."""

    def __post_init__(self) -> None:
        numbers = "threads", "max_batch_tokens", "max_running", "cache_tokens", "cache_bytes", "draft_tokens"
        for name in numbers:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name.replace('_', '-')} must be at least 1, not {value}")
        if self.cache_disk_bytes < 0:
            raise ConfigError(f"cache-disk must be at least 0, not {self.cache_disk_bytes}")
        if (self.speculate == "draft") != (self.draft_model is not None):
            raise ConfigError("speculate = draft and draft-model go together: give both or neither")


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The line of JSON that a worker reads from its standard input.

    The input then stays open for as long as whoever started the worker lives.
    """

    address: str
    """Where the messages go: a ZeroMQ endpoint."""
    identity: str
    """How the worker signs its messages."""
    settings: WorkerSettings
    transfer: str = ""
    """Where to give out cache blocks to other workers, an address of a transfer listener; empty: nowhere."""
    version: int = PROTOCOL_VERSION
