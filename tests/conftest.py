"""What tests share: golden values, real models from the models cache, a small synthetic model; and by whom
they are run, where they are run by several processes at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import httpx._transports.default as httpx_transports
import pytest
from hypothesis import settings

from headrace.errors import DownloadError, ModelNotFoundError
from headrace.models.registry import resolve
from synthetic import write_synthetic

# Whether a change passes is no matter of luck, nor of how busy the machine is; `explore` tries new cases.
settings.register_profile("same-cases", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("same-cases")

# Tests start hundreds of processes, of which each would compile all modules if it may not keep them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Every client of httpx, as those of the official clients are, would read the certificates of all authorities:
# that takes longer than most requests do here, which are plain HTTP. Now all share what the first has read.
httpx_transports.create_ssl_context = cache(httpx_transports.create_ssl_context)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests are run by one process, and so are all of those that share the server `for_clients`."""
    from xdist.scheduler import LoadScopeScheduling

    class ByServer(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = str(nodeid.split("::")[0])
            return "clients" if file.startswith("tests/system/test_clients") else file

    return ByServer(config, log) if config.getoption("dist") == "loadscope" else None


def _shared_data() -> Path:
    """The folder of golden values and data sets, which is kept beside the checkout and never committed."""
    shared = os.environ.get("HEADRACE_SHARED")
    return (Path(shared) if shared else Path(__file__).parents[2] / "shared") / "data"


@pytest.fixture(scope="session")
def golden() -> Callable[[str], dict[str, Any]]:
    """`golden(name)` is the parsed golden-NAME.json; the test is skipped where the file is absent."""

    @cache
    def load(name: str) -> dict[str, Any]:
        path = _shared_data() / "golden" / f"golden-{name}.json"
        if not path.exists():
            pytest.skip(
                f"no golden values: {path} is absent (HEADRACE_SHARED names the folder that holds data/)"
            )
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return values

    return load


@pytest.fixture(scope="session")
def model_path() -> Callable[[str], Path]:
    """`model_path(name)` is the file of a registry model, fetched at first use; skipped if it cannot be."""

    @cache
    def find(name: str) -> Path:
        try:
            return resolve(name, progress=False).path
        except (ModelNotFoundError, DownloadError) as error:
            pytest.skip(f"no model {name}: {error}")

    return find


@pytest.fixture(scope="session")
def synthetic_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a tiny random model that holds a tensor of every packed format."""
    return write_synthetic(tmp_path_factory.mktemp("synthetic") / "synthetic.gguf")
