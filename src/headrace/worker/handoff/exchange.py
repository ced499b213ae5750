"""Both sides of a worker's handoffs: the prompts it computes for others, and those others compute for it."""

from __future__ import annotations

from headrace.worker.handoff.inbox import Inbox
from headrace.worker.handoff.outbox import Outbox
from headrace.worker.loader import LoadedModel
from headrace.worker.loans import Loans


class Exchange:
    """An outbox and an inbox over the cache of a loaded model."""

    def __init__(self, loaded: LoadedModel, loans: Loans, address: str, secret: bytes = b"") -> None:
        """`address` is where this worker gives out blocks. Raises TransferError where that cannot be."""
        view, digest = loaded.backend.block_view, loaded.fingerprint.digest()
        self.outbox = Outbox(address, view, digest, loans.export_ended, secret)
        sizes = [group.block_bytes for group in loaded.backend.cache_spec.groups]
        self.inbox = Inbox(view, sizes, digest, loans, secret)

    def close(self) -> None:
        """Gives out nothing any more."""
        self.outbox.close()
