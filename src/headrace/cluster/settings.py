"""How many workers a cluster is asked for, and what each takes of a node."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.cluster.messages import Pool
from headrace.cluster.secret_file import secret_file
from headrace.errors import ConfigError
from headrace.worker.secret import new_secret, read_keys
from headrace.worker.settings import WorkerSettings

_CPUS = ("CPU", "GPU", "num_cpus", "num_gpus")


@dataclass(frozen=True, slots=True)
class Resource:
    """What Ray must find on a node for a worker, beside CPUs."""

    tier: str
    """A model's name or a role, of whose workers alone it is asked; empty: of all."""
    name: str
    amount: float


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Where the cluster is, and the limits between which it is used."""

    secret: str = field(repr=False)
    """By which workers join."""
    address: str = "auto"
    """Of Ray: "auto" is the cluster that this machine belongs to, "local" a new one of this machine alone."""
    least: int = 1
    """Workers of each model."""
    most: int = 1
    load: float = 16.0
    """Requests at a time for each worker, at which scaling aims."""
    down_seconds: float = 60.0
    """Fewer workers must have been enough for so long before one is let go."""
    prefill: int = 0
    """Workers of this role, instead of `least` to `most` that do everything."""
    decode: int = 0
    resources: Sequence[Resource] = ()

    @classmethod
    def of(
        cls,
        file: Path | None,
        replicas: str | None,
        roles: tuple[int, int],
        *,
        cluster: str | None,
        ray_address: str,
        ray_resources: str | None,
        min_workers: int,
        max_workers: int | None,
        worker_load: float,
        scale_down_seconds: float,
    ) -> ClusterSettings | None:
        """From the settings; None without a cluster. The secret is a new one where no file holds one.

        `replicas` must not be set, `roles` are the workers of prefill and decode. Raises ConfigError that
        names the setting that is wrong, or says that Ray is not installed.
        """
        if cluster is None:
            return None
        if importlib.util.find_spec("ray") is None:
            raise ConfigError("--cluster ray needs Ray, which is not installed: pip install 'headrace[ray]'")
        if replicas is not None:
            raise ConfigError("--cluster starts no --replicas: --min-workers and --max-workers say how many")
        most = min_workers if max_workers is None else max_workers
        if most < min_workers:
            raise ConfigError(f"--max-workers must be at least --min-workers ({min_workers}), not {most}")
        prefill, decode = roles
        if bool(prefill) != bool(decode):
            raise ConfigError("with --cluster, --prefill and --decode go together: give both or neither")
        if prefill and max_workers is not None:
            raise ConfigError("--max-workers scales workers of no role: leave out --prefill and --decode")
        return cls(
            secret=_secret(file),
            address=ray_address,
            least=min_workers,
            most=most,
            load=worker_load,
            down_seconds=scale_down_seconds,
            prefill=prefill,
            decode=decode,
            resources=parse_resources(ray_resources),
        )

    @property
    def listen(self) -> str:
        """HOST:PORT where its workers join, unless the user has named one: any free port."""
        return "127.0.0.1:0" if self.address == "local" else "0.0.0.0:0"

    def secret_file(self) -> Path:
        """The secret for what reads it from a file."""
        return secret_file(self.secret)

    def pools(self, model: str, worker: WorkerSettings) -> list[Pool]:
        """The model's workers. Raises ConfigError where nobody said how many CPUs each of them takes."""
        if worker.threads is None:
            raise ConfigError("--cluster needs --threads: so many CPUs of a node each worker takes")
        counts: dict[Literal["both", "prefill", "decode"], tuple[int, int]] = {
            "both": (0, 0) if self.prefill else (self.least, self.most),
            "prefill": (self.prefill, self.prefill),
            "decode": (self.decode, self.decode),
        }
        return [
            Pool(
                model=model,
                settings=worker,
                role=role,
                least=least,
                most=most,
                cpus=worker.threads,
                resources={r.name: r.amount for r in self.resources if r.tier in ("", model, role)},
            )
            for role, (least, most) in counts.items()
            if most
        ]


def _secret(file: Path | None) -> str:
    if file is None:
        return new_secret()
    read_keys(file)  # raises where it is not what it should be
    return file.read_text(encoding="utf-8").strip()


def parse_resources(text: str | None) -> list[Resource]:
    """`[TIER:]NAME=AMOUNT` with commas between, the more special ones last. Raises ConfigError."""
    found = []
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        left, equals, number = part.rpartition("=")
        tier, _, name = left.rpartition(":")
        try:
            amount = float(number)
        except ValueError:
            amount = math.nan
        if not (equals and name and math.isfinite(amount) and amount > 0):
            raise ConfigError(
                "--ray-resources: expected NAME=AMOUNT, MODEL:NAME=AMOUNT or ROLE:NAME=AMOUNT, with commas "
                f"between, not {part!r:.60}"
            )
        if name in _CPUS:
            raise ConfigError(f"--ray-resources: {name} is not to be set; the CPUs follow from --threads")
        found.append(Resource(tier.strip(), name.strip(), amount))
    return sorted(found, key=lambda resource: resource.tier != "")
