"""The models that are on this machine already: fetched by name, or put into the models folder by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ModelFileError, ModelNotFoundError
from headrace.models.architectures import ARCHITECTURES
from headrace.models.registry import known_models, models_folder, resolve


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A model file, known by its name and size; nothing of it was read."""

    name: str
    """What requests call it: the name in the registry, or the file's name without its suffix."""
    source: str
    """What `registry.resolve` finds it by: that name, or the file's path."""
    path: Path
    size: int
    """In bytes."""
    modified: float
    """Seconds since 1970."""
    sha256: str | None = None
    """Of the whole file, where the registry knows it."""
    supported: bool = True
    """False where the registry knows that its architecture cannot be run."""


def local_files(folder: Path | None = None) -> list[LocalFile]:
    """Every whole model file in the folder (the models folder where None), by name.

    A few calls of the file system for each; a file that is still being fetched is none.
    """
    folder = folder or models_folder()
    entries = {entry.file: entry for entry in known_models()}
    found = []
    for path in folder.glob("*.gguf"):
        try:
            status = path.stat()
        except OSError:  # gone meanwhile, or a link to nothing
            continue
        entry = entries.get(path.name)
        if entry is None:
            found.append(LocalFile(path.stem, str(path), path, status.st_size, status.st_mtime))
        elif status.st_size == entry.size:
            found.append(
                LocalFile(
                    name=entry.name,
                    source=entry.name,
                    path=path,
                    size=status.st_size,
                    modified=status.st_mtime,
                    sha256=entry.sha256,
                    supported=entry.architecture in ARCHITECTURES,
                )
            )
    return sorted(found, key=lambda file: file.name)


def local_file(name_or_path: str) -> LocalFile:
    """The model of that name, fetched at its first use, or the file at that path.

    Raises what `registry.resolve` raises.
    """
    local = resolve(name_or_path)
    entry = next((entry for entry in known_models() if entry.name == name_or_path), None)
    try:
        status = local.path.stat()
    except OSError as error:
        raise ModelFileError(f"{local.path}: cannot be read: {error.strerror or error}") from error
    sha256 = entry.sha256 if entry else None
    return LocalFile(local.name, name_or_path, local.path, status.st_size, status.st_mtime, sha256)


def remove_local(name: str) -> LocalFile:
    """Deletes the model's file from the models folder. Raises ModelNotFoundError, ModelFileError."""
    file = next((file for file in local_files() if file.name == name), None)
    if file is None:
        there = ", ".join(file.name for file in local_files()) or "none"
        raise ModelNotFoundError(f"there is no model {name!r} in {models_folder()}; there are: {there}")
    try:
        file.path.unlink()
    except OSError as error:
        raise ModelFileError(f"{file.path} cannot be removed: {error.strerror or error}") from error
    return file
