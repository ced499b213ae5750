"""What a name or a path that the user gives means."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ConfigError, ModelFileError, ModelNotFoundError
from headrace.models import registry
from headrace.models.architectures import ARCHITECTURES
from headrace.models.download import ModelEntry
from headrace.models.registry import DEFAULT_MODEL, home, known_models, models_folder, resolve, resolve_to_run
from headrace.models.sampling_defaults import SamplingDefaults


def test_the_default_model_is_known() -> None:
    assert DEFAULT_MODEL in [model.name for model in known_models()]


def test_the_home_folder_is_what_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    assert (home(), models_folder()) == (tmp_path, tmp_path / "models")
    monkeypatch.delenv("HEADRACE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home() == tmp_path / ".cache" / "headrace"


def test_the_home_folder_of_an_unknown_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", "~no-such-user/models")
    with pytest.raises(
        ConfigError, match=r"^HEADRACE_HOME: there is no user's folder '~no-such-user/models'"
    ):
        home()
    monkeypatch.delenv("HEADRACE_HOME")
    monkeypatch.setattr(Path, "home", _no_home)
    with pytest.raises(ConfigError, match=r"^HEADRACE_HOME: needed"):
        home()


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")  # as for a user without an entry


def test_a_name_resolves_to_its_file_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    models_folder().mkdir()
    for model in known_models():
        with (models_folder() / model.file).open("wb") as file:
            file.truncate(model.size)  # sparse: in the cache, name and size are what counts
        local = resolve(model.name)
        assert (local.name, local.path) == (model.name, models_folder() / model.file)
        assert local.sampling == model.sampling


def test_the_default_model_is_sampled_as_its_maker_recommends() -> None:
    (default,) = (model for model in known_models() if model.name == DEFAULT_MODEL)
    assert default.sampling == SamplingDefaults(temperature=0.2, top_p=0.9)


def test_a_path_resolves_to_a_model_named_after_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "My-Model.Q8_0.gguf").touch()
    monkeypatch.chdir(tmp_path)
    local = resolve("My-Model.Q8_0.gguf")
    assert (local.name, local.path) == ("My-Model.Q8_0", tmp_path / "My-Model.Q8_0.gguf")
    assert local.sampling is None


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("smolm2", "did you mean smollm2-135m"),
        ("Qwen2.5-Coder-1.5B", "did you mean qwen2.5-coder-1.5b"),
        ("xyzzy", "no model named 'xyzzy'; Known models: smollm2-135m, "),
        ("folder/nothing.gguf", "no model file folder/nothing.gguf"),
        ("~no-such-user/a.gguf", "no model file ~no-such-user/a.gguf"),
        ("nothing.gguf", "no model file nothing.gguf"),
        ("", "no model named ''"),
    ],
)
def test_an_unknown_name_or_path_is_told_what_there_is(asked: str, message: str) -> None:
    with pytest.raises(ModelNotFoundError, match=message):
        resolve(asked)


@pytest.fixture
def a_model_that_cannot_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModelEntry:
    entry = ModelEntry("mamba-1b", "mamba-1b.gguf", 5, "0" * 64, (), "mamba")
    monkeypatch.setattr(registry, "_MODELS", (entry, *known_models()))
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    return entry


def test_a_model_of_an_unsupported_architecture_is_refused_before_it_is_fetched(
    a_model_that_cannot_run: ModelEntry,
) -> None:
    with pytest.raises(ModelFileError, match=r"mamba-1b cannot be run: .*Models that can be run: smollm2"):
        resolve_to_run("mamba-1b")
    assert not models_folder().exists()


def test_a_model_of_an_unsupported_architecture_can_be_fetched(a_model_that_cannot_run: ModelEntry) -> None:
    models_folder().mkdir()
    (models_folder() / a_model_that_cannot_run.file).write_bytes(b"model")
    assert resolve("mamba-1b").path == models_folder() / "mamba-1b.gguf"


def test_only_models_that_can_run_are_proposed(a_model_that_cannot_run: ModelEntry) -> None:
    with pytest.raises(ModelNotFoundError) as told:
        resolve("mamba-1")
    assert "mamba-1b" not in str(told.value)
    unsupported = [model for model in known_models() if model.architecture not in ARCHITECTURES]
    assert not any(model.name in str(told.value) for model in unsupported)
