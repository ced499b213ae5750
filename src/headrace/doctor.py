"""`headrace doctor`: what the machine can do, what is missing, and what to do about it."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal

import click
import msgspec

from headrace.config import options
from headrace.errors import ConfigError, ModelFileError
from headrace.models.registry import DEFAULT_MODEL, models_folder, packed_folder
from headrace.worker.cache_size import default_bytes
from headrace.worker.host import free_memory, processor, usable_cpus

Status = Literal["ok", "warn", "missing"]

GIB = 2**30
LOW_MEMORY = 1 * GIB
"""Below this much free memory not even a small model and a useful cache fit."""
LOW_DISK = 1 * GIB
FEATURES = ("avx512_vnni", "avx512f", "avx2", "fma", "f16c", "neon", "asimd")
"""Processor features that kernels are written for, as /proc/cpuinfo spells them."""


class Check(msgspec.Struct, frozen=True):
    """One thing looked at. `missing` means that nothing can be served until it is cured."""

    name: str
    status: Status
    finding: str
    cure: str = ""


def examine(host: str = "127.0.0.1", port: int = 8000, *, verify: bool = False) -> list[Check]:
    """Look at everything on this machine; nothing outside it is contacted.

    `verify` reads all packed weights, which takes about a second for each GiB.
    """
    return [
        _python(),
        _processor(),
        _kernels(),
        _cores(),
        _memory(),
        _huge_pages(),
        _disk(models_folder()),
        _models(models_folder()),
        _packed(packed_folder(), verify=verify),
        _packages(),
        _port(host, port),
    ]


def can_serve(checks: list[Check]) -> bool:
    """Whether nothing that serving needs is missing."""
    return all(check.status != "missing" for check in checks)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--verify", is_flag=True, help="Read all packed weights, to find damaged ones.")
@options("host", "port")
def doctor(as_json: bool, verify: bool, host: str, port: int) -> None:
    """Say what this machine can do and what is missing."""
    checks = examine(host, port, verify=verify)
    if as_json:
        click.echo(json.dumps({"can_serve": can_serve(checks), "checks": msgspec.to_builtins(checks)}))
    else:
        for line in _lines(checks):
            click.echo(line)
    sys.exit(0 if can_serve(checks) else 1)


def _lines(checks: list[Check]) -> Iterator[str]:
    colors = {"ok": "green", "warn": "yellow", "missing": "red"}
    width = max(len(check.name) for check in checks)
    for check in checks:
        status = click.style(f"{check.status:<7}", fg=colors[check.status])
        yield f"{status}  {check.name:<{width}}  {check.finding}"
        if check.cure:
            yield f"{'':<{width + 11}}→ {check.cure}"


def _python() -> Check:
    version = platform.python_version()
    system = f"{platform.system()} {platform.machine()}"
    if sys.platform != "linux":
        return Check("python", "warn", f"{version} on {system}", "Linux is what headrace is tested on")
    return Check("python", "ok", f"{version} on {system}")


def _processor() -> Check:
    """The processor's name, and those of its features that kernels can use."""
    fields = processor()
    flags = set(fields.get("flags", fields.get("features", "")).split())
    found = [feature for feature in FEATURES if feature in flags]
    vectors = ", ".join(found) or "no vector features that kernels use"
    return Check("processor", "ok", f"{fields['model name']}; {vectors}")


def _kernels() -> Check:
    """The kernels that the native core would choose."""
    try:
        from headrace._native import available_isas
        from headrace.backends.cpu.backend import choose_isa
    except ImportError as error:
        cure = "build it: `make setup` in a checkout, or `pip install --force-reinstall headrace`"
        return Check("kernels", "missing", f"the native core cannot be loaded ({error})", cure)
    available = [isa for isa, _ in available_isas()]
    try:
        isa, _ = choose_isa()
    except ConfigError as error:
        return Check("kernels", "missing", str(error), "unset HEADRACE_ISA")
    finding = f"{isa} of {', '.join(available)}"
    if len(available) == 1:
        return Check("kernels", "warn", finding, "only the portable kernels run here, which are slow")
    return Check("kernels", "ok", finding)


