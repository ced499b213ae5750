"""A stand-in for a worker that computes nothing: each step brings each running request one token, at once.

Started by `gateway_cost.py` in a real worker's place; it speaks a worker's messages on a worker's channel. It
is never further ahead of the client than a step, so it brings tokens as fast as gateway and client take them.
Until as many requests run as are to run together, each has its first token only.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from pathlib import Path

import msgspec

from headrace.backends.fingerprint import Fingerprint
from headrace.engine.stats import EngineStats
from headrace.worker.messages import (
    PROTOCOL_VERSION,
    Cancel,
    Drain,
    Drained,
    Events,
    Ping,
    Ready,
    Stats,
    Submit,
    TokenEvent,
)
from headrace.worker.settings import Launch
from headrace.worker.transport import Channel

CONTEXT = 1 << 24
"""Tokens: an answer that does not end while it is measured."""
_PAUSE_SECONDS = 0.0002
_TEXT, _TOKEN = " token", 11


def main() -> None:
    counter = mmap.mmap(os.open(Path(sys.argv[1]), os.O_RDONLY), 8, prot=mmap.PROT_READ)
    together = int(sys.argv[2])
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        launch = msgspec.json.decode(stdin.readline(), type=Launch)
    channel = Channel(launch.address, launch.identity)
    channel.send(
        Ready(
            version=PROTOCOL_VERSION,
            pid=os.getpid(),
            model=launch.settings.model,
            fingerprint=Fingerprint("none", "none", "none", "none"),
            context_length=CONTEXT,
            cache_blocks=1 << 20,
            block_tokens=16,
            cache_bytes=0,
        )
    )
    running: dict[str, int] = {}
    """Tokens that are left of each."""
    new: set[str] = set()
    """Without a first token."""
    sent = 0
    while True:
        for message in channel.received():
            match message:
                case Submit():
                    running[message.id] = message.max_tokens
                    new.add(message.id)
                case Cancel():
                    running.pop(message.id, None)
                    new.discard(message.id)
                case Ping():
                    channel.send(Stats(EngineStats(0, len(running), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)))
                case Drain():
                    channel.send(Drained())
                    channel.close()
                    return
        (received,) = struct.unpack("q", counter)
        step = running if len(running) >= together else new
        if not step:
            channel.wait()
        elif sent - received > len(running):
            time.sleep(_PAUSE_SECONDS)
        else:
            channel.send(Events([_event(request_id, running[request_id]) for request_id in step]))
            sent += len(step)
            for request_id in list(step):
                running[request_id] -= 1
                if not running[request_id]:
                    del running[request_id]
            new.clear()


def _event(request_id: str, left: int) -> TokenEvent:
    return TokenEvent(request_id, _TEXT, [_TOKEN], "length" if left == 1 else None)


if __name__ == "__main__":
    main()
