"""GuideLLM, of the vLLM project: its prompts come from a book that it carries."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from load_clients.load import Latency, Load, Outcome
from side_by_side.environment import Environment
from side_by_side.process import BUILD, Command, output_of

VERSION = "0.3.1"  # later ones want PyTorch
ENVIRONMENT = Environment("guidellm")


class GuideLlm:
    name = "guidellm"
    # It stops reading at [DONE], before the end of the answer, and httpx then drops the connection.
    reuses_connections = False

    def prepare(self) -> str:
        ENVIRONMENT.provide(f"guidellm=={VERSION}")
        return ENVIRONMENT.version("guidellm")

    def run(self, load: Load, address: str, tokenizer: Path) -> Outcome:
        report = BUILD / "load" / "guidellm.json"
        report.parent.mkdir(exist_ok=True)
        report.unlink(missing_ok=True)
        data = {"prompt_tokens": load.prompt_tokens, "output_tokens": load.output_tokens}
        pace = ("concurrent", load.concurrency) if load.rate is None else ("poisson", load.rate)
        command: Command = [ENVIRONMENT.folder / "bin" / "guidellm", "benchmark", "run"]
        command += ["--target", address, "--model", load.model, "--processor", tokenizer]
        command += ["--data", json.dumps(data), "--rate-type", pace[0], "--rate", str(pace[1])]
        command += ["--max-requests", str(load.requests), "--output-path", report]
        command += ["--disable-progress", "--disable-console-outputs"]
        route = "chat_completions" if load.chat else "text_completions"
        env = {"HF_HUB_OFFLINE": "1", "GUIDELLM__PREFERRED_ROUTE": route}
        output_of(command, "load-guidellm", load.seconds, env=env)
        (benchmark,) = json.loads(report.read_text(encoding="utf-8"))["benchmarks"]
        return _outcome(benchmark)


def _outcome(benchmark: dict[str, Any]) -> Outcome:
    requests = benchmark["requests"]
    failed = Counter(request["error"] for request in requests["errored"] or [])
    if incomplete := len(requests["incomplete"] or []):
        failed["incomplete"] = incomplete
    metrics = {name: values["successful"] for name, values in benchmark["metrics"].items()}
    return Outcome(
        lengths=[request["output_tokens"] for request in requests["successful"] or []],
        errors=failed,
        output_tok_s=metrics["output_tokens_per_second"]["mean"],
        ttft=_latency(metrics["time_to_first_token_ms"]),
        # What it calls time per output token counts the first one in.
        tpot=_latency(metrics["inter_token_latency_ms"]),
    )


def _latency(values: dict[str, Any]) -> Latency:
    return Latency(values["mean"], values["percentiles"]["p99"])
