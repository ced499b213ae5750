"""Puts load clients from outside on a server that this script starts, and checks what they say.

    make load-test ARGS="--client all --requests 64 --concurrency 16"
    make load-test ARGS="--client vllm --rate 4 --chat -- --threads 2"

The clients are installed from the package index at their first use, each into an environment of its own under
build/peers, so that nothing they need reaches headrace's. Further network they need none: prompts are random
or from what a client carries, and the tokenizer is the model's own. Exit status 0: every request succeeded
and brought as many tokens as it asked for, and clients that use connections again could.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from headrace.models.registry import resolve
from load_clients.aiperf import AiPerf
from load_clients.connections import counted
from load_clients.guidellm import GuideLlm
from load_clients.load import Client, Load, Outcome
from load_clients.vllm import VllmBench
from side_by_side.checkpoint import write_tokenizer
from side_by_side.ours import HEADRACE
from side_by_side.process import BUILD, PeerError, free_port, serving

CLIENTS: dict[str, Client] = {client.name: client for client in (GuideLlm(), AiPerf(), VllmBench())}
START_SECONDS = 900
"""How long the server may take until it is ready; it may have to fetch the model first."""
OTHER_CONNECTIONS = 32
"""What a client may open beside those of its load: to try a request, to ask for models; and AIPerf reads
/metrics three times a second, whether or not it has been answered."""


def main() -> None:
    arguments = parse_arguments()
    chosen = list(CLIENTS.values()) if arguments.client == "all" else [CLIENTS[arguments.client]]
    load = Load(
        model=arguments.model,
        requests=arguments.requests,
        concurrency=arguments.concurrency,
        rate=arguments.rate,
        chat=arguments.chat,
        prompt_tokens=arguments.prompt_tokens,
        output_tokens=arguments.output_tokens,
        seconds=arguments.seconds,
    )
    try:
        complaints = run(chosen, load, arguments.serve_args)
    except PeerError as error:
        sys.exit(f"load-test: {error}")
    sys.exit("\n".join(f"load-test: {line}" for line in complaints) or 0)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Load-test headrace with clients that others wrote.")
    parser.add_argument("--client", choices=[*CLIENTS, "all"], default="guidellm")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--rate", type=float, help="requests a second, instead of so many at a time")
    parser.add_argument("--chat", action="store_true", help="ask /v1/chat/completions")
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=1800, help="how long each client may take")
    parser.add_argument("serve_args", nargs="*", help="handed to `headrace serve`, after --")
    return parser.parse_args()


def run(clients: Sequence[Client], load: Load, serve_args: Sequence[str]) -> list[str]:
    """Put the clients on one server in turn and print what each saw; what was wrong. Raises PeerError."""
    versions = {client.name: client.prepare() for client in clients}
    tokenizer = write_tokenizer(resolve(load.model).path, BUILD / "tokenizers" / load.model)
    port = free_port()
    command = [*HEADRACE, "serve", "--model", load.model, "--port", str(port), *serve_args]
    complaints = []
    with serving(command, "load-headrace", port, START_SECONDS, must_end_well=True) as address:
        for client in clients:
            with counted(port) as connections:
                outcome = client.run(load, address, tokenizer)
            print_outcome(f"{client.name} {versions[client.name]}", load, outcome, len(connections))
            wrong = [*outcome.complaints(load), *connection_complaints(client, load, len(connections))]
            complaints += [f"{client.name}: {line}" for line in wrong]
    return complaints


def connection_complaints(client: Client, load: Load, connections: int) -> list[str]:
    """Whether the server kept connections open; at a rate nobody knows how many are needed at a time."""
    most = load.concurrency + OTHER_CONNECTIONS
    if load.rate is None and client.reuses_connections and connections > most:
        return [f"connections were not used again: there were {connections}, expected at most {most}"]
    return []


def print_outcome(title: str, load: Load, outcome: Outcome, connections: int) -> None:
    pace = f"{load.concurrency} at a time" if load.rate is None else f"{load.rate:g} a second"
    served = f"{len(outcome.lengths)} of {load.requests} requests succeeded"
    print(f"{title}: {served}, {pace}, over {connections} connections")
    if outcome.lengths:
        print(f"  output  {outcome.output_tok_s:.0f} tok/s")
        for label, latency in (("TTFT", outcome.ttft), ("TPOT", outcome.tpot)):
            print(f"  {label:<6}  mean {latency.mean:.1f} ms, p99 {latency.p99:.1f} ms")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
