"""A model that was chosen, and that a limit keeps from being asked when its turn comes."""

from __future__ import annotations

from headrace.gateway.errors import UnavailableError
from headrace.gateway.routed.member import Refusal
from headrace.routing.candidate import refusal_status


class NotNowError(UnavailableError):
    """A limit was met since the decision; another model may answer."""

    elsewhere = True

    def __init__(self, name: str, refusal: Refusal):
        _, status, code = refusal_status(refusal.why)
        super().__init__(
            f"The model '{name}' cannot answer now: {refusal.why}.",
            status=status,
            code=code,
            retry_after=max(1, round(refusal.wait)),
        )
