"""Puts schemathesis on a real gateway with a fake engine: no 5xx, and answers as the document says.

Run by `make fuzz-api`; arguments are handed on to `schemathesis run`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import httpx

from gateway.running import running

_CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
_EXAMPLES = "100"
_FIXED: dict[str, dict[str, Any]] = {
    "model": {"type": "string", "enum": ["fake"]},
    "max_tokens": {"type": "integer", "minimum": 0, "maximum": 8},
    "max_completion_tokens": {"type": "integer", "minimum": 1, "maximum": 8},
    "max_output_tokens": {"type": "integer", "minimum": 1, "maximum": 8},
}
"""Fields of bodies that must be right for a request to get beyond the first check, or to end soon."""
_PROMPTS = ("/v1/chat/completions", "/v1/completions")
"""Whose bodies the endpoints about prefixes take, too; the document leaves theirs open."""


def reachable(document: dict[str, Any]) -> dict[str, Any]:
    """The document with those fields fixed, so that not every request asks for a model that is not there."""
    answers = json.dumps([op["responses"] for path in document["paths"].values() for op in path.values()])
    for name, schema in document["components"]["schemas"].items():
        if f'/{name}"' not in answers:
            fields = schema.get("properties", {})
            fields.update((field, _FIXED[field]) for field in _FIXED if field in fields)
    paths = document["paths"]
    prompts = {"anyOf": [_body(paths[path])["schema"] for path in _PROMPTS]}
    for verb in ("explain", "warm", "pin"):
        _body(paths[f"/v1/prefix/{verb}"])["schema"] = prompts
    (name,) = paths["/v1/models/{name}"]["get"]["parameters"]
    name["schema"] = _FIXED["model"]
    return document


def _body(path: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = path["post"]["requestBody"]["content"]["application/json"]
    return content


def main() -> int:
    """The exit status of schemathesis."""
    tool = Path(sysconfig.get_path("scripts")) / "schemathesis"
    with tempfile.TemporaryDirectory() as folder, running(data_dir=Path(folder) / "data") as server:
        document = Path(folder) / "openapi.json"
        document.write_text(json.dumps(reachable(httpx.get(f"{server.url}/openapi.json").json())))
        command = [str(tool), "run", str(document), "--url", server.url, "--checks", _CHECKS]
        command += ["--max-examples", _EXAMPLES, "--continue-on-failure", "--seed", "1", *sys.argv[1:]]
        return subprocess.run(command, cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
