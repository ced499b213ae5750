"""What the figures were measured on: the processor and its load, never a name or a path."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from pathlib import Path

EXTENSIONS = (
    *("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "sve"),
)
"""The instruction sets that matter to matrix products."""


def describe() -> dict[str, object]:
    """Model, cores and caches of the processor, its instruction sets, memory, and versions."""
    fields = _processor()
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return {
        "processor": fields.get("model name", platform.machine()),
        "family": fields.get("cpu family", ""),
        "model": fields.get("model", ""),
        "cores": len(os.sched_getaffinity(0)),
        "l3_cache": _l3(),
        "instruction_sets": [name for name in EXTENSIONS if name in flags],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
    }


def wait_until_calm(load: float, seconds: float) -> float:
    """Wait until the load is low enough or the time is up; the load then."""
    deadline = time.monotonic() + seconds
    while (now := os.getloadavg()[0]) >= load and time.monotonic() < deadline:
        print(f"peers: load {now:.2f}, waiting for {load}", file=sys.stderr, flush=True)
        time.sleep(15)
    return round(now, 2)


class Bystanders:
    """How much of the processor's time others take while something of ours runs."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._elsewhere = _busy_seconds() - _own_seconds()

    def share(self) -> float:
        """Their share since the beginning, 0 to 1 of all cores; what runs on below us counts as theirs."""
        elsewhere = _busy_seconds() - _own_seconds() - self._elsewhere
        wall = (time.monotonic() - self._start) * (os.cpu_count() or 1)
        return round(min(1.0, max(0.0, elsewhere / wall)), 3)


def _busy_seconds() -> float:
    """Time that all cores have spent on anything but waiting, and that the host has kept from them."""
    user, nice, system, _idle, _waiting, irq, soft_irq, steal = map(
        int, Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=9)[1:9]
    )
    return (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """Time that this process and the ended ones below it have used."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _processor() -> dict[str, str]:
    """The fields of /proc/cpuinfo, of the first core."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    return fields


def _l3() -> str:
    size = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
    return size.read_text(encoding="ascii").strip() if size.exists() else ""
