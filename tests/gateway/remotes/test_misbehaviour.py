"""A remote that fails, stalls, lies or sends garbage: each time an error of ours, soon, and nothing kept."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.remotes.asking import NAME, Told, answer, ask, remote, request, run
from gateway.remotes.upstream import (
    Exchange,
    Script,
    Upstream,
    anthropic_answer,
    chunk,
    event,
    head,
    in_turn,
    openai_answer,
    openai_usage,
    stalling,
    text_delta,
)
from headrace.gateway.remotes.errors import RemoteError

QUICK = {"first_token_timeout": 0.3, "idle_timeout": 0.15, "connect_timeout": 0.3}
"""For remotes that fall silent: how busy the machine is must not make others seem to."""


def refusal(script: Script, table: Mapping[str, Any] | None = None, **fields: Any) -> RemoteError:
    """The error that asking gives; the upstream's connection is closed by then, or soon."""

    async def work() -> RemoteError:
        async with Upstream(script).serving() as upstream:
            asked = remote(upstream, **table or {})
            with pytest.raises(RemoteError) as caught:
                await answer(asked, request(**fields))
            await asyncio.sleep(0)
            await asked.close()
            for _ in range(200):
                if not upstream.open:
                    break
                await asyncio.sleep(0.01)
            assert upstream.open == 0
            return caught.value

    error = run(work())
    assert error.elsewhere and error.broken
    assert NAME in str(error) and error.__cause__ is None
    return error


def streaming(*data: object, end: bool = True) -> Script:
    """Streams these: bytes as they are, else events."""

    async def script(exchange: Exchange) -> None:
        await exchange.begin()
        for item in data:
            await exchange.piece(item if isinstance(item, bytes) else event(item))
        await (exchange.end() if end else exchange.until_left())

    return script


def endless(*data: object, pause: float = 0.0) -> Script:
    """Streams these again and again."""

    async def script(exchange: Exchange) -> None:
        await exchange.begin()
        while True:
            for item in data:
                await exchange.piece(item if isinstance(item, bytes) else event(item))
                await asyncio.sleep(pause)

    return script


