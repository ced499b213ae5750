"""The options of whatever runs an engine, by kinds, and the settings that come of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

ENGINE = ("threads", "context_length", "cache_gib", "cache_tokens", "kv_dtype", "packed_cache")
TIERS = ("cache_disk_gib", "cache_dir")
SPECULATION = ("speculate", "draft_model", "draft_tokens")


def engine_settings(
    cache_gib: float | None, cache_disk_gib: float = 0.0, cache_dir: Path | None = None, **settings: Any
) -> dict[str, Any]:
    """WorkerSettings' fields from the values of these options; others keep their names."""
    if cache_disk_gib:
        settings["cache_disk_bytes"] = in_bytes(cache_disk_gib)
        settings["cache_dir"] = None if cache_dir is None else str(cache_dir.absolute())
    return settings | {"cache_bytes": in_bytes(cache_gib)}


def in_bytes(gib: float | None) -> int | None:
    """So many GiB; None stays None."""
    return None if gib is None else math.ceil(gib * 2**30)
