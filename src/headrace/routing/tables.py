"""The fleet as data: the tables [models], [policies], [budgets] and [routing] of headrace.toml."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from headrace.errors import ConfigError
from headrace.routing.wants import Milliseconds, Money, Share, Speed, Wants

AUTO = "auto"
"""The policy that exists by default where there are two models or more."""
KINDS = ("cheapest", "best-in-budget", "cascade")
GRADERS = ("judge", "agreement")

_NAME = re.compile(r"[A-Za-z0-9._:/@+-]{1,128}", re.ASCII)
"""Names of models, policies and tiers: they stand in headers and metrics."""
_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
_ENDPOINT = re.compile(r"/(chat/completions|completions|messages|embeddings|responses)/?$")
"""What is asked below an API's base."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_KEYS = ("key", "api_key", "apikey", "token", "api_token", "secret", "password", "authorization", "bearer")

Ability = Literal["tools", "vision", "json", "logprobs", "completions"]
Api = Literal["openai", "anthropic"]
_WORDS = {"abilities": get_args(Ability), "api": get_args(Api)}
_NO_WORD = re.compile(r"Invalid enum value '(?P<word>.*)'", re.DOTALL)
Price = Annotated[float, Meta(ge=0, le=1e9)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]
Count = Annotated[int, Meta(ge=1, le=2**40)]
IMAGE_TOKENS = 50_000
"""Of an image, at most: gpt-4o-mini bills 48169 for a large one, others a tenth of that or less."""
AnyStruct = TypeVar("AnyStruct", bound=Struct)


class ModelTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model: remote where it has a URL, else local. `read_tables` fills in what defaults to a name."""

    tier: str = ""
    """Shown in answers, reports and metrics; default: "local" or "remote"."""
    estimate_as: str = ""
    """Whose estimate of quality it has; default: the table's name."""
    context_length: Count | None = None
    """Default of a local one: the model's. Of a remote one: no limit is known."""
    abilities: list[Ability] | None = None
    """Default of a local one: the model's. Of a remote one: none."""

    cost_per_hour: Price = 0.0
    """Of all its workers together."""
    source: str = ""
    """Name or path of the model; default: the table's name."""
    replicas: Count | None = None
    """Default: as the setting `replicas` says."""

    url: str | None = None
    """With the API's version, such as https://api.openai.com/v1."""
    api: Api = "openai"
    upstream: str = ""
    """What it is called there; default: the table's name."""
    key_env: str | None = None
    """Name of the environment variable that holds the key."""
    input_price: Price | None = None
    """Per million tokens, as the two others."""
    cached_input_price: Price | None = None
    """Default: as `input_price`."""
    output_price: Price | None = None
    max_output: Count | None = None
    image_tokens: Annotated[int, Meta(ge=1, le=IMAGE_TOKENS)] = IMAGE_TOKENS
    """Of an image there, at most."""
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    concurrency: Count | None = None
    connect_timeout: Seconds = 5.0
    first_token_timeout: Seconds = 60.0
    idle_timeout: Seconds = 30.0

    @property
    def remote(self) -> bool:
        """Whether it is asked over HTTP, at `url`."""
        return self.url is not None


LOCAL_ONLY = ("cost_per_hour", "source", "replicas")
REMOTE_ONLY = (
    "api", "upstream", "key_env", "input_price", "cached_input_price", "output_price", "max_output",
    "image_tokens", "requests_per_minute", "tokens_per_minute", "concurrency",
    "connect_timeout", "first_token_timeout", "idle_timeout",
)  # fmt: skip


class PolicyTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One policy, and what requests want that do not say."""

    kind: str = "cheapest"
    """One of KINDS, or a class of the user's, "package.module:Class"."""
    models: Annotated[list[str], Meta(min_length=1)] | None = None
    """Default, filled in by `read_tables`: all of [models]."""
    quality: Share = 0.95
    """Share of the expected quality of the best of `models`."""
    max_first_token_ms: Milliseconds | None = None
    min_tokens_per_second: Speed | None = None
    max_cost: Money | None = None
    hedge: Annotated[float, Meta(ge=1, le=1000)] | None = None
    """Start the next model, too, where the first token takes so many times what was predicted."""
    accept: Share | None = None
    """Of a cascade: the chance from which on an answer is accepted; default: from the quality asked for."""
    pace: bool = False
    """Of best-in-budget: the day's budgets are spread over the day, by cheaper models where need be."""
    options: dict[str, Any] = {}
    """For a class of the user's."""

    @property
    def defaults(self) -> Wants:
        """What a request wants that says nothing."""
        first_token = None if self.max_first_token_ms is None else self.max_first_token_ms / 1000
        return Wants(self.quality, first_token, self.min_tokens_per_second, self.max_cost)


class BudgetTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most that may be spent, in the currency of the prices; None: no limit."""

    per_request: Money | None = None
    per_day: Money | None = None
    per_key_day: Money | None = None
    keys: dict[str, Money] = {}
    """Per day, by the key's name; beats `per_key_day`."""


class RoutingTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How quality is estimated and watched."""

    router: str | None = None
    """File of `headrace route train`; default: what can be said on the first day."""
    confidence: str | None = None
    """File of what cascades accept answers by; default: how likely its tokens were to the model."""
    shadow: Annotated[float, Meta(ge=0, le=1)] = 0.02
    """Share of the requests that are scored in the shadow."""
    exploration_budget: Annotated[float, Meta(ge=0, le=1)] = 0.05
    """At most this share of what is spent goes to calls in the shadow."""
    grader: str = "judge"
    """One of GRADERS, or a class of the user's."""
    keep_prompts: bool = False
    """Whether the store keeps prompts, for training."""
    database: str | None = None
    """Default: routing.sqlite in the data directory."""


class FleetTables(Struct, frozen=True, kw_only=True):
    """All four, checked against each other. `models` in the file's order."""

    models: dict[str, ModelTable] = {}
    policies: dict[str, PolicyTable] = {}
    budgets: BudgetTable = BudgetTable()
    routing: RoutingTable = RoutingTable()


def read_tables(content: Mapping[str, object], file: Path) -> FleetTables:
    """The tables of a headrace.toml; `content` may have any of the four, under "models" and so on.

    Keys may be written with - or _. Raises ConfigError that names the file, the table and the key; never a
    value that could be a secret.
    """
    models = {
        name: _model(name, table, f"{file}: [models.{name}]")
        for name, table in _named(content.get("models", {}), f"{file}: [models]").items()
    }
    policies = {
        name: _policy(table, models, f"{file}: [policies.{name}]")
        for name, table in _named(content.get("policies", {}), f"{file}: [policies]").items()
    }
    if len(models) > 1:
        policies.setdefault(AUTO, PolicyTable(models=list(models)))
    for name in policies.keys() & models.keys():
        raise ConfigError(f"{file}: '{name}' names a model and a policy; a request could mean either")
    routing = _read(content.get("routing", {}), RoutingTable, f"{file}: [routing]")
    _one_of(routing.grader, GRADERS, f"{file}: [routing] grader")
    budgets = _read(content.get("budgets", {}), BudgetTable, f"{file}: [budgets]")
    for name, policy in policies.items():
        if policy.pace and budgets.per_day is None and budgets.per_key_day is None and not budgets.keys:
            raise ConfigError(
                f"{file}: [policies.{name}] pace: there is no budget of a day to spread; set per-day, "
                "per-key-day or keys in [budgets]"
            )
    return FleetTables(models=models, policies=policies, budgets=budgets, routing=routing)


def _model(name: str, table: object, where: str) -> ModelTable:
    model = _read(table, ModelTable, where)
    given = set(_keys(table, where))
    kind, other = ("remote", LOCAL_ONLY) if model.remote else ("local", REMOTE_ONLY)
    for key in other:
        if key in given:
            reason = "has a `url`" if model.remote else "has no `url`"
            raise ConfigError(f"{where} {key}: not for a {kind} model, and this one {reason}")
    for key, value in (("tier", model.tier or kind), ("estimate_as", model.estimate_as or name)):
        _sane(value, f"{where} {key}")
    model = msgspec.structs.replace(
        model, tier=model.tier or kind, estimate_as=model.estimate_as or name, source=model.source or name
    )
    return _remote(name, model, where) if model.url is not None else model


def _remote(name: str, model: ModelTable, where: str) -> ModelTable:
    assert model.url is not None
    _check_url(model.url, f"{where} url")
    if model.key_env is not None and not _VARIABLE.fullmatch(model.key_env):
        raise ConfigError(f"{where} key_env: expected the name of an environment variable, not a key itself")
    if model.input_price is None or model.output_price is None:
        missing = "input_price" if model.input_price is None else "output_price"
        raise ConfigError(
            f"{where} {missing}: a remote model needs its prices per million tokens; 0 if it is free"
        )
    cached = model.input_price if model.cached_input_price is None else model.cached_input_price
    return msgspec.structs.replace(
        model,
        upstream=model.upstream or name,
        cached_input_price=cached,
        source="",
        abilities=model.abilities or [],
    )


