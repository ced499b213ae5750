"""A conversation in the terminal, with a model in this process or behind a running server's URL."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from headrace.address import parse_url
from headrace.errors import ConfigError, HeadraceError, RequestError

if TYPE_CHECKING:
    from headrace.llm import LLM

_HELP = "/reset begins a new conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"
_COMMAND = re.compile(r"/\w*")
"""A path, which has more slashes, is text for the model."""
_CONNECT_SECONDS = 10

Messages = Sequence[Mapping[str, str]]


class Model(Protocol):
    """Who answers."""

    name: str

    def answer(self, messages: Messages) -> Generator[str, None, None]:
        """Yields the answer's text as it comes; closing it cancels the rest. Raises HeadraceError."""
        ...


class LocalModel:
    """A model in this process."""

    def __init__(self, llm: LLM, name: str, options: Mapping[str, Any]):
        """`options` are LLM's for one generation."""
        self._llm = llm
        self._options = options
        self.name = name

    def answer(self, messages: Messages) -> Generator[str, None, None]:
        yield from self._llm.stream(self._llm.chat_prompt(messages), **self._options)


class RemoteModel:
    """A model behind an OpenAI-compatible server."""

    def __init__(self, url: str, model: str | None, options: Mapping[str, Any], api_key: str | None = None):
        """`model` None takes the first one that the server lists. Raises as `parse_url`."""
        self._address = parse_url(url, api_key)
        self._url = url
        self._options = options
        self.name = model or self._first_model()

    def answer(self, messages: Messages) -> Generator[str, None, None]:
        body = {"model": self.name, "messages": list(messages), "stream": True} | dict(self._options)
        with self._response("POST", "/v1/chat/completions", body) as response:
            for line in response:
                data = line.removeprefix(b"data:").strip()
                if not data or data == b"[DONE]" or not line.startswith(b"data:"):
                    continue
                chunk = json.loads(data)
                if "error" in chunk:
                    raise RequestError(chunk["error"]["message"])
                for choice in chunk["choices"]:
                    yield choice["delta"].get("content") or ""

    def _first_model(self) -> str:
        with self._response("GET", "/v1/models") as response:
            models = json.load(response)["data"]
        if not models:
            raise ConfigError(f"{self._url} serves no model")
        name: str = models[0]["id"]
        return name

    @contextlib.contextmanager
    def _response(self, method: str, path: str, body: object = None) -> Iterator[http.client.HTTPResponse]:
        connection = self._address.connection(_CONNECT_SECONDS)
        try:
            connection.connect()
            connection.sock.settimeout(None)  # an answer may take its time
            headers = {"content-type": "application/json"} | self._address.headers
            content = None if body is None else json.dumps(body)
            connection.request(method, self._address.base + path, content, headers)
            response = connection.getresponse()
            if response.status != 200:
                raise RequestError(_error_message(response))
            yield response
        except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
            raise RequestError(
                f"{self._url} does not answer as expected: {error or type(error).__name__}"
            ) from None
        finally:
            connection.close()


def converse(model: Model, system: str | None) -> None:
    """Reads what the user says, line by line, and prints the answers, until the input ends."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # editing and history for input()
    interactive = sys.stdin.isatty()
    if interactive:
        print(f"{model.name}; {_HELP}")
    beginning = [{"role": "system", "content": system}] if system else []
    messages = list(beginning)
    while (said := _read("> " if interactive else "")) is not None:
        match said.strip():
            case "":
                continue
            case "/exit" | "/quit":
                return
            case "/reset":
                messages = list(beginning)
            case "/help":
                print(_HELP)
            case text if _COMMAND.fullmatch(text.split()[0]):
                print(f"There is no {text.split()[0]}: {_HELP}", file=sys.stderr)
            case text:
                messages.append({"role": "user", "content": text})
                _take_turn(model, messages)


def _take_turn(model: Model, messages: list[dict[str, str]]) -> None:
    """Prints the answer to the last message and keeps it; an error takes that message back."""
    said: list[str] = []
    try:
        with (
            _interruptible() as interrupted,
            contextlib.closing(model.answer(messages)) as pieces,
        ):
            for piece in pieces:
                said.append(piece)
                print(piece, end="", flush=True)
                if interrupted():
                    break
        print()
    except HeadraceError as error:
        messages.pop()
        print(f"{error}\nYour last message was not taken in; /reset begins anew.", file=sys.stderr)
        return
    messages.append({"role": "assistant", "content": "".join(said)})


def _read(prompt: str) -> str | None:
    """A line from the user; empty where Ctrl-C gave it up, None at the end."""
    try:
        return input(prompt)
    except KeyboardInterrupt:
        print()
        return ""
    except EOFError:
        return None


@contextlib.contextmanager
def _interruptible() -> Iterator[Any]:
    """A first Ctrl-C only sets what the yielded function tells, so that a step is never left half done.

    A second one interrupts as ever.
    """
    hits = 0

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal hits
        hits += 1
        if hits > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: hits > 0
    finally:
        signal.signal(signal.SIGINT, before)


def _error_message(response: http.client.HTTPResponse) -> str:
    try:
        message: str = json.load(response)["error"]["message"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return f"the server answers {response.status} {response.reason}"
    return message
