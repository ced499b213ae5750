"""Settings by name: a flag beats the environment, which beats headrace.toml, which beats the default.

One table says what every setting means; the command line takes its options, the environment its variables and
the file its keys from there.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from headrace.errors import ConfigError
from headrace.option_types import FiniteNumber, WholeNumber

if TYPE_CHECKING:
    from headrace.routing.tables import FleetTables

FILE = "headrace.toml"
_TABLES = ("models", "policies", "budgets", "routing")
"""Of the file: what is no setting but a list of things with names."""
_LISTED_TABLES = "[models.NAME], [policies.NAME], [budgets], [routing]"
_OTHER_VARIABLES = ("HEADRACE_API_KEY", "HEADRACE_CONFIG", "HEADRACE_HOME", "HEADRACE_ISA", "HEADRACE_URL")
"""Variables that are read besides those of SETTINGS."""
MAX_THREADS = 1024
"""More are a mistake of the user, and more than a system may give."""

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting; its flag, variable and key follow from its name in the table."""

    type: Any
    """What click converts the value to."""
    help: str
    default: object = None
    flags: str = ""
    """Where the flag is not just the name behind two dashes; several with blanks between."""


_COUNT = WholeNumber(min=1)
_SIZE = FiniteNumber(min=0, min_open=True)

