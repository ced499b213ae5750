"""AIPerf, NVIDIA's: several processes; it scrapes /metrics beside its load. Needs Python 3.11."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from load_clients.load import Latency, Load, Outcome
from side_by_side.environment import Environment
from side_by_side.process import BUILD, Command, output_of

VERSION = "0.13.0"
ENVIRONMENT = Environment("aiperf")


class AiPerf:
    name = "aiperf"
    reuses_connections = True

    def prepare(self) -> str:
        ENVIRONMENT.provide(f"aiperf=={VERSION}")
        return ENVIRONMENT.version("aiperf")

    def run(self, load: Load, address: str, tokenizer: Path) -> Outcome:
        folder = BUILD / "load" / "aiperf"
        shutil.rmtree(folder, ignore_errors=True)
        command: Command = [ENVIRONMENT.folder / "bin" / "aiperf", "profile", "--url", address]
        command += ["--model", load.model, "--tokenizer", tokenizer, "--streaming"]
        command += ["--endpoint-type", "chat" if load.chat else "completions"]
        command += ["--isl", str(load.prompt_tokens), "--osl", str(load.output_tokens)]
        command += ["--extra-inputs", "ignore_eos:true", "--use-server-token-count"]
        command += ["--request-count", str(load.requests)]
        if load.rate is None:
            command += ["--concurrency", str(load.concurrency)]
        else:
            command += ["--request-rate", str(load.rate), "--arrival-pattern", "poisson"]
        command += ["--no-gpu-telemetry", "--ui", "none", "--output-artifact-dir", folder]
        # Not told to be offline: then it takes a tokenizer only from the hub's cache, never from a folder.
        output_of(command, "load-aiperf", load.seconds)
        summary = json.loads((folder / "profile_export_aiperf.json").read_text(encoding="utf-8"))
        records = (folder / "profile_export.jsonl").read_text(encoding="utf-8").splitlines()
        return _outcome(summary, [json.loads(record) for record in records])


def _outcome(summary: dict[str, Any], records: list[dict[str, Any]]) -> Outcome:
    served = [record["metrics"] for record in records if not record.get("error")]
    return Outcome(
        lengths=[int(metrics["output_sequence_length"]["value"]) for metrics in served],
        errors=Counter(str(record["error"]["message"]) for record in records if record.get("error")),
        output_tok_s=summary["output_token_throughput"]["avg"],
        ttft=_latency(summary["time_to_first_token"]),
        # A request's mean, which others call TPOT; its time between chunks is another figure.
        tpot=_latency(summary["inter_token_latency"]),
    )


def _latency(values: dict[str, Any]) -> Latency:
    return Latency(values["avg"], values["p99"])
