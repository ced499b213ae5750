"""A router as one file: arrays and a description, nothing that could be run."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.routing.cues import CUES
from headrace.routing.estimator import Estimator, HeldOut, Novelty
from headrace.routing.grams import BUCKETS
from headrace.routing.risk import Promise
from headrace.routing.router import Router

FORMAT = 1
"""Raised whenever cues or buckets change their meaning: what an older file learnt would then be wrong."""

_HALVES = ("support", "rarities", "weights")


class _About(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    models: list[str]
    promises: list[Promise]


def save(router: Router, path: Path) -> None:
    """Writes a router. The large arrays are rounded to half precision, which moves no estimate by 0.001.

    Raises ConfigError where the file cannot be written.
    """
    estimator = router.estimator
    about = msgspec.json.encode(_About(FORMAT, list(router.models), list(router.promises)))
    arrays = {name: getattr(estimator, name) for name in _shapes(0, 0, 0)}
    arrays |= {
        f"novelty_{name}": getattr(estimator.novelty, name) for name in ("anchors", "inverse", "prior")
    }
    if estimator.held_out is not None:
        arrays |= {f"held_out_{name}": getattr(estimator.held_out, name) for name in ("good", "scores")}
    for name in _HALVES:
        arrays[name] = arrays[name].astype(np.float16)
    content = io.BytesIO()
    np.savez_compressed(content, about=np.frombuffer(about, np.uint8), **arrays)
    try:
        path.write_bytes(content.getvalue())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def load(path: Path) -> Router:
    """The router of a file. Raises ConfigError where it is none, or of a version that read otherwise."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            about = msgspec.json.decode(arrays["about"].tobytes(), type=_About)
            read = {name: arrays[name] for name in arrays.files if name != "about"}
        if about.format != FORMAT:
            raise ConfigError(f"{path}: its format is {about.format}, not {FORMAT}: train it anew")
        return Router(_estimator(tuple(about.models), read), tuple(about.promises))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, msgspec.MsgspecError):
        raise ConfigError(f"{path} is no router of `headrace route train`, or is damaged") from None


def first_day(models: Sequence[str]) -> Router:
    """A router for models, the cheapest first, of which nothing is known yet: learnt from two others.

    The first stands for the weaker of those, the last for the stronger, the rest in even steps between. It
    promises nothing: records of the models themselves do.
    """
    with as_file(files("headrace.routing") / "default.npz") as path:
        known = load(path).estimator
    steps = np.linspace(0, 1, len(models), dtype=np.float32) if len(models) > 1 else np.ones(1, np.float32)
    mixture = np.stack([1 - steps, steps])
    links = (known.links.T @ mixture).T
    novelty = replace(known.novelty, prior=known.novelty.prior @ mixture)
    mixed = {name: getattr(known, name) @ mixture for name in ("duals", "weights", "means")}
    known = replace(known, models=tuple(models), links=links, novelty=novelty, held_out=None, **mixed)
    return Router(known)


def _estimator(models: tuple[str, ...], read: dict[str, NDArray[Any]]) -> Estimator:
    for name in _HALVES:
        read[name] = read[name].astype(np.float32)
    count, anchors = len(read["support"]), len(read["novelty_anchors"])
    shapes = _shapes(len(models), count, count)
    shapes |= {"novelty_anchors": (anchors,), "novelty_inverse": (anchors, anchors)}
    shapes |= {"novelty_prior": (len(models),)}
    tried = len(read["held_out_good"]) if "held_out_good" in read else None
    if tried is not None:
        shapes |= {f"held_out_{name}": (tried, len(models)) for name in ("good", "scores")}
    for name, shape in shapes.items():
        if read[name].shape != shape:
            raise ValueError(f"{name} has the shape {read[name].shape}, not {shape}")
    novelty = Novelty(**{name: read.pop(f"novelty_{name}") for name in ("anchors", "inverse", "prior")})
    if anchors and not 0 <= int(novelty.anchors.min()) <= int(novelty.anchors.max()) < count:
        raise ValueError("novelty_anchors lie outside the support")
    held_out = None
    if tried is not None:
        held_out = HeldOut(**{name: read.pop(f"held_out_{name}") for name in ("good", "scores")})
    return Estimator(models=models, novelty=novelty, held_out=held_out, **read)


def _shapes(models: int, support: int, seen: int) -> dict[str, tuple[int, ...]]:
    return {
        "centre": (CUES,),
        "scale": (CUES,),
        "support": (support, CUES),
        "duals": (support, models),
        "rarities": (2, BUCKETS),
        "weights": (2, BUCKETS, models),
        "means": (models,),
        "links": (models, 2),
        "seen": (seen,),
    }