SETTINGS: dict[str, Setting] = {
    "model": Setting(
        str,
        "Name of a model, or path of a GGUF file; headrace serve takes several, with commas between.",
        "smollm2-135m",
    ),
    "load_on_demand": Setting(
        bool,
        "Serve every model that `headrace list` shows, loaded at its first use; let clients pull more.",
        False,
        flags="--load-on-demand/--no-load-on-demand",
    ),
    "memory_gib": Setting(
        _SIZE, "For the weights and KV caches of all models. [default: what is free at the start]"
    ),
    "keep_alive": Setting(
        FiniteNumber(),
        "Seconds that a model which was loaded on demand stays after its last use; negative: for good.",
        300.0,
    ),
    "data_dir": Setting(
        click.Path(file_okay=False, path_type=Path),
        "Folder of uploaded files and batches. [default: data, in HEADRACE_HOME or ~/.cache/headrace]",
    ),
    "host": Setting(str, "Address to listen on.", "127.0.0.1"),
    "port": Setting(WholeNumber(0, 65535), "Port to listen on; 0 takes a free one.", 8000),
    "replicas": Setting(
        str, "Workers of each model, such as 2; or NAME=2 for one model, with commas between. [default: 1]"
    ),
    "prefill": Setting(WholeNumber(min=0), "Workers that only compute prompts, and hand them on.", 0),
    "decode": Setting(WholeNumber(min=0), "Workers that only compute answers to such prompts.", 0),
    "ttft_limit_ms": Setting(
        _SIZE, "Move workers between prefill and decode so that 95% have their first token in time."
    ),
    "tpot_limit_ms": Setting(_SIZE, "The same, for the mean time of each further token."),
    "listen_workers": Setting(
        str, "HOST:PORT where workers of other hosts join; needs --secret-file. [default: nowhere]"
    ),
    "worker_secret_file": Setting(
        click.Path(dir_okay=False, path_type=Path),
        "File of the secret that server and workers share (`headrace worker secret`).",
        flags="--secret-file --worker-secret-file",
    ),
    "worker_heartbeat": Setting(
        _SIZE, "Seconds between signs of life of joined workers; without five in turn one is lost.", 1.0
    ),
    "cluster": Setting(
        click.Choice(["ray"]), "Start the workers on a cluster, instead of --replicas (extra: ray)."
    ),
    "ray_address": Setting(
        str, "auto: this machine's cluster; local: a new one of this machine alone; or HOST:PORT.", "auto"
    ),
    "ray_resources": Setting(
        str,
        "Custom resources of Ray that each worker takes: NAME=AMOUNT, or MODEL:NAME=AMOUNT or "
        "ROLE:NAME=AMOUNT, with commas between.",
    ),
    "min_workers": Setting(_COUNT, "Least workers of each model on the cluster.", 1),
    "max_workers": Setting(_COUNT, "Most workers of each model on the cluster. [default: as the least]"),
    "worker_load": Setting(_SIZE, "Requests at a time for each worker, at which scaling aims.", 16.0),
    "scale_down_seconds": Setting(
        FiniteNumber(min=0), "Fewer workers must suffice for so long before one is let go.", 60.0
    ),
    "join": Setting(str, "HOST:PORT of the server, where it listens for workers."),
    "worker_name": Setting(
        str, "How the server calls it. [default: the host's name and the process]", flags="--name"
    ),
    "worker_role": Setting(
        click.Choice(["both", "prefill", "decode"]), "What the server uses it for.", "both", flags="--role"
    ),
    "threads": Setting(WholeNumber(1, MAX_THREADS), "Threads of each worker. [default: the usable cores]"),
    "context_length": Setting(_COUNT, "Most tokens of prompt and answer. [default: the model's]"),
    "cache_gib": Setting(
        _SIZE, "Size of each KV cache in GiB. [default: a quarter of the free memory over all, at most 8]"
    ),
    "cache_disk_gib": Setting(
        FiniteNumber(min=0), "Keep as much of what the KV cache gives up on disk, in GiB.", 0.0
    ),
    "cache_dir": Setting(
        click.Path(file_okay=False, path_type=Path),
        "Folder for that; workers share it. [default: blocks, in HEADRACE_HOME or ~/.cache/headrace]",
    ),
    "cache_tokens": Setting(_COUNT, "Size of the KV cache in tokens, instead of --cache-gib."),
    "kv_dtype": Setting(
        click.Choice(["f16", "int8"]), "Element type of the KV cache; int8 takes 64% of the room.", "f16"
    ),
    "max_batch_tokens": Setting(_COUNT, "Most tokens that one step computes.", 256),
    "max_running": Setting(_COUNT, "Most sequences that run at the same time.", 64),
    "prefix_cache": Setting(
        bool, "Reuse what prompts have in common.", True, flags="--prefix-cache/--no-prefix-cache"
    ),
    "packed_cache": Setting(
        bool,
        "Keep weights on disk as the kernels want them: faster starts, and workers share them.",
        True,
        flags="--packed-cache/--no-packed-cache",
    ),
    "speculate": Setting(
        click.Choice(["none", "prompt-lookup", "draft"]),
        "Draft tokens and verify several in a step: same answers, sooner.",
        "none",
    ),
    "draft_model": Setting(str, "Smaller model of the same vocabulary, for --speculate draft."),
    "draft_tokens": Setting(_COUNT, "Most tokens drafted at a time for a sequence.", 8),
    "max_queue": Setting(
        _COUNT, "Sequences of each model that may wait for their first token before clients get 429.", 512
    ),
    "max_body_mib": Setting(_COUNT, "Largest request body, in MiB.", 8),
    "max_bodies_mib": Setting(
        _COUNT, "MiB of all requests' bodies together, beyond which clients get 429.", 256
    ),
    "drain_seconds": Setting(FiniteNumber(min=0), "Time for running requests to end at a SIGTERM.", 30.0),
    "log_requests": Setting(
        bool,
        "Write a line about each request when it ends: figures, never text.",
        False,
        flags="--log-requests/--no-log-requests",
    ),
    "expose_prefixes": Setting(
        bool,
        "Let clients see the text of cached prompts, and pin prefixes. [default: those on this machine]",
        flags="--expose-prefixes/--no-expose-prefixes",
    ),
    "log_format": Setting(click.Choice(["text", "json"]), "How those lines look.", "text"),
    "log_prompts": Setting(
        bool,
        "Write what was asked into those lines, too.",
        False,
        flags="--log-prompts/--no-log-prompts",
    ),
    "otlp_endpoint": Setting(
        str, "Send traces to this OpenTelemetry collector, such as http://localhost:4318 (extra: otel)."
    ),
    "api_keys": Setting(
        click.Path(dir_okay=False, path_type=Path),
        "File of API keys and their limits (`headrace key new`); one key may stand in HEADRACE_API_KEY.",
    ),
    "tls_cert": Setting(
        click.Path(dir_okay=False, path_type=Path), "Certificate chain, PEM: serve HTTPS. Needs --tls-key."
    ),
    "tls_key": Setting(click.Path(dir_okay=False, path_type=Path), "The certificate's private key, PEM."),
    "cors_origin": Setting(
        str, "Origins whose web pages may ask, with commas between; * for all. [default: none]"
    ),
    "request_timeout": Setting(
        _SIZE, "Seconds after which a request is ended; clients may ask for fewer. [default: none]"
    ),
    "write_timeout": Setting(
        _SIZE, "Seconds after which a client that does not read its answer is cut off.", 60.0
    ),
    "max_connections": Setting(_COUNT, "Most connections that are open at the same time.", 4096),
    "max_tokens": Setting(_COUNT, "Most tokens of an answer.", 512),
    "temperature": Setting(
        FiniteNumber(0, 2),
        "Spread of the choice of tokens; 0 takes the likeliest. [default: the model's]",
    ),
    "top_p": Setting(
        FiniteNumber(0, 1, min_open=True),
        "Choose among the likeliest tokens up to this sum. [default: the model's]",
    ),
    "seed": Setting(WholeNumber(), "Same seed, same answer. [default: random]"),
}


def flag(name: str) -> str:
    """The setting's option on the command line."""
    return SETTINGS[name].flags or "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """The setting's environment variable."""
    return "HEADRACE_" + name.upper()


