"""One server for the tests of all clients: two models, keys, and a context that is soon full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def for_clients(model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that offers `asking.SMALL` and `asking.CODER` to those with its keys."""
    from system.asking import CODER, KEYS, SMALL
    from system.test_serve import serving

    model_path(CODER)
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(KEYS, encoding="utf-8")
    options = ("--load-on-demand", "--threads", "2", "--cache-tokens", "4096", "--context-length", "1024")
    with serving(model_path(SMALL), "--model", SMALL, *options, "--api-keys", str(keys)) as server:
        yield server.url
