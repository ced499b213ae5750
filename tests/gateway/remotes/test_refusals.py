"""Refusals of a remote: what the client is told, whether another model may be asked, and no key shown."""

from __future__ import annotations

import json
import logging
import time
from email.utils import formatdate
from typing import Any

import pytest

from gateway.remotes.asking import KEY, NAME, answer, ask, remote, request, run
from gateway.remotes.upstream import Exchange, Script, Upstream, refusing
from headrace.errors import ConfigError
from headrace.gateway.errors import error_headers, error_json
from headrace.gateway.remotes.errors import RemoteError
from headrace.gateway.remotes.refusals import retry_after
from headrace.gateway.remotes.secret import Secret


def refused(script: Script, **table: Any) -> RemoteError:
    with pytest.raises(RemoteError) as caught:
        ask(script, **table)
    assert NAME in str(caught.value) and not caught.value.began
    return caught.value


@pytest.mark.parametrize(
    ("status", "told", "code", "elsewhere", "broken"),
    [
        (400, 400, "remote_refused_request", False, False),
        (422, 400, "remote_refused_request", False, False),
        (413, 413, "context_length_exceeded", True, False),
        (401, 503, "remote_refused", True, True),
        (402, 503, "remote_refused", True, True),
        (403, 503, "remote_refused", True, True),
        (404, 503, "remote_refused", True, True),
        (302, 503, "remote_refused", True, True),
        (408, 503, "remote_failed", True, True),
        (409, 503, "remote_failed", True, True),
        (429, 429, "rate_limit_exceeded", True, False),
        (500, 503, "remote_failed", True, True),
        (503, 503, "remote_failed", True, True),
        (529, 503, "remote_failed", True, True),
    ],
)
def test_each_status_has_its_meaning(
    status: int, told: int, code: str, elsewhere: bool, broken: bool
) -> None:
    error = refused(refusing(status, "so it is"))
    assert (error.status, error.code, error.elsewhere, error.broken) == (told, code, elsewhere, broken)
    assert ("so it is" in str(error)) == (code != "remote_refused")


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens.",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 199000 + 4096 > 200000",
        "the request exceeds the available context size, try increasing it",
        "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
        "max_tokens is too large: 8000. This model supports at most 4096 completion tokens",
        "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens for far-1",
    ],
)
def test_a_prompt_that_is_too_long_there_may_fit_elsewhere(message: str) -> None:
    error = refused(refusing(400, message))
    assert (error.code, error.elsewhere, error.broken) == ("context_length_exceeded", True, False)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "Your credit balance is too low", "type": "invalid_request_error"}},
        {"error": {"message": "far-1 is no longer supported", "code": "model_decommissioned"}},
        {"error": {"message": "far-1 is unknown", "param": "model"}},
        {"error": "Incorrect API key provided", "code": "Client specified an invalid argument"},
        [{"error": {"message": "API key not valid", "code": 400}}],
        {"object": "error", "message": "Invalid model: far-1", "type": "invalid_model", "code": "1500"},
    ],
)
def test_a_wrong_request_that_is_our_key_account_or_name_is_the_operators_matter(body: object) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.answer(400, json.dumps(body))

    error = refused(script)
    assert (error.status, error.code, error.elsewhere, error.broken) == (503, "remote_refused", True, True)


@pytest.mark.parametrize(
    "told",
    [
        {"message": "far-1 does not support images", "param": "model"},
        {"message": "`temperature` and `top_p` cannot both be specified for this model"},
    ],
)
def test_a_model_that_cannot_do_something_is_not_broken(told: dict[str, str]) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.answer(400, {"error": told})

    error = refused(script)
    assert (error.status, error.elsewhere, error.broken) == (400, True, False)


@pytest.mark.parametrize(
    "body",
    [
        {"object": "error", "message": "so it is", "type": "BadRequestError", "param": None, "code": 400},
        {"message": "so it is"},
        {"detail": "so it is"},
        {"error": {"message": {"detail": "so it is"}}},
        [{"error": {"message": "so it is"}}],
    ],
)
def test_the_message_is_found_wherever_a_server_has_it(body: object) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.answer(400, json.dumps(body))

    assert str(refused(script)) == f"The remote model '{NAME}' refuses the request: so it is"


def test_a_tool_with_a_key_in_its_name_is_still_the_clients() -> None:
    error = refused(refusing(400, "Invalid schema for function 'set_api_key': no type"))
    assert (error.status, error.code, error.broken) == (400, "remote_refused_request", False)


def test_a_list_of_what_is_wrong_is_told_with_the_places() -> None:
    wrong = [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}, 7]

    async def script(exchange: Exchange) -> None:
        await exchange.answer(422, {"object": "error", "message": {"detail": wrong}})

    error = refused(script)
    assert str(error).endswith("refuses the request: body.seed: Extra inputs are not permitted")
    assert error.elsewhere and not error.broken