def _check_url(url: str, where: str) -> None:
    try:
        parts = urlsplit(url)
        sane = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sane = False
    if not sane or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"{where}: expected a URL that begins with https:// or http://")
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError(
            f"{where}: expected no user, password or query in it; a key goes into key_env's variable"
        )
    if (ending := _ENDPOINT.search(parts.path)) is not None:
        raise ConfigError(
            f"{where}: expected an API's base, such as https://a.example/v1, without {ending[0]}"
        )


def _policy(table: object, models: Mapping[str, ModelTable], where: str) -> PolicyTable:
    policy = _read(table, PolicyTable, where)
    _one_of(policy.kind, KINDS, f"{where} kind")
    if policy.accept is not None and policy.kind in ("cheapest", "best-in-budget"):
        raise ConfigError(f"{where} accept: only a cascade accepts answers by it, and this is {policy.kind}")
    if policy.pace and policy.kind in ("cheapest", "cascade"):
        raise ConfigError(f"{where} pace: only best-in-budget keeps one, and this is {policy.kind}")
    if policy.options and policy.kind in KINDS:
        raise ConfigError(f"{where} options: only for a class of your own, and this is {policy.kind}")
    for position, name in enumerate(policy.models or ()):
        if name not in models:
            raise ConfigError(f"{where} models: there is no [models.{name:.128}]{_near(name, models)}")
        if name in (policy.models or ())[:position]:
            raise ConfigError(f"{where} models: '{name}' stands there twice")
    if not models:
        raise ConfigError(f"{where}: a policy needs tables [models.NAME] to choose from")
    return msgspec.structs.replace(policy, models=policy.models or list(models))


def _named(tables: object, where: str) -> Mapping[str, object]:
    """Tables by name."""
    if not isinstance(tables, Mapping):
        raise ConfigError(f"{where}: expected tables {where.rpartition(' ')[2][:-1]}.NAME]")
    for name in tables:
        _sane(name, where)
    return tables


def _sane(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: a name has up to 128 letters, digits and any of . _ : / @ + -, not {name!r:.100}"
        )


def _one_of(value: str, known: Sequence[str], where: str) -> None:
    if value not in known and not _CLASS.fullmatch(value):
        raise ConfigError(
            f'{where}: expected {", ".join(known)} or a class as "package.module:Class", not {value!r:.100}'
            + _near(value, known)
        )


def _read(table: object, kind: type[AnyStruct], where: str) -> AnyStruct:
    content = _keys(table, where)
    known = kind.__struct_fields__
    for key in content:
        if key in known:
            continue
        if key in _KEYS:
            raise ConfigError(
                f"{where}: no key may stand in this file; put it into an environment variable, and its "
                "name into key_env"
            )
        if isinstance(content[key], Mapping):
            raise ConfigError(
                f"{where}: there is no table '{key:.100}' in it; a name with dots needs quotes, "
                'such as [models."a.b"]'
            )
        raise ConfigError(
            f"{where}: there is no '{key:.100}'{_near(key, known)}; there are {', '.join(known)}"
        )
    _check_finite(content, where)
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        told, _, path = str(error).partition(" - at `$")
        words = _WORDS.get(path.strip(".`").partition("[")[0])
        if words is not None and (wrong := _NO_WORD.fullmatch(told)) is not None:
            told = f"expected {', '.join(words)}, not {wrong['word']!r:.100}{_near(wrong['word'], words)}"
        raise ConfigError(f"{where} {path.strip('.`')}: {told[:1].lower()}{told[1:]}") from None


def _keys(table: object, where: str) -> dict[str, object]:
    """A table with _ in its keys."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: expected a table, not {table!r:.100}")
    content: dict[str, object] = {}
    for key, value in table.items():
        name = str(key).replace("-", "_")
        if name in content:
            raise ConfigError(f"{where} {name}: stands there twice, with - and with _")
        content[name] = value
    return content


def _check_finite(value: object, where: str) -> None:
    if isinstance(value, Mapping):
        for key, each in value.items():
            _check_finite(each, f"{where} {key}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: expected a finite number, not {value}")


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""
