"""From a remote's refusal, a status or an error in its stream, to what the client is told."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime

import msgspec

from headrace.gateway.remotes.errors import RemoteError
from headrace.gateway.remotes.secret import Secret

MAX_ERROR_BYTES = 2**16
_LONGEST_MESSAGE = 500
_LONGEST_WAIT = 3600
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FIELD = re.compile(r"[A-Za-z0-9_.\[\]-]{1,120}")
_TOO_LONG = re.compile(
    r"context[ _](length|limit|size|window)|prompt is too long|too many (input )?tokens"
    r"|input (is )?too long|exceeds? (the )?(model's )?maximum|`max_new_tokens` must be"
    r"|at most \d+ completion tokens|maximum allowed number of output tokens",
    re.IGNORECASE,
)
"""Of a prompt, or of the answer that may follow it, in the words of one server or another."""
_UNSUPPORTED = re.compile(
    r"(not|n't) support|unsupported|cannot both be specified|extra inputs are not permitted", re.IGNORECASE
)
"""Of what this model or its server cannot do; another one may."""
_OURS = {401, 402, 403, 404, 405, 407, 410, 415}
"""Statuses that say something of how the remote is set up here, and nothing of the request."""
_ABOUT_US = re.compile(
    r"\bAPI[ -]key\b|credit balance|invalid model( name|:)|not a valid model", re.IGNORECASE
)
"""Of what is wrong with a key, an account or a name that are ours, told with a status for wrong requests."""
_NO_SUCH_MODEL = ("model_not_found", "model_decommissioned", "invalid_model")
_UNABLE = ("unsupported_parameter", "unsupported_value")
"""Codes that say that this model cannot do what another may."""
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_OPENAI_LIMITS = ("requests", "tokens")
_ANTHROPIC_LIMITS = ("requests", "tokens", "input-tokens", "output-tokens")


@dataclass(frozen=True, slots=True)
class Told:
    """What a remote says is wrong."""

    message: str = ""
    kind: str = ""
    code: str = ""
    field: str = ""

    @staticmethod
    def of(error: object) -> Told:
        """From the value of `error` in a body, whatever it is."""
        if not isinstance(error, dict):
            return Told(_one_line(_words_of(error)))

        def text(name: str) -> str:
            value = error.get(name)
            return value if isinstance(value, str) else ""

        code, field = text("code"), text("param")
        return Told(
            _one_line(_words_of(error)),
            text("type"),
            code if _CODE.fullmatch(code) else "",
            field if _FIELD.fullmatch(field) else "",
        )

    @staticmethod
    def in_body(body: bytes) -> Told:
        """From a response's body; nothing where that is no error of any server that is known.

        Gemini has a list of one around it. vLLM, Mistral and Cohere have its fields at the top, FastAPI a
        text named `detail`, and xAI the message as `error`.
        """
        try:
            decoded = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return Told()
        if isinstance(decoded, list) and len(decoded) == 1:
            (decoded,) = decoded
        if not isinstance(decoded, dict):
            return Told()
        return Told.of(decoded.get("error") or decoded.get("detail") or decoded)

    def scrubbed(self, secret: Secret) -> Told:
        """The same without the key."""
        return Told(*map(secret.scrub, (self.message, self.kind, self.code, self.field)))


def by_status(name: str, status: int, headers: Mapping[str, str], told: Told) -> RemoteError:
    """Why a remote answered with another status than 200."""
    wait = retry_after(headers)
    if status == 429:
        quota = "insufficient_quota" in (told.code, told.kind)
        return RemoteError(
            f"The remote model '{name}' takes no more requests now{_words(told)}",
            status=429,
            code="rate_limit_exceeded",
            broken=quota,
            retry_after=wait,
        )
    if status in _OURS or status < 400 or (status < 500 and _is_about_us(told)):
        return RemoteError(
            f"The remote model '{name}' turned this server away with the status {status}; "
            "its operator must check the remote's URL, key, account and name.",
            code="remote_refused",
        )
    if status in (408, 409) or status >= 500:
        return RemoteError(
            f"The remote model '{name}' failed with the status {status}{_words(told)}",
            code="remote_failed",
            retry_after=wait,
        )
    return _wrong(name, status, told)


def in_stream(name: str, told: Told) -> RemoteError:
    """Why a remote ended its stream with an error."""
    if told.kind in ("invalid_request_error", "BadRequestError"):
        return _wrong(name, 400, told)
    if told.kind == "rate_limit_error":
        return by_status(name, 429, {}, told)
    return RemoteError(f"The remote model '{name}' failed{_words(told)}", code="remote_failed")


def _is_about_us(told: Told) -> bool:
    """A wrong `model`, say, is never the client's mistake: the table has named it."""
    if told.code in _NO_SUCH_MODEL or _ABOUT_US.search(told.message):
        return True
    return told.field == "model" and not _UNSUPPORTED.search(told.message)