def options(*names: str) -> Callable[[Function], Function]:
    """Gives a command the options of these settings, listed in this order."""

    def decorate(function: Function) -> Function:
        for name in reversed(names):
            setting = SETTINGS[name]
            function = click.option(
                *flag(name).split(),
                name,
                type=setting.type,
                default=setting.default,
                show_default=setting.default is not None,
                envvar=variable(name),
                help=setting.help,
            )(function)
        return function

    return decorate


def url_option(function: Function) -> Function:
    """Gives a command that asks a running server the option --url; its default is where `serve` listens."""
    told = "where host, port and tls-cert of the settings say"
    return click.option(
        "--url", envvar="HEADRACE_URL", default=_own_url, show_default=told, help="The server's address."
    )(function)


def own_certificate(url: str) -> Path | None:
    """The certificate of the server that the environment and the file describe, where the URL is its."""
    named = _settled("tls_cert")
    return Path(named) if named and url == _own_url() else None


def _own_url() -> str:
    """Of a server with the settings of the environment and the file. Raises ConfigError."""
    host, port = (_settled(name) or str(SETTINGS[name].default) for name in ("host", "port"))
    if host in ("0.0.0.0", "::", ""):  # everywhere, so here, too
        host = "127.0.0.1"
    try:
        number = SETTINGS["port"].type.convert(port, None, None) or SETTINGS["port"].default
    except click.BadParameter as error:
        raise ConfigError(f"port: {error.message}") from None
    scheme = "https" if _settled("tls_cert") else "http"
    return f"{scheme}://[{host}]:{number}" if ":" in host else f"{scheme}://{host}:{number}"


def _settled(name: str) -> str | None:
    """What the environment or the file says of a setting."""
    file = click.get_current_context().find_object(ConfigFile)
    return os.environ.get(variable(name)) or (None if file is None else file.settings().get(name))


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What stands in the file, parsed once; checked by whoever takes a part of it."""

    path: Path
    content: Mapping[str, object]

    @classmethod
    def read(cls, path: Path | None) -> ConfigFile:
        """The file; ./headrace.toml, if there is one, where `path` is None. Raises ConfigError."""
        file = path or Path(FILE)
        if path is None and not file.is_file():
            return cls(file, {})
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        try:
            return cls(file, tomllib.loads(file.read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} is not valid TOML: {error}") from None

    def settings(self) -> dict[str, str]:
        """Values as text, to be checked as a flag's or a variable's would be.

        Raises ConfigError that names the key and what was expected.
        """
        return _checked({key: value for key, value in self.content.items() if key not in _TABLES}, self.path)

    def fleet(self) -> FleetTables:
        """The tables: models and their prices, policies, budgets, routing.

        Raises ConfigError that names the table, the key and what was expected.
        """
        from headrace.routing.tables import read_tables

        return read_tables({key: self.content[key] for key in _TABLES if key in self.content}, self.path)


def unknown_variables(environment: Iterable[str]) -> str | None:
    """A line that names the HEADRACE_… variables which mean nothing, each with the nearest that does."""
    known = {*map(variable, SETTINGS), *_OTHER_VARIABLES}
    told = []
    for name in sorted(environment):
        if name.startswith(variable("")) and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            told.append(name + (f" (did you mean {near[0]}?)" if near else ""))
    return f"ignored, for there is no such setting: {', '.join(told)}" if told else None


def _checked(content: Mapping[str, object], file: Path) -> dict[str, str]:
    values: dict[str, str] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if isinstance(value, Mapping):
            raise ConfigError(f"{file}: there is no table [{key}]; there are {_LISTED_TABLES}")
        if name not in SETTINGS:
            known = ", ".join(sorted(known.replace("_", "-") for known in SETTINGS))
            raise ConfigError(
                f"{file}: there is no setting '{key}'; there are {known}, and the tables {_LISTED_TABLES}"
            )
        if not isinstance(value, (str, int, float)):
            raise ConfigError(f"{file}: '{key}' must be one text, number, true or false, not {value!r:.100}")
        values[name] = str(value)
    return values


def explain(error: click.BadParameter) -> ConfigError | None:
    """The error with the name of where the value stands: a flag, a variable, or a key of the file."""
    if error.param is None or error.param.name is None or error.ctx is None:
        return None
    if isinstance(error, click.MissingParameter):
        return None  # click's own words, with the usage, say more
    name = error.param.name
    source = error.ctx.get_parameter_source(name)
    if source is ParameterSource.ENVIRONMENT:
        where = str(error.param.envvar)
    elif source is ParameterSource.DEFAULT_MAP:
        where = f"'{name.replace('_', '-')}' in {error.ctx.find_root().params.get('config') or FILE}"
    else:
        where = error.param.opts[0]
    return ConfigError(f"{where}: {error.message[:1].lower()}{error.message[1:].rstrip('.')}")
