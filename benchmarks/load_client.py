"""Puts a load client from outside, GuideLLM, on a server that this script starts, and checks what it says.

    make load-test ARGS="--model smollm2-135m --requests 64 --concurrency 16"

The client lives in an environment of its own under build/, so that nothing it needs reaches headrace's. It
needs no network but to be installed: its prompts come from a book it carries, and the tokenizer from the
model's own file. Exit status 0: every request succeeded and brought as many tokens as it asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers.decoders import ByteLevel

from headrace.models.gguf import GgufFile
from headrace.models.registry import resolve
from headrace.models.tokenizer import Tokenizer

BUILD = Path(__file__).parents[1] / "build" / "load-client"
CLIENT = "guidellm==0.3.1"  # later ones want PyTorch
START_SECONDS = 900
"""How long the server may take until it is ready; it may have to fetch the model first."""


def main() -> None:
    arguments = parse_arguments()
    client = install_client()
    tokenizer = write_tokenizer(arguments.model)
    with serving(arguments.model, arguments.serve_args) as address:
        report = run_client(client, tokenizer, address, arguments)
    sys.exit(summarize(report, arguments))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Load-test headrace with GuideLLM.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("serve_args", nargs="*", help="handed to `headrace serve`, after --")
    return parser.parse_args()


def install_client() -> Path:
    """The client's executable, installed once."""
    environment = BUILD / "venv"
    stamp = environment / CLIENT
    if not stamp.exists():
        print(f"load-test: installing {CLIENT} in {environment}", file=sys.stderr)
        venv.create(environment, clear=True, with_pip=True)
        pip = [environment / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
        subprocess.run([*pip, CLIENT], check=True)
        stamp.touch()
    return environment / "bin" / "guidellm"


def write_tokenizer(model: str) -> Path:
    """A folder from which transformers reads the model's tokenizer, to count tokens with."""
    folder = BUILD / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    with GgufFile(resolve(model).path) as weights:
        words = Tokenizer.from_metadata(weights.metadata)._bpe
    words.decoder = ByteLevel()
    words.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder


@contextlib.contextmanager
def serving(model: str, extra: list[str]) -> Iterator[str]:
    """The address of a `headrace serve` that lives as long as the context, and must end well."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    headrace = Path(sys.executable).with_name("headrace")
    server = subprocess.Popen([headrace, "serve", "--model", model, "--port", str(port), *extra])
    try:
        wait_until_ready(server, f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        status = server.wait(timeout=60)
    if status != 0:
        sys.exit(f"load-test: the server ended with status {status}")


def wait_until_ready(server: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit("load-test: the server did not start")
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError),
            urllib.request.urlopen(url, timeout=5),
        ):
            return
        time.sleep(0.2)
    sys.exit(f"load-test: the server was not ready within {START_SECONDS} s")


def run_client(client: Path, tokenizer: Path, address: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the client; its report on the one benchmark."""
    report = BUILD / "report.json"
    report.unlink(missing_ok=True)
    data = {"prompt_tokens": arguments.prompt_tokens, "output_tokens": arguments.output_tokens}
    command = [client, "benchmark", "run", "--target", address, "--model", arguments.model]
    command += ["--processor", tokenizer, "--data", json.dumps(data), "--output-path", report]
    command += ["--rate-type", "concurrent", "--rate", str(arguments.concurrency)]
    command += ["--max-requests", str(arguments.requests), "--disable-progress", "--disable-console-outputs"]
    subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    (benchmark,) = json.loads(report.read_text(encoding="utf-8"))["benchmarks"]
    return benchmark


def summarize(report: dict[str, Any], arguments: argparse.Namespace) -> int:
    """Print what the client saw; the exit status."""
    done = report["requests"]["successful"] or []
    short = sum(request["output_tokens"] != arguments.output_tokens for request in done)
    totals = report["request_totals"]
    print(
        f"{totals['successful']} of {arguments.requests} requests succeeded,"
        f" {arguments.concurrency} at a time"
        f" ({totals['errored']} failed, {totals['incomplete']} incomplete,"
        f" {short} with another number of tokens than {arguments.output_tokens})"
    )
    metrics = {name: values["successful"] for name, values in report["metrics"].items()}
    print(f"output  {metrics['output_tokens_per_second']['mean']:.0f} tok/s")
    for label, name in (("TTFT", "time_to_first_token_ms"), ("ITL", "inter_token_latency_ms")):
        spread = metrics[name]
        print(f"{label:<6}  mean {spread['mean']:.1f} ms, p99 {spread['percentiles']['p99']:.1f} ms")
    return 0 if totals["successful"] == arguments.requests and not short else 1


if __name__ == "__main__":
    main()
