"""Log-probabilities of a remote's tokens: asked for where it can tell them, and told as ours are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.remotes.asking import ask, request
from gateway.remotes.upstream import Exchange, Script, chunk, openai_answer
from gateway.routed.fleet import DEAR, FAR_FIRST, far, here, routed, text_of
from headrace.gateway.remotes.errors import RemoteError
from headrace.gateway.remotes.logprobs import Vocabulary

ABLE = {"abilities": ["logprobs"]}


def told_of(text: str, logprob: float, **tops: float) -> dict[str, Any]:
    """A token with its log-probability, as OpenAI's API has it; of the likeliest others without bytes."""
    others = [{"token": token, "logprob": value} for token, value in tops.items()]
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": others}


def telling(*pieces: tuple[str, Any]) -> Script:
    """Streams texts, each with the value of its `logprobs`."""

    async def script(exchange: Exchange) -> None:
        await exchange.begin()
        for text, logprobs in pieces:
            told = chunk(content=text)
            told["choices"][0]["logprobs"] = logprobs
            await exchange.event(told)
        await exchange.event(chunk(reason="stop"))
        await exchange.event("[DONE]")
        await exchange.end()

    return script


SURE = telling(
    ("Yes", {"content": [told_of("Yes", -0.125, Yes=-0.125, No=-2.5)]}),
    (", sir.", {"content": [told_of(",", -0.25), told_of(" sir.", -0.5)], "refusal": None}),
)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_that_a_client_asks_for_come_from_a_remote_that_can_tell_them(
    tmp_path: Path, stream: bool
) -> None:
    with routed(tmp_path, {"near": here(cost_per_hour=DEAR), "far": far(SURE)}, policies=FAR_FIRST) as fleet:
        answer = fleet.chat(logprobs=True, top_logprobs=2, stream=stream)
        (asked,) = fleet.upstreams["far"].exchanges
    assert (asked.body["logprobs"], asked.body["top_logprobs"]) == (True, 2)
    assert text_of("chat", answer) == "Yes, sir."
    if stream:
        assert answer.text.count('"logprob":-0.125') == 2 and answer.text.count('"token":" sir."') == 1
        return
    content = answer.json()["choices"][0]["logprobs"]["content"]
    assert [(each["token"], each["logprob"]) for each in content] == [
        ("Yes", -0.125),
        (",", -0.25),
        (" sir.", -0.5),
    ]
    assert content[0]["bytes"] == list(b"Yes")
    assert content[0]["top_logprobs"][1] == {"token": "No", "logprob": -2.5, "bytes": list(b"No")}


def test_a_remote_that_cannot_tell_them_is_not_asked_for_them() -> None:
    for table in ({}, {"abilities": ["tools"]}, {**ABLE, "api": "anthropic"}):
        with pytest.raises(RemoteError) as error:
            ask(SURE, request(logprobs=True), **table)
        assert (error.value.field, error.value.status, error.value.elsewhere) == ("logprobs", 400, True)
    _, upstream = ask(openai_answer(), request(), **ABLE)
    assert "logprobs" not in upstream.exchanges[0].body


def test_a_cascade_goes_by_how_sure_a_remote_was(tmp_path: Path) -> None:
    """The chance is e to the mean, about 0.75."""
    models = {"far": far(SURE, input_price=0.01, output_price=0.01), "near": here(cost_per_hour=DEAR)}
    for accept, answered in ((0.7, "far"), (0.8, "near")):
        policies = {"auto": {"kind": "cascade", "accept": accept}}
        with routed(tmp_path / answered, models, policies=policies) as fleet:
            answer = fleet.chat()
            assert answer.headers["x-headrace-model"] == answered
            assert fleet.upstreams["far"].exchanges[0].body["logprobs"] is True
            assert not answer.json()["choices"][0].get("logprobs")


@pytest.mark.parametrize(
    "nonsense", [7, "x", [], {"content": 3}, {"content": [{"token": 1}]}, {"tokens": [None]}]
)
def test_nonsense_in_their_place_spoils_no_answer(nonsense: Any) -> None:
    told, _ = ask(telling(("Water ", nonsense), ("flows.", None)), request(logprobs=True), **ABLE)
    assert told.text == "Water flows."
    assert all(not event.logprobs for event in told.answers[0].events)


def test_a_part_of_a_character_has_its_logprob_before_there_is_text_and_none_is_above_certainty() -> None:
    half = {"token": "�", "logprob": 3.5, "bytes": [0xC3], "top_logprobs": []}
    rest = {"token": "�", "logprob": -1, "bytes": [0xA4]}
    script = telling(("", {"content": [half]}), ("ä", {"content": [rest]}))
    told, _ = ask(script, request(logprobs=True), **ABLE)
    assert told.text == "ä"
    ids = [event.token_ids for event in told.answers[0].events]
    assert ids[:2] == [[0], [1]]
    assert [event.logprobs for event in told.answers[0].events][:2] == [[(0.0, [], [])], [(-1.0, [], [])]]


def test_tokens_are_numbered_as_they_come() -> None:
    vocabulary = Vocabulary()
    numbers, logprobs = vocabulary.read(
        b'{"tokens": ["a", "b", "a"], "token_logprobs": [null, -1, -2], "top_logprobs": [{}, {"a": -3}, {}]}'
    )
    assert (numbers, logprobs) == ([0, 1], [(-1.0, [1], [-3.0]), (-2.0, [], [])])
    assert [vocabulary.token_bytes(number) for number in (0, 1)] == [b"b", b"a"]
