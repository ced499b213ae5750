"""Ports for servers that end and begin again, or are looked for before they listen."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

_GIVEN_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000


def free_port() -> int:
    """A port of this machine that nobody has, nor gets from the system without asking for it by number."""
    first = int(_GIVEN_OUT.read_text(encoding="ascii").split()[0]) if _GIVEN_OUT.exists() else 32_768
    draw = random.SystemRandom()  # tests that run beside this one may have begun with its seed
    for _ in range(100):
        port = draw.randrange(_LOWEST, first)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("there is no free port")
