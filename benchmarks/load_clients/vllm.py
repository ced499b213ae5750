"""`vllm bench serve`, from the environment of vLLM that the comparison with other engines uses too."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from load_clients.load import Latency, Load, Outcome
from side_by_side.process import BUILD, Command, output_of
from side_by_side.vllm import ENVIRONMENT, Vllm


class VllmBench:
    name = "vllm"
    reuses_connections = True

    def prepare(self) -> str:
        return Vllm().prepare()

    def run(self, load: Load, address: str, tokenizer: Path) -> Outcome:
        report = BUILD / "load" / "vllm.json"
        report.parent.mkdir(exist_ok=True)
        report.unlink(missing_ok=True)
        command: Command = [ENVIRONMENT.folder / "bin" / "vllm", "bench", "serve", "--base-url", address]
        command += ["--backend", "openai-chat" if load.chat else "openai"]
        command += ["--endpoint", "/v1/chat/completions" if load.chat else "/v1/completions"]
        command += ["--model", load.model, "--tokenizer", tokenizer, "--dataset-name", "random"]
        command += ["--random-input-len", str(load.prompt_tokens)]
        command += ["--random-output-len", str(load.output_tokens), "--ignore-eos"]
        command += ["--num-prompts", str(load.requests)]
        if load.rate is None:
            command += ["--max-concurrency", str(load.concurrency)]
        else:
            command += ["--request-rate", str(load.rate)]
        command += ["--save-result", "--save-detailed", "--disable-tqdm"]
        command += ["--result-dir", report.parent, "--result-filename", report.name]
        env = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(BUILD / "vllm-cache"),
        }
        output_of(command, "load-vllm", load.seconds, env=env)
        return _outcome(json.loads(report.read_text(encoding="utf-8")))


def _outcome(result: dict[str, Any]) -> Outcome:
    requests = list(zip(result["output_lens"], result["errors"], strict=True))
    return Outcome(
        lengths=[length for length, error in requests if not error],
        errors=Counter(error.strip().splitlines()[-1] for _, error in requests if error),
        output_tok_s=result["output_throughput"],
        ttft=Latency(result["mean_ttft_ms"], result["p99_ttft_ms"]),
        tpot=Latency(result["mean_tpot_ms"], result["p99_tpot_ms"]),
    )