def _cores() -> Check:
    usable, total = usable_cpus(), os.cpu_count() or 1
    finding = f"{usable} of {total} can be used"
    if usable < total:
        finding += " (affinity or a cgroup's quota)"
    return Check("cores", "ok", finding)


def _memory() -> Check:
    """Free memory as the kernel and control groups allow, and what of it the cache would take."""
    free = free_memory()
    finding = f"{free / GIB:.1f} GiB free; the cache takes up to {default_bytes(free) / GIB:.1f} GiB"
    if free < LOW_MEMORY:
        return Check("memory", "warn", finding, "end other programs, or raise the container's memory limit")
    return Check("memory", "ok", finding)


def _huge_pages() -> Check:
    """Transparent huge pages save the processor address look-ups when it streams the weights."""
    setting = _read("/sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", setting)
    if chosen and chosen.group(1) == "never":
        cure = "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        return Check("huge pages", "warn", "never: decode is slower", cure)
    return Check("huge pages", "ok", chosen.group(1) if chosen else "the kernel does not say")


def _disk(folder: Path) -> Check:
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(parent).free
    finding = f"{free / GIB:.1f} GiB free in {folder}"
    if not os.access(parent, os.W_OK):
        return Check("disk", "warn", f"{folder} cannot be written", "set HEADRACE_HOME to a folder of yours")
    if free < LOW_DISK:
        return Check("disk", "warn", finding, "free some, or set HEADRACE_HOME to a roomier place")
    return Check("disk", "ok", finding)


def _models(folder: Path) -> Check:
    files = sorted(folder.glob("*.gguf")) if folder.is_dir() else []
    if not files:
        cure = f"`headrace pull {DEFAULT_MODEL}`, or let the first `headrace serve` fetch it"
        return Check("models", "warn", f"none in {folder}", cure)
    return Check(
        "models", "ok", ", ".join(f"{path.name} ({path.stat().st_size / 1e6:.0f} MB)" for path in files)
    )


def _packed(folder: Path, *, verify: bool) -> Check:
    """Weights packed for the kernels: what they take, and whether they are whole."""
    try:
        from headrace.backends.cpu import packed_file
    except ImportError:
        return Check("packed weights", "ok", "not looked at without the native core")
    check = packed_file.verify if verify else packed_file.check
    files = sorted(folder.glob("*.packed")) if folder.is_dir() else []
    damaged = [fault for path in files if (fault := _fault(check, path)) is not None]
    finding = f"{len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.0f} MB in {folder}"
    if damaged:
        return Check("packed weights", "warn", "; ".join(damaged), "delete them: they are made again")
    return Check("packed weights", "ok", finding + (", all intact" if verify and files else ""))


def _fault(check: Callable[[Path], object], path: Path) -> str | None:
    try:
        check(path)
    except (ModelFileError, OSError) as error:
        return f"{path.name}: {error}"
    return None


def _packages() -> Check:
    """Versions of what headrace depends on."""
    try:
        requirements = metadata.requires("headrace") or []
    except metadata.PackageNotFoundError:
        return Check(
            "packages", "warn", "headrace itself is not installed", "`make setup`, or `pip install .`"
        )
    names = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in requirements if ";" not in line]
    versions = {name: _version(name) for name in names}
    absent = [name for name, version in versions.items() if version is None]
    if absent:
        return Check(
            "packages", "missing", f"not installed: {', '.join(absent)}", f"pip install {' '.join(absent)}"
        )
    return Check("packages", "ok", ", ".join(f"{name} {version}" for name, version in versions.items()))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _port(host: str, port: int) -> Check:
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        cure = "end what listens there, or serve with another --port"
        return Check("port", "warn", f"{host}:{port} cannot be had ({error.strerror or error})", cure)
    return Check("port", "ok", f"{host}:{port} is free")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
