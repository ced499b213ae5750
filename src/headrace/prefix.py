"""`headrace prefix`: what prompts share in a running server's cache, where they part, and what must stay."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Callable, Iterator
from typing import Any, TextIO, TypeVar

import click

from headrace.address import parse_url
from headrace.config import own_certificate, url_option
from headrace.errors import ConfigError, RequestError
from headrace.option_types import WholeNumber

Command = TypeVar("Command", bound=Callable[..., Any])

_CONNECT_SECONDS = 10


class Server:
    """A running `headrace serve`."""

    def __init__(self, url: str, api_key: str | None):
        """Raises ConfigError for what is no URL."""
        self._address = parse_url(url, api_key, own_certificate(url))
        self._url = url

    def ask(self, method: str, path: str, body: object = None, salt: str | None = None) -> dict[str, Any]:
        """The answer's JSON object. Raises RequestError that says why there is none."""
        connection = self._address.connection(_CONNECT_SECONDS)
        headers = {"content-type": "application/json"} | self._address.headers
        if salt is not None:
            headers["x-headrace-cache-salt"] = salt
        try:
            connection.connect()
            connection.sock.settimeout(None)  # a prompt may take its time to be computed
            content = None if body is None else json.dumps(body)
            connection.request(method, self._address.base + path, content, headers)
            response = connection.getresponse()
            answer = json.load(response)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RequestError(
                f"{self._url} does not answer as expected: {error or type(error).__name__}"
            ) from None
        finally:
            connection.close()
        if response.status != 200 or not isinstance(answer, dict):
            raise RequestError(_message(answer) or f"the server answers {response.status} {response.reason}")
        return answer

    def first_model(self) -> str:
        """The model that requests are for where they name none."""
        models = self.ask("GET", "/v1/models").get("data") or []
        if not models:
            raise ConfigError(f"{self._url} serves no model")
        name: str = models[0]["id"]
        return name


@click.group()
def prefix() -> None:
    """See what prompts share in a running server's cache, where they part, and pin what must stay.

    FILE is a prompt as plain text, or requests as JSON, one on a line, with
    "messages" or "prompt" as they are sent to the server; "-" is standard input.
    """


def _common(command: Command) -> Command:
    """What every command takes."""
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object on a line.")(
        command
    )
    command = click.option(
        "--api-key", envvar="HEADRACE_API_KEY", help="Sent to the server as a bearer token."
    )(command)
    return url_option(command)


def _prompts(command: Command) -> Command:
    """What the commands that take prompts have in common."""
    command = click.option(
        "--system", is_flag=True, help="FILE's text is a chat's system message, not a plain prompt."
    )(command)
    command = click.option("--cache-salt", help="The salt of requests that have none.")(command)
    command = click.option("--model", help="For requests that name none. [default: the server's first]")(
        command
    )
    return click.argument("file", type=click.File(encoding="utf-8"))(_common(command))


@prefix.command("list")
@_common
@click.option(
    "--limit", type=WholeNumber(1, 100), default=20, show_default=True, help="Most prefixes to list."
)
@click.option("--cache-salt", help="List what requests of this salt have in the cache.")
def list_command(url: str, api_key: str | None, as_json: bool, limit: int, cache_salt: str | None) -> None:
    """List the prefixes that saved most tokens, and all that are pinned."""
    answer = Server(url, api_key).ask("GET", f"/v1/prefix?limit={limit}", salt=cache_salt)
    if as_json:
        _print_json(answer["data"])
    elif not answer["data"]:
        click.echo("nothing is cached yet")
    else:
        _print_table(answer["data"])


@prefix.command("explain")
@_prompts
def explain_command(url: str, api_key: str | None, as_json: bool, **asked: Any) -> None:
    """Tell how much of each prompt is cached, and where it leaves what is cached."""
    server = Server(url, api_key)
    for number, body in enumerate(_bodies(server, **asked), start=1):
        answer = server.ask("POST", "/v1/prefix/explain", body)
        if as_json:
            _print_json(answer["data"])
            continue
        for report in answer["data"]:
            click.echo(_explained(number, report))


@prefix.command("warm")
@_prompts
def warm_command(url: str, api_key: str | None, as_json: bool, **asked: Any) -> None:
    """Have each prompt computed now, so that later ones find it cached."""
    server = Server(url, api_key)
    for number, body in enumerate(_bodies(server, **asked), start=1):
        answer = server.ask("POST", "/v1/prefix/warm", body)
        if as_json:
            _print_json(answer["data"])
            continue
        for warmed in answer["data"]:
            click.echo(f"prompt {number}: {warmed['prompt_tokens']:,} tokens are cached")


