"""An operator's settings, from the command line to what they bring about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli import cli
from headrace.errors import ConfigError
from headrace.gateway.keys import digest, read_keys
from headrace.gateway.operating import OperatorSettings


def test_a_new_key_is_a_table_for_the_file_and_a_secret_for_its_owner(tmp_path: Path) -> None:
    made = CliRunner().invoke(cli, ["key", "new", "team@example.org"])
    assert made.exit_code == 0
    file = tmp_path / "keys.toml"
    file.write_text(made.stdout)
    (key,) = read_keys(file)
    (secret,) = re.findall(r"hr-[\w-]{43}", made.stderr)
    assert (key.name, key.digest) == ("team@example.org", digest(secret))
    assert secret not in made.stdout


def test_what_cannot_be_a_name_gets_no_key() -> None:
    for name in ("two words", "environment", "x" * 65):
        made = CliRunner().invoke(cli, ["key", "new", name])
        assert isinstance(made.exception, ConfigError)
        assert made.stdout == ""


def test_the_server_is_open_unless_there_is_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_API_KEY", raising=False)
    assert OperatorSettings().callers().open
    monkeypatch.setenv("HEADRACE_API_KEY", "0123456789abcdef")
    assert not OperatorSettings().callers().open


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tls-cert and tls-key go together"):
        OperatorSettings(tls_cert=tmp_path / "cert.pem").server_options()


def test_origins_stand_with_commas_between() -> None:
    options = OperatorSettings(cors_origin="https://a.example/, https://b.example").server_options()
    assert options.origins == ["https://a.example", "https://b.example"]
    assert OperatorSettings().server_options().origins == []


def test_lines_are_written_where_they_are_wanted() -> None:
    for settings, log, count in (
        (OperatorSettings(), False, 0),
        (OperatorSettings(), True, 1),
        (OperatorSettings(log_prompts=True), False, 1),
    ):
        with settings.observers(log, print) as observers:
            assert len(observers) == count
