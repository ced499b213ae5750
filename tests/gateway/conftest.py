"""One gateway for the tests of a module that do not disturb each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.running import RunningGateway, running


@pytest.fixture(scope="module")
def server() -> Iterator[RunningGateway]:
    """A gateway whose engine answers at once."""
    with running() as gateway:
        yield gateway