@prefix.command("pin")
@_prompts
def pin_command(url: str, api_key: str | None, as_json: bool, **asked: Any) -> None:
    """Compute each prompt where it is not cached, and keep it there until it is unpinned."""
    server = Server(url, api_key)
    for number, body in enumerate(_bodies(server, **asked), start=1):
        answer = server.ask("POST", "/v1/prefix/pin", body)
        if as_json:
            _print_json(answer["data"])
            continue
        for pin in answer["data"]:
            click.echo(
                f"prompt {number}: {pin['pinned_tokens']:,} of {pin['prompt_tokens']:,} tokens are pinned as "
                f"{pin['id']} ({pin['blocks_pinned']} of {pin['blocks_pinnable']} blocks)"
            )


@prefix.command("unpin")
@click.argument("id_", metavar="ID")
@_common
def unpin_command(id_: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Let a pinned prefix go when its room is needed. ID is what `pin` and `list` show."""
    answer = Server(url, api_key).ask("POST", "/v1/prefix/unpin", {"id": id_})
    if as_json:
        _print_json([answer])
    else:
        click.echo(f"{answer['id']}: {answer['tokens']:,} tokens are no longer pinned")


def _bodies(
    server: Server, file: TextIO, model: str | None, cache_salt: str | None, system: bool
) -> Iterator[dict[str, Any]]:
    """The file's requests, each with a model."""
    defaults: dict[str, Any] = {} if cache_salt is None else {"cache_salt": cache_salt}
    defaults["model"] = model or server.first_model()
    for request in _requests(_read(file), file.name, system):
        yield defaults | request


def _read(file: TextIO) -> str:
    try:
        return file.read()
    except UnicodeDecodeError:
        raise ConfigError(f"{file.name} is not UTF-8 text") from None


def _requests(text: str, name: str, system: bool) -> Iterator[dict[str, Any]]:
    if system:
        # Without the words that open an answer, which no other prompt has at this place.
        yield {"messages": [{"role": "system", "content": text}], "add_generation_prompt": False}
        return
    if not text.lstrip().startswith("{"):
        yield {"prompt": text}
        return
    for number, line in enumerate(text.split("\n"), start=1):  # JSON may hold what else ends a line
        if not line.strip():
            continue
        try:
            request = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{name}, line {number} is not valid JSON: {error}") from None
        if not isinstance(request, dict):
            raise ConfigError(f"{name}, line {number}: expected a request, a JSON object")
        yield request


def _explained(number: int, report: dict[str, Any]) -> str:
    """A report, with the text on both sides of the place where the prompts part."""
    head = (
        f"prompt {number}: {report['cached_tokens']:,} of {report['prompt_tokens']:,} tokens are cached "
        f"({report['cached_share']:.0%})"
    )
    parting = report["divergence"]
    if parting is None:
        return head
    where = "" if parting["message"] is None else f", message {parting['message']}"
    before = click.style("…" + _visible(parting["before"]), dim=True)
    lines = [head, f"  leaves the nearest cached prompt at token {parting['position']:,}{where}:"]
    lines.append(f"    both    {before}")
    lines.append(f"    sent    {click.style(_visible(parting['sent']), fg='red')}")
    if parting["cached"] is not None:
        lines.append(f"    cached  {click.style(_visible(parting['cached']), fg='green')}")
    return "\n".join(lines)


def _print_table(rows: list[dict[str, Any]]) -> None:
    width = shutil.get_terminal_size((100, 24)).columns
    models = {row["model"] for row in rows}
    click.echo(f"{'ID':<16}  {'':3}  {'TOKENS':>7}  {'HITS':>6}  TEXT")
    for row in rows:
        pinned = "pin" if row["pinned"] else ""
        start = f"{row['id']:<16}  {pinned:3}  {row['tokens']:>7,}  {row['hits']:>6,}  "
        text = "(not shown by this server)" if row["text"] is None else _visible(row["text"])
        if len(models) > 1:
            text = f"{row['model']}: {text}"
        room = max(20, width - len(start))
        tail = room // 2  # many begin alike: what tells them apart is at the end
        click.echo(start + (text if len(text) <= room else f"{text[: room - tail - 3]} … {text[-tail:]}"))


def _visible(text: str) -> str:
    """The text on one line, with nothing that a terminal would act upon."""
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def _print_json(items: list[dict[str, Any]]) -> None:
    for item in items:
        click.echo(json.dumps(item, ensure_ascii=False))


def _message(answer: object) -> str | None:
    try:
        message = answer["error"]["message"]  # type: ignore[index]
    except (KeyError, TypeError):
        return None
    return str(message)
