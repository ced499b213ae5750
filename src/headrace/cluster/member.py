"""The process of one worker on a node: `headrace worker --join`, told on standard input what it is to be.

No secret stands in its arguments or its environment, and it ends when the actor that started it does.
"""

from __future__ import annotations

import logging
import os
import sys
import threading

import msgspec

from headrace.cluster.messages import Member
from headrace.cluster.secret_file import secret_file
from headrace.errors import HeadraceError
from headrace.worker.join import JoinSettings, join_gateway


def main() -> None:
    """Ends with status 0 when it was told to leave, and 1 where it is of no use to the gateway."""
    logging.basicConfig(level=logging.INFO, format="headrace: %(message)s")
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        member = msgspec.json.decode(stdin.readline(), type=Member)
    threading.Thread(target=_end_with_actor, name="actor", daemon=True).start()
    joining = JoinSettings.of(
        member.gateway, secret_file(member.secret), None, member.role, member.drain_seconds
    )
    try:
        join_gateway(joining, member.settings)
    except HeadraceError as error:
        logging.error("%s", error)
        sys.exit(1)


def _end_with_actor() -> None:
    """Standard input ends when the process that holds its other end is gone, however it went."""
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
