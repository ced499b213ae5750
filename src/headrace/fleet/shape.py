"""How many replicas a model has, and what each is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.errors import ConfigError
from headrace.fleet.state import Role

MOST_REPLICAS = 256
"""More on one host are a mistake of the user."""


@dataclass(frozen=True, slots=True)
class FleetShape:
    """Replicas by role. Raises ConfigError where nobody would compute prompts, or nobody tokens."""

    both: int = 1
    prefill: int = 0
    decode: int = 0

    def __post_init__(self) -> None:
        if self.count > MOST_REPLICAS:
            raise ConfigError(f"there can be {MOST_REPLICAS} replicas at the most, not {self.count}")
        if self.decode and not self.prefill + self.both:
            raise ConfigError("decode replicas need others that compute prompts: add --prefill 1")
        if self.prefill and not self.decode + self.both:
            raise ConfigError("prefill replicas need others that compute answers: add --decode 1")

    @property
    def count(self) -> int:
        return self.both + self.prefill + self.decode

    def roles(self) -> list[Role]:
        """The replicas' roles, one for each."""
        by_role: dict[Role, int] = {"both": self.both, "prefill": self.prefill, "decode": self.decode}
        return [role for role, count in by_role.items() for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes of the fleets of all models."""

    others: FleetShape = field(default_factory=FleetShape)
    by_model: Mapping[str, FleetShape] = field(default_factory=dict)

    @classmethod
    def parse(cls, replicas: str | None, prefill: int = 0, decode: int = 0) -> Shapes:
        """From the settings: `replicas` is a number, or NAME=NUMBER for some models, with commas between.

        Raises ConfigError that names the setting.
        """
        default = 0 if prefill or decode else 1
        others, by_model = default, {}
        for part in (replicas or "").split(","):
            name, equals, number = part.strip().rpartition("=")
            if not number and not name:
                continue
            count = _count(number)
            if equals:
                by_model[name.strip()] = FleetShape(count, prefill, decode)
            else:
                others = count
        return cls(FleetShape(others, prefill, decode), by_model)

    def with_model(self, model: str, replicas: int) -> Shapes:
        """The same, but for one model's replicas."""
        return Shapes(self.others, {**self.by_model, model: FleetShape(replicas)})

    def of(self, model: str) -> FleetShape:
        return self.by_model.get(model, self.others)


def _count(text: str) -> int:
    if not text.strip().isascii() or not text.strip().isdigit():
        raise ConfigError(
            f"replicas: expected a number, or NAME=NUMBER with commas between, not {text!r:.60}"
        )
    return int(text)
