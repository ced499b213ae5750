"""One line about each request when it ends: figures only, never what was asked or answered."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime, timezone

from headrace.gateway.run import Run


@dataclass(slots=True)
class RequestRecord:
    """What is told of a request, filled in as it gets on."""

    path: str
    arrived: float = field(default_factory=time.monotonic)
    """On time.monotonic's clock."""
    id: str = "-"
    """The answer's; "-" where the request was refused before it had one."""
    run: Run | None = None

    def line(self, status: int) -> str:
        """The request's line, now that it has ended. Seconds since it arrived; "-" for no first token."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        prompt = cached = output = 0
        ttft = "-"
        if self.run is not None:
            usage = self.run.usage()
            prompt, output = usage.prompt_tokens, usage.completion_tokens
            cached = usage.prompt_tokens_details.cached_tokens
            if self.run.ttft is not None:
                ttft = f"{self.run.ttft:.3f}"
        duration = time.monotonic() - self.arrived
        return (
            f"{now} {self.id} {self.path} {status} prompt={prompt} cached={cached} output={output} "
            f"ttft={ttft} duration={duration:.3f}"
        )
