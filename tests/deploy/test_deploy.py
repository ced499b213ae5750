"""The image and the manifests: what can be said of them without Docker and without a cluster.

`make test-kubernetes` also holds what kustomize makes of the manifests against Kubernetes' own schemas.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.config import SETTINGS, variable

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = DEPLOY / "kubernetes"


def documents() -> list[dict[str, Any]]:
    files = [file for file in MANIFESTS.rglob("*.yaml") if file.name != "kustomization.yaml"]
    return [document for file in files for document in yaml.safe_load_all(file.read_text())]


def deployments() -> list[dict[str, Any]]:
    return [document for document in documents() if document["kind"] == "Deployment"]


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
    return made


@pytest.mark.parametrize("deployment", deployments(), ids=lambda d: d["metadata"]["name"])
def test_a_pod_runs_as_nobody_special_and_has_time_to_drain(deployment: dict[str, Any]) -> None:
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container(deployment)["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["enableServiceLinks"] is False, "the Service's address would stand in HEADRACE_PORT"
    assert pod["terminationGracePeriodSeconds"] > float(drain_seconds()) + 10
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container(deployment).keys()


def drain_seconds() -> str:
    settings = yaml.safe_load((MANIFESTS / "settings/kustomization.yaml").read_text())
    literals = dict(line.split("=") for line in settings["configMapGenerator"][0]["literals"])
    return str(literals["HEADRACE_DRAIN_SECONDS"])


def test_every_variable_of_the_manifests_is_a_setting() -> None:
    text = "".join(file.read_text() for file in MANIFESTS.rglob("*.yaml"))
    known = {*map(variable, SETTINGS), "HEADRACE_API_KEY"}
    assert set(re.findall(r"\bHEADRACE_[A-Z_]+", text)) <= known


def test_services_budgets_and_selectors_find_the_pods_they_mean() -> None:
    pods = [deployment["spec"]["template"]["metadata"]["labels"] for deployment in deployments()]
    for document in documents():
        selector = document["spec"].get("selector")
        wanted = selector and selector.get("matchLabels", selector)
        if wanted:
            assert any(wanted.items() <= labels.items() for labels in pods), document["metadata"]


def test_the_image_is_of_stages_that_exist_runs_as_a_number_and_says_how_it_is() -> None:
    lines = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text()).splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    verbs = [verb for verb, _ in steps]
    last_stage = len(verbs) - verbs[::-1].index("FROM")
    final = dict(steps[last_stage:])
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", final["USER"])
    assert json.loads(final["ENTRYPOINT"]) == ["headrace"]
    probe = json.loads(final["HEALTHCHECK"].split("CMD ", 1)[1])
    compile(probe[2], "HEALTHCHECK", "exec")
    stages = {rest.split()[-1] for verb, rest in steps if verb == "FROM" and " AS " in rest}
    for source in (rest.split() for verb, rest in steps if verb == "COPY"):
        if source[0].startswith("--from="):
            assert source[0].removeprefix("--from=") in stages
        else:
            assert all((ROOT / name).exists() for name in source[:-1])


@contextmanager
def gateway(*workers: tuple[str, str]) -> Iterator[str]:
    """The URL of one that knows these workers, each a name and a state."""
    body = json.dumps({"workers": [{"name": name, "state": state} for name, state in workers]}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def probed(url: str) -> dict[str, bool]:
    """What the probes of the worker w-1 say."""
    environment = os.environ | {"GATEWAY_URL": url, "HEADRACE_WORKER_NAME": "w-1"}
    command = [sys.executable, str(DEPLOY / "worker_probe.py")]
    return {
        question: subprocess.run([*command, question], env=environment, capture_output=True).returncode == 0
        for question in ("ready", "alive")
    }


@pytest.mark.parametrize(
    ("workers", "ready", "alive"),
    [
        ([("w-1", "ready"), ("other", "lost")], True, True),
        ([("w-1", "lost"), ("other", "ready")], False, False),
        ([("w-1", "lost"), ("w-1-2", "ready")], True, True),
        ([("w-1", "lost"), ("w-1-2", "starting")], False, True),
        ([("w-10", "ready")], False, True),
        ([], False, True),
    ],
)
def test_a_worker_is_what_its_gateway_hears_of_it(
    workers: list[tuple[str, str]], ready: bool, alive: bool
) -> None:
    with gateway(*workers) as url:
        assert probed(url) == {"ready": ready, "alive": alive}


def test_a_worker_without_a_gateway_is_not_ready_but_left_alone() -> None:
    assert probed("http://127.0.0.1:9") == {"ready": False, "alive": True}


@pytest.mark.parametrize("version", ["1.29", "1.37"])
@pytest.mark.parametrize("overlay", ["base", "overlays/prefill-decode", "overlays/autoscaled"])
def test_what_kustomize_makes_is_valid(overlay: str, version: str, tmp_path: Path) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="`make test-kubernetes` installs it")
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl")
    shutil.copytree(MANIFESTS, tmp_path / "kubernetes")
    (tmp_path / "kubernetes/settings/worker-secret.txt").write_text("s" * 40)
    made = subprocess.run(
        [kubectl, "kustomize", tmp_path / "kubernetes" / overlay], capture_output=True, text=True, check=True
    )
    kinds = []
    for document in yaml.safe_load_all(made.stdout):
        validator.validate(document, version, strict=True)
        kinds.append(document["kind"])
    assert {"Deployment", "Service", "Secret", "ConfigMap", "PodDisruptionBudget"} <= set(kinds)
