"""A flag beats the environment, which beats the file, which beats the default; errors say which it was."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from headrace.config import SETTINGS, ConfigFile, explain, options
from headrace.errors import ConfigError


@click.group()
@click.option("--config", type=click.Path(path_type=Path))
@click.pass_context
def verbs(ctx: click.Context, config: Path | None) -> None:
    ctx.default_map = {"show": ConfigFile.read(config).settings()}


@verbs.command()
@options("port", "prefix_cache", "cache_gib")
def show(**values: object) -> None:
    print(values["port"], values["prefix_cache"], values["cache_gib"])


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in SETTINGS:
        monkeypatch.delenv(f"HEADRACE_{name.upper()}", raising=False)


def shown(*args: str) -> str:
    result = CliRunner().invoke(verbs, ["show", *args], standalone_mode=False)
    if isinstance(result.exception, click.BadParameter):
        error = explain(result.exception)
        assert error is not None
        raise error
    if result.exception:
        raise result.exception
    return result.output.strip()


def test_each_source_beats_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown() == "8000 True None"
    Path("headrace.toml").write_text("port = 9001\nprefix-cache = false\ncache_gib = 1.5")
    assert shown() == "9001 False 1.5"
    monkeypatch.setenv("HEADRACE_PORT", "9002")
    monkeypatch.setenv("HEADRACE_PREFIX_CACHE", "true")
    assert shown() == "9002 True 1.5"
    assert shown("--port", "9003", "--no-prefix-cache") == "9003 False 1.5"


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PORT", "")
    assert shown() == "8000 True None"


@pytest.mark.parametrize("value", ["70000", "-1", "http", "80.5"])
def test_a_wrong_value_is_blamed_on_where_it_stands(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^--port: expected a whole number from 0 to 65535, not '{value}'"
    ):
        shown("--port", value)
    Path("headrace.toml").write_text(f'port = "{value}"')
    with pytest.raises(
        ConfigError,
        match=rf"^'port' in headrace.toml: expected a whole number from 0 to 65535, not '{value}'",
    ):
        shown()
    monkeypatch.setenv("HEADRACE_PORT", value)
    with pytest.raises(
        ConfigError, match=rf"^HEADRACE_PORT: expected a whole number from 0 to 65535, not '{value}'"
    ):
        shown()


@pytest.mark.parametrize("value", ["inf", "nan", "-1", "0", "1e400"])
def test_a_size_must_be_a_finite_number(value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^--cache-gib: expected a number above 0, not '{value}'$"):
        shown("--cache-gib", value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("port = ", "not valid TOML"),
        ("prot = 1", "no setting 'prot'; there are .*port"),
        ("port = [1]", "'port' must be one text, number"),
        ("[serve]\nport = 1", r"there is no table \[serve\]; there are \[models.NAME\]"),
        ("port = true", "'port' in headrace.toml: expected a whole number from 0 to 65535, not 'True'"),
    ],
)
def test_a_broken_file_is_named(text: str, told: str) -> None:
    Path("headrace.toml").write_text(text)
    with pytest.raises(ConfigError, match=told) as error:
        shown()
    assert "headrace.toml" in str(error.value)


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    assert ConfigFile.read(None).settings() == {}
    with pytest.raises(ConfigError, match=r"absent.toml cannot be read"):
        ConfigFile.read(tmp_path / "absent.toml")
