"""What an operator sets besides the models: who may ask, how clients connect, what is told of requests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ConfigError
from headrace.gateway.bodies import BODIES_BYTES
from headrace.gateway.callers import Callers
from headrace.gateway.connections import ConnectionLimits
from headrace.gateway.keys import environment_key
from headrace.gateway.request_log import LogFormat, Observer, log_requests
from headrace.gateway.server import ServerOptions, Tls

KEY_VARIABLE = "HEADRACE_API_KEY"
_OTLP_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """As the command line, the environment or headrace.toml has them."""

    api_keys: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    cors_origin: str | None = None
    """Origins with commas between, or "*"."""
    request_timeout: float | None = None
    write_timeout: float = 60.0
    max_connections: int = 4096
    max_bodies_mib: int = BODIES_BYTES // 2**20
    log_format: LogFormat = "text"
    log_prompts: bool = False
    otlp_endpoint: str | None = None

    def callers(self) -> Callers:
        """Who may ask. Raises ConfigError where the keys file or the environment's key is wrong."""
        key = os.environ.get(KEY_VARIABLE)
        return Callers(self.api_keys, environment_key(key) if key else None)

    def server_options(self) -> ServerOptions:
        """How clients may connect. Raises ConfigError where a TLS file is wrong."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls-cert and tls-key go together: give both or neither")
        tls = None
        if self.tls_cert is not None and self.tls_key is not None:
            tls = Tls(self.tls_cert, self.tls_key)
            tls.load()
        origins = [origin.strip().rstrip("/") for origin in (self.cors_origin or "").split(",")]
        limits = ConnectionLimits(connections=self.max_connections, write_seconds=self.write_timeout)
        return ServerOptions(limits, [origin for origin in origins if origin], tls)

    @contextmanager
    def observers(self, log: bool, tell: Callable[[str], None]) -> Iterator[Sequence[Observer]]:
        """Who is told of requests; `log` where lines are wanted. What is left to send is sent at the end."""
        found: list[Observer] = []
        if log or self.log_prompts:
            found.append(
                log_requests(_write if self.log_format == "json" else tell, self.log_format, self.log_prompts)
            )
        if self.otlp_endpoint is None and not any(map(os.environ.get, _OTLP_VARIABLES)):
            yield found
            return
        from headrace.gateway.telemetry import Telemetry

        telemetry = Telemetry(self.otlp_endpoint)
        found.append(telemetry.observe)
        try:
            yield found
        finally:
            telemetry.close()


def _write(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
