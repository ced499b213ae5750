"""What all tests of routed requests have in common."""

from __future__ import annotations

import pytest

from gateway.routed.fleet import SECRET


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remotes' key, in the environment."""
    monkeypatch.setenv("FAR_KEY", SECRET)
