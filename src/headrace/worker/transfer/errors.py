"""What can go wrong between two workers. Whoever catches a TransferError computes the blocks itself."""

from __future__ import annotations

from headrace.errors import HeadraceError


class TransferError(HeadraceError):
    """Blocks could not be moved. The connection is of no more use, the blocks' content is undefined."""


class PeerGoneError(TransferError):
    """The other end closed the connection, died, or cannot be reached; or this end called `abort`."""


class TransferTimeoutError(TransferError):
    """The other end is there, but nothing moved for as long as was allowed."""


class ChecksumError(TransferError):
    """What arrived is not what was sent."""


class AuthenticationError(TransferError):
    """The other end does not know the secret, or runs as another user."""


class ProtocolError(TransferError):
    """The other end is no transfer peer, speaks another version, or breaks the rules of a frame."""
