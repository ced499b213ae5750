"""Two network namespaces joined by a virtual cable: a network to measure on, within one machine."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from headrace.errors import ConfigError


class Host(NamedTuple):
    """One end: how a command is run there, and the address by which the other end reaches it."""

    command: tuple[str, ...]
    address: str


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Makes them, and removes them after. Raises ConfigError where the system does not let us."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise ConfigError("network namespaces need root and the command `ip` (package iproute2)")
    tag = secrets.token_hex(3)
    names = [f"headrace-{tag}-{end}" for end in "ab"]
    hosts = []
    try:
        for name in names:
            _ip("netns", "add", name)
        cable = [f"hr{tag}{end}" for end in "ab"]
        _ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
        for number, (name, end) in enumerate(zip(names, cable, strict=True), 1):
            address = f"10.231.77.{number}"
            _ip("link", "set", end, "netns", name)
            _ip("-n", name, "address", "add", f"{address}/24", "dev", end)
            for device in ("lo", end):
                _ip("-n", name, "link", "set", device, "up")
            hosts.append(Host(("ip", "netns", "exec", name), address))
        yield hosts[0], hosts[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"cannot make network namespaces: {done.stderr.strip()}")