def test_the_code_and_the_field_are_the_remotes_where_they_look_like_such() -> None:
    async def script(exchange: Exchange) -> None:
        error = {"message": "No.", "code": "unsupported_value", "param": "messages[0].content"}
        await exchange.answer(400, {"error": error})

    error = refused(script)
    assert (error.code, error.field) == ("unsupported_value", "messages[0].content")
    assert error.elsewhere and not error.broken


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"\xff",
        b"[" * 10_000,
        b'{"detail":' * 900 + b"1" + b"}" * 900,
        b"[1]",
        b'{"error": 7}',
        b'{"error": {"message": 7}}',
    ],
)
def test_a_body_that_is_no_error_is_left_out(body: bytes) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.answer(500, body)

    assert str(refused(script)) == f"The remote model '{NAME}' failed with the status 500."


def test_a_long_message_is_one_short_line() -> None:
    error = refused(refusing(500, "line\r\nbreaks \x1b[31m" + "x" * 100_000))
    assert len(str(error)) < 700 and str(error).isprintable()


def test_an_endless_refusal_is_not_read_to_its_end() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 500 Told\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            await exchange.piece(b"x" * 65536)

    assert refused(script).code == "remote_failed"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "1e9"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "9" * 12}, 3600),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 2),
        ({"retry-after": formatdate(time.time() - 100, usegmt=True)}, 0),
        ({"retry-after": "Thu, 01 Jan 9999 00:00:00 GMT"}, 3600),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m2.5s"}, 63),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "20ms"}, 1),
        ({"x-ratelimit-remaining-tokens": "5", "x-ratelimit-reset-tokens": "9s"}, None),
        (
            {
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2020-01-01T00:00:00Z",
            },
            0,
        ),
    ],
)
def test_when_to_ask_again_is_read_from_every_word_for_it(
    headers: dict[str, str], seconds: int | None
) -> None:
    assert retry_after(headers) == seconds


def test_a_date_to_ask_again_is_so_many_seconds_away() -> None:
    assert retry_after({"retry-after": formatdate(time.time() + 30, usegmt=True)}) in (29, 30, 31)


def test_the_client_is_told_when_to_ask_again() -> None:
    error = refused(refusing(429, "slow down", retry_after="7"))
    assert error_headers(error) == [(b"retry-after", b"7")]


ECHOES = [
    f"Incorrect API key provided: {KEY}.",
    f"key={KEY[:12]}***{KEY[-9:]}",
    f"Bearer {KEY}{KEY}",
    f"headers: {{'authorization': 'Bearer {KEY}', 'x-api-key': '{KEY}'}}",
]


def pieces_in(text: str) -> list[str]:
    """Recognisable pieces of the key."""
    return [KEY[i : i + 8] for i in range(len(KEY) - 7) if KEY[i : i + 8] in text]


@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_an_echoed_key_is_told_to_nobody(echo: str, status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def script(exchange: Exchange) -> None:
        await exchange.answer(status, {"error": {"message": echo, "type": echo, "code": KEY, "param": KEY}})

    error = refused(script)
    for text in (str(error), repr(error), error_json(error).decode(), str(vars(error)), caplog.text):
        assert not pieces_in(text)


def test_an_error_with_the_status_of_an_answer_is_told() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.answer(200, {"error": {"message": f"the backend is down, {KEY}", "type": "api_error"}})

    error = refused(script)
    assert error.elsewhere and "the backend is down" in str(error) and KEY not in str(error)


def test_a_key_echoed_within_a_stream_s_error_is_told_to_nobody() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.event({"error": {"message": ECHOES[0], "type": "x"}})

    for api in ("openai", "anthropic"):
        assert not pieces_in(str(refused(script, api=api)))


def test_no_failure_leaves_the_key_in_a_log_or_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def broken(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/9.9 garbage " + KEY.encode() + b"\r\n\r\n")
        await exchange.cut()

    async def work() -> None:
        async with Upstream(broken).serving() as upstream:
            asked = remote(upstream)
            assert not pieces_in(repr(asked))
            try:
                await answer(asked, request())
            except RemoteError as error:
                assert error.__suppress_context__ and not pieces_in(str(error))
                logging.getLogger("test").exception("failed: %r", asked)
            await asked.close()

    run(work())
    assert "failed" in caplog.text and not pieces_in(caplog.text)


def test_a_key_that_no_header_can_hold_is_refused_without_showing_it() -> None:
    for key in ("two\nlines-of-key", "ключ-и-замок"):
        with pytest.raises(ConfigError) as caught:
            Secret(NAME, key)
        assert key not in str(caught.value)
    assert Secret(NAME, f" {KEY}\n").reveal() == KEY


def test_only_the_key_is_hidden() -> None:
    secret = Secret(NAME, KEY)
    assert secret.scrub(f"a {KEY} b") == "a *** b"
    assert secret.scrub("nothing of it") == "nothing of it"
    assert Secret(NAME, "short").scrub("a short word") == "a *** word"
    assert Secret(NAME, None).scrub(KEY) == KEY