def _wrong(name: str, status: int, told: Told) -> RemoteError:
    """The request is wrong, or too long for this model."""
    unable = told.code in _UNABLE or bool(_UNSUPPORTED.search(told.message))
    long = status == 413 or "context_length" in told.code or bool(_TOO_LONG.search(told.message))
    return RemoteError(
        f"The remote model '{name}' refuses the request{_words(told)}",
        told.field or None,
        status=400 if status == 422 else status,
        code="context_length_exceeded" if long else told.code or "remote_refused_request",
        elsewhere=long or unable,
        broken=False,
    )


def _words(told: Told) -> str:
    return f": {told.message}" if told.message else "."


def _words_of(error: object, deepest: int = 4) -> str:
    """The message, which FastAPI has in a list of what is wrong where, and Mistral in an object of that."""
    if not deepest:
        return ""
    match error:
        case str():
            return error
        case {"msg": str(told), "loc": [*places]}:
            return f"{'.'.join(map(str, places))}: {told}"
        case {"message": told} | {"detail": told}:
            return _words_of(told, deepest - 1)
        case list():
            return "; ".join(filter(None, (_words_of(each, deepest - 1) for each in error[:3])))
    return ""


def _one_line(message: str) -> str:
    """The message without line breaks and control characters, shortened."""
    message = " ".join(message[: 4 * _LONGEST_MESSAGE].split())
    message = "".join(letter for letter in message if letter.isprintable())
    return message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE] + "…"


def retry_after(headers: Mapping[str, str]) -> int | None:
    """Whole seconds, rounded up, after which a remote wants to be asked again; None where it does not say.

    From `retry-after-ms`, `retry-after` (seconds or a date, RFC 9110 10.2.3), or the resets of those of its
    rate limits that are used up.
    """
    seconds = _number(headers.get("retry-after-ms", ""), 0.001)
    if seconds is None:
        seconds = _number(headers.get("retry-after", ""), 1.0)
    if seconds is None:
        seconds = _until(headers.get("retry-after", ""))
    if seconds is None:
        resets = [reset for reset in _resets(headers) if reset is not None]
        seconds = max(resets) if resets else None
    if seconds is None:
        return None
    return -(-int(1000 * min(max(seconds, 0.0), _LONGEST_WAIT)) // 1000)


def _resets(headers: Mapping[str, str]) -> list[float | None]:
    """Seconds until each limit that is used up is lifted."""
    openai = [
        _duration(headers.get(f"x-ratelimit-reset-{limit}", ""))
        for limit in _OPENAI_LIMITS
        if headers.get(f"x-ratelimit-remaining-{limit}") == "0"
    ]
    anthropic = [
        _until(headers.get(f"anthropic-ratelimit-{limit}-reset", ""))
        for limit in _ANTHROPIC_LIMITS
        if headers.get(f"anthropic-ratelimit-{limit}-remaining") == "0"
    ]
    return openai + anthropic


def _number(text: str, unit: float) -> float | None:
    return float(text) * unit if re.fullmatch(r"\d{1,12}(\.\d{1,12})?", text) else None


def _duration(text: str) -> float | None:
    """Such as 6m0s or 20ms; or seconds."""
    parts = _PART.findall(text)
    if not parts or "".join(a + b for a, b in parts) != text:
        return _number(text, 1.0)
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _until(text: str) -> float | None:
    """Seconds until a date, of RFC 9110 or RFC 3339."""
    try:
        at = msgspec.convert(text, datetime) if text[:1].isdigit() else parsedate_to_datetime(text)
        return at.timestamp() - time.time()
    except (ValueError, TypeError, OverflowError, msgspec.ValidationError):
        return None
