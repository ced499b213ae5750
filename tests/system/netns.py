"""Network namespaces with links between them that are slow and lose packets.

`tc netem` makes the links where the kernel has it. Where it has not, a process carries every packet from one
namespace's TUN device to the other's, late, or not at all.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN_WITHOUT_HEADER = 0x1001


def why_not() -> str:
    """Why there can be no such namespaces here; empty where there can be."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "there is no `ip` or no `tc` (the package iproute2)"
    name = f"probe{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        return "network namespaces cannot be made here"
    try:
        if not (_has_netem(name) or os.access("/dev/net/tun", os.W_OK)):
            return "the kernel has neither netem nor TUN devices"
    finally:
        _run("ip", "netns", "del", name)
    return ""


def enter(name: str) -> None:
    """Moves the calling thread into the namespace; what it opens from now on is there."""
    with Path("/run/netns", name).open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {name}")


class Star:
    """A namespace in the middle, and others that each have a link to it."""

    def __init__(self, middle: str, others: list[str]) -> None:
        self.middle, self.others = middle, others

    def address(self, other: str) -> str:
        """The middle's address on the link to the other."""
        return f"10.77.{self.others.index(other)}.1"

    def cut(self, other: str) -> None:
        _run("ip", "-n", other, "link", "set", "link0", "down")

    def mend(self, other: str) -> None:
        _run("ip", "-n", other, "link", "set", "link0", "up")


@contextmanager
def star(others: int, delay_ms: int, loss_percent: float) -> Iterator[Star]:
    """Each packet takes the delay, in each direction, or is lost."""
    middle = f"hr{os.getpid()}m"
    star = Star(middle, [f"hr{os.getpid()}w{i}" for i in range(others)])
    with ExitStack() as stack:
        for name in (middle, *star.others):
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "del", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        for number, other in enumerate(star.others):
            ends = (middle, f"link{number}"), (other, "link0")
            if _has_netem(other):
                _veth(*ends, delay_ms, loss_percent)
            else:
                stack.enter_context(_carried(*ends, delay_ms, loss_percent))
            for host, (namespace, device) in enumerate(ends, start=1):
                _run("ip", "-n", namespace, "addr", "add", f"10.77.{number}.{host}/24", "dev", device)
                _run("ip", "-n", namespace, "link", "set", device, "up")
        yield star


End = tuple[str, str]
"""Namespace and device."""


def _veth(one: End, other: End, delay_ms: int, loss_percent: float) -> None:
    _run(
        *("ip", "link", "add", one[1], "netns", one[0], "type", "veth"),
        *("peer", "name", other[1], "netns", other[0]),
    )
    for namespace, device in (one, other):
        _run(
            *("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "netem"),
            *("delay", f"{delay_ms}ms", "loss", f"{loss_percent}%"),
        )


@contextmanager
def _carried(one: End, other: End, delay_ms: int, loss_percent: float) -> Iterator[None]:
    ends = [*one, *other, str(delay_ms / 1000), str(loss_percent / 100)]
    with subprocess.Popen([sys.executable, __file__, *ends], stdout=subprocess.PIPE) as carrier:
        assert carrier.stdout is not None
        assert carrier.stdout.readline() == b"ready\n"
        yield
        carrier.kill()


def _carry(ends: list[int], delay: float, loss: float) -> None:
    """From each of two TUN devices to the other, for ever."""
    rng = random.Random(7)
    order = 0
    waiting: list[tuple[float, int, int, bytes]] = []
    for end in ends:
        os.set_blocking(end, False)
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select(ends, [], [], timeout)[0]:
            packet = os.read(end, 1 << 16)
            if rng.random() >= loss:
                order += 1
                target = ends[1 - ends.index(end)]
                heapq.heappush(waiting, (time.monotonic() + delay, order, target, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, target, packet = heapq.heappop(waiting)
            with suppress(OSError):  # the device is down, or full
                os.write(target, packet)


def _tun(namespace: str, device: str) -> int:
    enter(namespace)
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN_WITHOUT_HEADER))
    return tun


def _has_netem(namespace: str) -> bool:
    netem = ["tc", "-n", namespace, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    if subprocess.run(netem, capture_output=True).returncode:
        return False
    _run("tc", "-n", namespace, "qdisc", "del", "dev", "lo", "root")
    return True


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    devices = [_tun(*sys.argv[1:3]), _tun(*sys.argv[3:5])]
    print("ready", flush=True)
    _carry(devices, float(sys.argv[5]), float(sys.argv[6]))
