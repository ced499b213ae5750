"""Verbs that ask the server which the settings describe, where it serves HTTPS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.certificates import self_signed, signed
from gateway.running import RunningGateway, running
from headrace.cli import cli
from headrace.gateway.server import ServerOptions, Tls


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """Whose certificates this machine does not trust."""
    return self_signed(tmp_path_factory.mktemp("authority"), "authority", "DNS:authority.example")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory, authority: Tls) -> Tls:
    """For another name than the one that the server is asked by."""
    return signed(tmp_path_factory.mktemp("tls"), "models.example", authority)


@pytest.fixture(scope="module")
def server(certificate: Tls) -> Iterator[RunningGateway]:
    with running(options=ServerOptions(tls=certificate)) as server:
        yield server


def asked(folder: Path, server: RunningGateway, certificate: Path, *verb: str, **environment: str) -> str:
    """What a verb says whose settings name this certificate, and what else is given; no others count."""
    file = folder / "headrace.toml"
    file.write_text(f'port = {server.port}\ntls-cert = "{certificate}"', encoding="utf-8")
    unset = dict.fromkeys(name for name in os.environ if name.startswith("HEADRACE_"))
    result = CliRunner().invoke(cli, ["--config", str(file), *verb], env=unset | environment)
    return result.output + str(result.exception or "")


def test_it_is_asked_by_https_and_known_by_its_own_certificate(
    tmp_path: Path, server: RunningGateway, certificate: Tls
) -> None:
    assert "\nfake " in asked(tmp_path, server, certificate.cert, "ps")
    assert asked(tmp_path, server, certificate.cert, "prefix", "list") == "nothing is cached yet\n"
    given = ["ps", "--url", f"https://127.0.0.1:{server.port}"]
    assert "\nfake " in asked(tmp_path, server, certificate.cert, *given)
    (tmp_path / "headrace.toml").unlink()
    plain = {"HEADRACE_PORT": str(server.port), "HEADRACE_TLS_CERT": str(certificate.cert)}
    assert "\nfake " in CliRunner().invoke(cli, ["ps"], env=plain).output


def test_no_other_certificate_is_taken_there(
    tmp_path: Path, server: RunningGateway, certificate: Tls, authority: Tls
) -> None:
    """Not even one by the same authority, which is in the file, too."""
    other = signed(tmp_path, "other.example", authority)
    for named in (other, self_signed(tmp_path, "models.example", "IP:127.0.0.1")):
        assert "certificate verify failed" in asked(tmp_path, server, named.cert, "ps")
    elsewhere = ["ps", "--url", f"https://localhost:{server.port}"]
    assert "certificate verify failed" in asked(tmp_path, server, certificate.cert, *elsewhere)


def test_a_file_without_a_certificate_is_named(tmp_path: Path, server: RunningGateway) -> None:
    empty = tmp_path / "empty.pem"
    assert f"tls-cert: {empty} cannot be read" in asked(tmp_path, server, empty, "ps")
    empty.write_text("nothing")
    assert f"tls-cert: {empty} cannot be read" in asked(tmp_path, server, empty, "ps")
