"""What this machine lends the process: CPUs and memory, as affinity masks and control groups limit them."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")

_UNLIMITED = 1 << 60
"""cgroup v1 says "no limit" with a number close to 2**63."""


def usable_cpus(affinity: int | None = None, proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """CPUs that can be kept busy without being throttled: the affinity mask's, within the cgroup's quota.

    Args:
        affinity: how many CPUs the process may be scheduled on; asks the kernel where None.
        proc: where procfs is mounted.
        cgroups: where the control groups are mounted.
    """
    cpus = _affinity() if affinity is None else affinity
    return max(1, min([cpus, *(int(quota) for quota, _ in _quotas(proc, cgroups))]))


@dataclass(frozen=True, slots=True)
class CoreGroup:
    """The cores that the process may keep busy, numbered so that processes which share them agree."""

    name: str
    """Empty for the host's own CPUs; else it stands for the control group whose quota allows fewer."""
    cores: list[int]


def core_group(
    affinity: Iterable[int] | None = None, proc: Path = PROC, cgroups: Path = CGROUPS
) -> CoreGroup:
    """The CPUs of the affinity mask; under a smaller quota of a control group as many cores of that group."""
    cpus = sorted(_affinity_mask() if affinity is None else affinity)
    quota, group = min(_quotas(proc, cgroups), default=(float(len(cpus)), cgroups))
    if int(quota) >= len(cpus):
        return CoreGroup("", cpus)
    return CoreGroup(f"-{group.stat().st_ino}", list(range(max(1, int(quota)))))


def free_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Bytes that can be taken without swapping and without meeting a cgroup's limit."""
    rooms = [*_v2_memory(proc, cgroups), *_v1_memory(proc, cgroups)]
    return max(0, min([_mem_available(proc), *rooms]))


def processor(proc: Path = PROC) -> dict[str, str]:
    """What is told of the first processor, by its keys in small letters, "model name" in any case."""
    fields = dict[str, str]()
    for line in _read(proc / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())
    fields.setdefault("model name", platform.processor() or platform.machine())
    return fields


def _affinity() -> int:
    return len(_affinity_mask())


def _affinity_mask() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _quotas(proc: Path, cgroups: Path) -> Iterator[tuple[float, Path]]:
    """How many CPUs each limiting control group may keep busy, and its folder."""
    yield from _v2_quotas(proc, cgroups)
    yield from _v1_quotas(proc, cgroups)


def _mem_available(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OSError(f"{proc / 'meminfo'} has no MemAvailable")


def _v2_quotas(proc: Path, cgroups: Path) -> Iterator[tuple[float, Path]]:
    for group in _groups(proc, cgroups, controller=None):
        fields = _read(group / "cpu.max").split()
        if len(fields) == 2 and fields[0] != "max":
            yield int(fields[0]) / int(fields[1]), group


def _v1_quotas(proc: Path, cgroups: Path) -> Iterator[tuple[float, Path]]:
    for group in _groups(proc, cgroups, controller="cpu"):
        quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            yield quota / period, group


def _v2_memory(proc: Path, cgroups: Path) -> Iterator[int]:
    for group in _groups(proc, cgroups, controller=None):
        limit, used = _number(group / "memory.max"), _number(group / "memory.current")
        if limit is not None and used is not None:
            yield limit - used + _reclaimable(group, "inactive_file")


def _v1_memory(proc: Path, cgroups: Path) -> Iterator[int]:
    for group in _groups(proc, cgroups, controller="memory"):
        limit = _number(group / "memory.limit_in_bytes")
        used = _number(group / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _UNLIMITED:
            yield limit - used + _reclaimable(group, "total_inactive_file")


def _reclaimable(group: Path, key: str) -> int:
    """Page cache counts as used memory, yet the kernel gives it up before it refuses a process."""
    for line in _read(group / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0


def _groups(proc: Path, cgroups: Path, controller: str | None) -> Iterator[Path]:
    """The process's group and its ancestors, all of which limit it; `controller` None is the v2 hierarchy.

    In a container the path that procfs tells is often the host's and not mounted here: then the mount's
    root is the container's own group, which the walk up reaches in any case.
    """
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if (controllers == "") if controller is None else (controller in controllers.split(",")):
            for root in _mounts(cgroups, controllers):
                group = root / path.lstrip("/")
                while group != root:
                    yield group
                    group = group.parent
                yield root
            return


def _mounts(cgroups: Path, controllers: str) -> Iterator[Path]:
    if controllers:
        # "cpu,cpuacct" is mounted under that name, with links from its parts.
        yield cgroups / controllers
    else:
        yield cgroups
        yield cgroups / "unified"


def _read(path: Path) -> str:
    """The file's text, empty where there is none or it may not be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None
