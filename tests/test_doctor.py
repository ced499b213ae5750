"""What doctor says of this machine, and of machines that lack something."""

from __future__ import annotations

import json
import socket

import pytest
from click.testing import CliRunner

from headrace.doctor import Check, can_serve, doctor, examine


def finding(name: str, **options) -> Check:
    (check,) = [check for check in examine(**options) if check.name == name]
    return check


def test_json_is_one_object_and_the_status_says_whether_it_can_serve():
    result = CliRunner().invoke(doctor, ["--json"])
    report = json.loads(result.stdout)
    assert result.exit_code == (0 if report["can_serve"] else 1)
    assert {"processor", "kernels", "cores", "memory", "models", "port"} <= {
        c["name"] for c in report["checks"]
    }


def test_every_finding_is_printed_and_every_problem_has_a_cure():
    checks = examine()
    printed = CliRunner().invoke(doctor, []).stdout
    assert all(check.name in printed for check in checks)
    assert all(check.cure for check in checks if check.status != "ok")


def test_a_port_that_is_taken_is_a_warning():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        check = finding("port", port=taken.getsockname()[1])
    assert check.status == "warn"
    assert "--port" in check.cure


def test_an_empty_models_cache_is_a_warning_that_names_the_command(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    check = finding("models")
    assert check.status == "warn"
    assert "headrace pull" in check.cure


def test_cached_models_are_listed(monkeypatch, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.gguf").write_bytes(b"GGUF")
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    check = finding("models")
    assert check.status == "ok"
    assert "a.gguf" in check.finding


def test_a_damaged_file_of_packed_weights_is_a_warning(monkeypatch, tmp_path):
    pytest.importorskip("headrace._native")
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    assert finding("packed weights").status == "ok"
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "a.packed").write_bytes(b"x" * 5000)
    check = finding("packed weights", verify=True)
    assert check.status == "warn"
    assert "a.packed: the header is damaged" in check.finding


def test_kernels_that_the_machine_lacks_mean_that_it_cannot_serve(monkeypatch):
    pytest.importorskip("headrace._native")
    monkeypatch.setenv("HEADRACE_ISA", "abacus")
    checks = examine()
    assert finding("kernels").status == "missing"
    assert not can_serve(checks)


def test_a_warning_does_not_keep_it_from_serving():
    assert can_serve([Check("a", "ok", ""), Check("b", "warn", "")])
    assert not can_serve([Check("a", "ok", ""), Check("b", "missing", "")])
