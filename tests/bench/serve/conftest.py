"""Where published traces are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of traces, kept beside the checkout; the test is skipped where it is absent."""
    shared = os.environ.get("HEADRACE_SHARED")
    folder = (Path(shared) if shared else Path(__file__).parents[4] / "shared") / "data" / "traces"
    if not folder.is_dir():
        pytest.skip(f"no traces: {folder} is absent (HEADRACE_SHARED names the folder that holds data/)")
    return folder