def answering(data: bytes) -> Script:
    """Answers with these bytes and closes."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(data)
        await exchange.cut()

    return script


HTML = b"<html><body>Bad gateway</body></html>"
EVENT_STREAM = {"content-type": "text/event-stream"}


@pytest.mark.parametrize(
    "script",
    [
        answering(head(200, {"content-type": "text/html", "content-length": str(len(HTML))}) + HTML),
        answering(head(200, EVENT_STREAM | {"content-encoding": "gzip"}) + gzip.compress(bytes(2**20))),
        answering(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
        answering(head(200, EVENT_STREAM | {"transfer-encoding": "chunked"}) + b"no chunk\r\n"),
        answering(head(200, EVENT_STREAM | {"x-long": "x" * 100_000})),
        streaming(b"data: {not json\n\n"),
        streaming(b'data: {"choices":[{"delta":{"content":"\xff\xfe"}}]}\n\n'),
        streaming(b"data: " + b"[" * 100_000 + b"\n\n"),
        streaming([1, 2, 3]),
        streaming({"choices": "none"}),
        streaming(chunk(content=["not", "text"])),
        streaming(chunk(index=1, content="a choice that nobody asked for")),
        streaming(chunk(index=-1, content="so is this")),
        streaming(chunk(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}])),
        streaming(*(chunk(tool_calls=[{"index": i, "function": {"name": "f"}}]) for i in range(500))),
        streaming(b"data: " + b"x" * (2**20 + 1)),
        endless(b"x" * 10_000),
        endless(chunk(content="water " * 1000)),
        endless(b": nothing\n" * 1000),
        endless(event({"choices": []}) * 1000),
    ],
)
def test_garbage_is_told_as_such_and_ends_soon(script: Script) -> None:
    began = time.monotonic()
    error = refusal(script, max_tokens=10)
    assert error.code in ("remote_garbage", "remote_cut_off") and error.status == 503
    assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    "script",
    [
        streaming(),
        streaming("[DONE]"),
        streaming(chunk(role="assistant"), "[DONE]"),
        answering(b""),
        answering(head(200, EVENT_STREAM | {"content-length": "1000"}) + event(chunk(content=""))),
    ],
)
def test_a_stream_without_an_end_of_the_answer_was_cut_off(script: Script) -> None:
    error = refusal(script)
    assert (error.code, error.began) == ("remote_cut_off", False)


def test_what_came_before_the_cut_is_delivered_and_the_error_says_so() -> None:
    async def cutting(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.event(chunk(content="Water"))
        await asyncio.sleep(0.02)
        await exchange.event(chunk(content=" flows"))
        await exchange.cut()

    async def work() -> None:
        async with Upstream(cutting).serving() as upstream:
            asked = remote(upstream)
            words = []
            with pytest.raises(RemoteError) as caught:
                async with asked.ask("1", request()) as answer_run:
                    async for _, _, came, _ in answer_run:
                        words.append(came.text)
            assert words == ["Water", " flows"]
            assert caught.value.began and caught.value.code == "remote_cut_off"
            await asked.close()

    run(work())


def test_of_a_text_that_comes_together_with_an_error_nothing_has_begun() -> None:
    failed = event(chunk(content="Water")) + event({"error": {"message": "out of memory"}})
    error = refusal(streaming(failed))
    assert not error.began and "out of memory" in str(error)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (stalling, "did not begin its answer"),
        (streaming(end=False), "did not begin its answer"),
        (streaming(chunk(role="assistant"), end=False), "did not begin its answer"),
        (endless(b": still here\n\n", pause=0.02), "did not begin its answer"),
        (streaming(chunk(content="Water"), end=False), "sent nothing more"),
        (streaming(chunk(content="Water"), b'data: {"ch', end=False), "sent nothing more"),
    ],
)
def test_a_silence_ends_when_the_table_says(script: Script, words: str) -> None:
    began = time.monotonic()
    error = refusal(script, table=QUICK)
    assert words in str(error)
    assert (error.status, error.code) == (504, "remote_timeout")
    assert 0.1 < time.monotonic() - began < 2


def test_signs_of_life_keep_an_answer_no_longer_than_its_first_token_may_take() -> None:
    async def only_alive(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.event(chunk(content="Water"))
        while True:
            await exchange.piece(b": still here\n\n")
            await asyncio.sleep(0.02)

    error = refusal(only_alive, table=QUICK)
    assert "sent no more of its answer within 0.3 s" in str(error) and error.began


def test_a_head_that_drips_is_not_waited_for() -> None:
    async def dripping(exchange: Exchange) -> None:
        for letter in head(200, EVENT_STREAM):
            await exchange.send(bytes([letter]))
            await asyncio.sleep(0.05)

    assert "did not begin its answer within 0.3 s" in str(refusal(dripping, table=QUICK))


def test_a_client_that_reads_slowly_does_not_make_the_remote_late() -> None:
    async def work() -> str:
        async with Upstream(openai_answer(["a"] * 5)).serving() as upstream:
            asked = remote(upstream, **QUICK)
            text = ""
            async with asked.ask("1", request()) as answer_run:
                async for _, _, came, _ in answer_run:
                    text += came.text
                    await asyncio.sleep(0.2)
            await asked.close()
            return text

    assert run(work()) == "aaaaa"


def test_nobody_listening_is_told_at_once() -> None:
    async def work() -> RemoteError:
        async with Upstream(stalling).serving() as upstream:
            asked = remote(upstream)
        with pytest.raises(RemoteError) as caught:
            await answer(asked, request())
        await asked.close()
        return caught.value

    error = run(work())
    assert error.code == "remote_unreachable" and "127.0.0.1" not in str(error)


def test_what_follows_the_end_of_an_answer_spoils_nothing() -> None:
    for after in (b"data: {garbage\n\n", event(chunk(content="more")), event({"error": {"message": "late"}})):
        told, _ = ask(streaming(chunk(content="Water"), chunk(reason="stop"), after))
        assert (told.text, told.finish_reasons) == ("Water", ["stop"])


def test_an_answer_whose_stream_stays_open_is_complete() -> None:
    told, _ = ask(streaming(chunk(content="Water"), chunk(reason="stop"), "[DONE]", end=False))
    assert told.text == "Water"


def test_redirects_are_not_followed() -> None:
    async def work() -> tuple[RemoteError, int]:
        async with Upstream(openai_answer()).serving() as other:

            async def redirecting(exchange: Exchange) -> None:
                await exchange.answer(307, location=f"{other.url}/v1/chat/completions")

            async with Upstream(redirecting).serving() as upstream:
                asked = remote(upstream)
                with pytest.raises(RemoteError) as caught:
                    await answer(asked, request())
                await asked.close()
                return caught.value, len(other.exchanges)

    error, followed = run(work())
    assert (error.code, followed) == ("remote_refused", 0)


def test_one_failed_answer_harms_no_other_of_the_same_remote() -> None:
    script = in_turn(streaming(b"data: garbage\n\n"), stalling, openai_answer())

    async def work() -> tuple[Told, int]:
        async with Upstream(script).serving() as upstream:
            asked = remote(upstream, **QUICK)
            for _ in range(2):
                with pytest.raises(RemoteError):
                    await answer(asked, request())
            told = await answer(asked, request())
            await asked.close()
            return told, upstream.left

    told, left = run(work())
    assert told.text == "Water flows downhill." and left == 1


def test_an_anthropic_remote_may_send_garbage_too() -> None:
    for data in (b"data: {}\n\n", b"data: 7\n\n", event(text_delta("x") | {"index": "wild"})):
        assert refusal(streaming(data), table={"api": "anthropic"}).code == "remote_garbage"
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    told = refusal(streaming(error), table={"api": "anthropic"})
    assert told.code == "remote_failed" and "Overloaded" in str(told)
    cut = refusal(streaming(text_delta("Water"), {"type": "message_stop"}), table={"api": "anthropic"})
    assert cut.code == "remote_cut_off"


@pytest.mark.parametrize(
    "usage",
    [(-5, 3), (9, -3), ("9", 3), (10**12, 3), (9, 10**12), (9, 0), (None, None), (True, True), (9, 3.5)],
)
def test_usage_that_cannot_be_is_replaced_by_an_estimate(usage: tuple[Any, Any]) -> None:
    told, _ = ask(
        streaming(chunk(content="Water flows"), chunk(reason="stop"), openai_usage(*usage), "[DONE]")
    )
    assert told.usage is not None and not told.believed
    assert 1 <= told.usage.completion_tokens <= 5
    assert 1 <= told.usage.prompt_tokens < 200
    assert told.usage.total_tokens == told.usage.prompt_tokens + told.usage.completion_tokens


def test_usage_that_is_missing_or_broken_spoils_no_answer() -> None:
    for usage in (None, "many", [1], {"prompt_tokens_details": 5}, {}):
        told, _ = ask(streaming(chunk(content="Water flows"), chunk(reason="stop") | {"usage": usage}))
        assert told.text == "Water flows" and not told.believed
        assert told.usage is not None and told.usage.completion_tokens == 3
    told, _ = ask(anthropic_answer(usage=("many", -1)), api="anthropic")
    assert told.text == "Water flows downhill." and not told.believed
