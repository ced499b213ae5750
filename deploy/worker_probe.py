#!/usr/bin/env python
"""Asks the gateway about this worker, for Kubernetes' probes: `worker-probe ready` or `worker-probe alive`.

GATEWAY_URL is the gateway's, HEADRACE_WORKER_NAME the name that the worker joined under. A worker has no port
that could be asked; what the gateway hears of it is what counts.
"""

import json
import os
import re
import sys
import urllib.error
import urllib.request
from typing import Any


def health(url: str) -> list[dict[str, Any]]:
    """The workers that the gateway knows. Raises OSError where it does not answer."""
    try:
        answer = urllib.request.urlopen(f"{url}/health", timeout=4)
    except urllib.error.HTTPError as error:  # 503 without a worker that is ready, or while it ends
        answer = error
    workers: list[dict[str, Any]] = json.load(answer).get("workers", [])
    return workers


def states(workers: list[dict[str, Any]], name: str) -> set[str]:
    """Of the worker of that name, and of those it was before it was restarted."""
    own = re.compile(re.escape(name) + r"(-\d+)?")
    return {worker["state"] for worker in workers if own.fullmatch(worker["name"])}


def main() -> int:
    question, name, url = sys.argv[1], os.environ["HEADRACE_WORKER_NAME"], os.environ["GATEWAY_URL"]
    try:
        found = states(health(url), name)
    except (OSError, ValueError) as error:
        print(f"the gateway at {url} does not answer: {error}")
        return int(question == "ready")  # that is no reason to end a worker
    print(f"{name}: {', '.join(sorted(found)) or 'not known'}")
    if question == "ready":
        return int("ready" not in found)
    return int(found == {"lost"})


if __name__ == "__main__":
    sys.exit(main())
