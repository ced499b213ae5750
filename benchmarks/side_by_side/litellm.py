"""LiteLLM's proxy, as one more gateway before a model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from side_by_side.environment import Environment
from side_by_side.process import Command, free_port, serving

PACKAGE = "litellm"
VERSION = "1.106.12"
_START_SECONDS = 120.0
# Nothing is fetched at the start, nothing but errors is logged, and no key is looked up for each request.
_LEAN = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}


class LiteLlm:
    name = "litellm"

    def __init__(self) -> None:
        self._environment = Environment("litellm")

    def prepare(self) -> str:
        self._environment.provide(f"{PACKAGE}[proxy]=={VERSION}")
        return self._environment.version(PACKAGE)

    @contextlib.contextmanager
    def before(self, url: str, upstream: str, names: Sequence[str], folder: Path) -> Iterator[str]:
        """Address of a proxy of one process before the server at `url`, whose model is `upstream`.

        Requests for any of the names go there; one that stands twice is balanced over two deployments.
        """
        port, file = free_port(), folder / "litellm.json"
        there = {"model": f"openai/{upstream}", "api_base": f"{url}/v1", "api_key": "none"}
        models = [{"model_name": name, "litellm_params": there} for name in names]
        file.write_text(json.dumps({"model_list": models}), encoding="utf-8")  # YAML, too
        command: Command = [self._environment.folder / "bin" / "litellm", "--config", file]
        command += ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1", "--telemetry", "False"]
        ready = "/health/readiness"
        with serving(command, "route-litellm", port, _START_SECONDS, env=_LEAN, ready=ready) as address:
            yield address
