"""Constraints: what is refused and where, and that outputs match them whatever else goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import jsonschema
import numpy as np
import pytest

from headrace.backends.sampling import SamplingParams
from headrace.errors import RequestError
from headrace.models.tokenizer import Tokenizer
from headrace.models.vocabulary import TokenType
from headrace.worker.constraints import Constraints, check, schema_in_lark
from headrace.worker.generator import Generator
from headrace.worker.loader import load, open_model
from headrace.worker.messages import Constraint, Rejected, Submit
from headrace.worker.settings import WorkerSettings
from random_schemas import random_schema
from small_vocabulary import small_metadata

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


class Answer(NamedTuple):
    text: str
    tokens: list[int]
    reason: str


@contextmanager
def running(model: Path, **settings) -> Iterator[Generator]:
    options = {"threads": 2, "cache_tokens": 1 << 15, "context_length": 1024, **settings}
    opened = open_model(str(model))
    with closing(load(opened, WorkerSettings(model=str(model), **options))) as loaded:
        yield Generator(loaded, Tokenizer.from_metadata(opened.weights.metadata))


@pytest.fixture(scope="module")
def generator(synthetic_model: Path) -> Iterator[Generator]:
    with running(synthetic_model) as generator:
        yield generator


def schema(value: object) -> Constraint:
    return Constraint("json_schema", json.dumps(value))


def request(name: str, constraint: Constraint | None, max_tokens: int = 300, **options) -> Submit:
    """Quotes and brackets are favoured, so that a model of random weights comes to an end."""
    options = {"sampling": SamplingParams(seed=3), "prompt": [1, 2, 3], **options}
    bias = [(ord(char) - 0x21, 8.0) for char in '"}],']
    return Submit(name, max_tokens=max_tokens, constraint=constraint, logit_bias=bias, **options)


def answers(generator: Generator, requests: Sequence[Submit]) -> dict[str, Answer]:
    found = {each.id: Answer("", [], "") for each in requests}
    for each in requests:
        generator.submit(each)
    while generator.begin():
        for event in generator.complete():
            text, tokens, reason = found[event.id]
            found[event.id] = Answer(
                text + event.text, tokens + event.token_ids, event.finish_reason or reason
            )
    return found


def answer(generator: Generator, constraint: Constraint, **options) -> Answer:
    return answers(generator, [request("one", constraint, **options)])["one"]


@pytest.mark.parametrize(
    ("constraint", "where"),
    [
        (schema({"type": "objec"}), r"at \$: Invalid type: objec"),
        (schema({"properties": {"a": {"anyOf": [{}, {"type": "x"}]}}}), r"at \$\.properties\.a\.anyOf\[1\]"),
        (
            schema({"type": "array", "items": {"type": "string", "pattern": "(a"}}),
            r"at \$\.items: .*unclosed",
        ),
        (schema({"$defs": {"a": {}}, "items": {"$ref": "#/$defs/b"}}), r"at \$\.items: .*/\$defs/b"),
        (schema({"type": "string", "minLength": 5, "maxLength": 2}), r"at \$: Unsatisfiable"),
        (schema({"$ref": "#"}), r"at \$: nothing matches"),
        (schema([1]), "cannot be read"),
        (Constraint("json_schema", '{"type":\n "object"'), "line 2 column 10"),
        (Constraint("regex", "ab(c"), r"ab\(c\n +\^\nerror: unclosed group$"),
        (Constraint("lark", 'start: "a" b\nb: /[/'), r"at 2\(4\).*unclosed"),
        (Constraint("regex", "a" * 300_000), "262144"),
    ],
)
def test_what_cannot_be_compiled_is_refused_and_the_place_named(constraint, where):
    with pytest.raises(RequestError, match=re.compile(where, re.DOTALL)):
        check(constraint)


def chained(count: int) -> dict[str, object]:
    parts = {str(i): {"properties": {"x": {"$ref": f"#/$defs/{i + 1}"}}} for i in range(count)}
    return {"$defs": {**parts, str(count): {}}, "$ref": "#/$defs/0"}


@pytest.mark.parametrize(
    "constraint",
    [
        schema(chained(4000)),
        Constraint("json_schema", '{"items":' * 20_000 + "{}" + "}" * 20_000),
        Constraint("lark", "start: " + "(" * 100_000 + '"a"' + ")" * 100_000),
        Constraint(
            "lark", "start: a0\n" + "\n".join(f"a{i}: a{i + 1}" for i in range(15_000)) + '\na15000: "a"'
        ),
        Constraint(
            "lark", "start: A0\n" + "\n".join(f"A{i}: A{i + 1} A{i + 1}" for i in range(99)) + '\nA99: "a"'
        ),
        Constraint("regex", "(" * 20_000 + "a" + ")" * 20_000),
        Constraint("regex", "((a{1000}){1000}){1000}"),
        Constraint("lark", 'start: x*\nx: y*\ny: "a"*'),
        schema({"$ref": "file:///etc/passwd"}),
    ],
    ids=lambda constraint: f"{constraint.kind} {constraint.text[:12]}",
)
def test_hostile_constraints_are_refused_or_compiled_but_never_crash(generator, constraint):
    with suppress(RequestError):
        check(constraint)
    answers(generator, [request("hostile", constraint, max_tokens=20)])
    generator.take_messages()
    assert answer(generator, Constraint("regex", "yes|no")).text in ("yes", "no")


def test_outputs_of_200_random_schemas_are_valid(generator):
    random = Random(7)
    schemas = {str(number): random_schema(random) for number in range(200)}
    for value in schemas.values():
        check(schema(value))
    found = answers(
        generator,
        [
            request(name, schema(value), sampling=SamplingParams(seed=int(name)))
            for name, value in schemas.items()
        ],
    )
    formats = jsonschema.FormatChecker(["date", "uuid", "ipv4"])
    finished = [name for name, each in found.items() if each.reason == "stop"]
    for name in finished:
        jsonschema.validate(json.loads(found[name].text), schemas[name], format_checker=formats)
    assert len(finished) > 180
    assert {found[name].reason for name in found.keys() - finished} <= {"length"}


def matches(constraint: Constraint, text: str) -> bool:
    """Whether the constraint lets a text through, byte by byte, and no byte more."""
    vocab = Tokenizer.from_metadata(small_metadata())
    matcher = Constraints(vocab.vocab_size, lambda: vocab).compile(constraint).result()
    tokens = [vocab.encode(char, add_bos=False)[0] for char in text]
    if matcher.allowed(tokens) < len(tokens):
        return False
    for token in tokens:
        matcher.advance(token)
    return matcher.finished


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a grammar"])
def test_white_space_is_what_people_write_and_cannot_go_on(alone):
    nested = {"type": "object", "properties": {"a": {"enum": ["x"]}, "b": {"type": "array"}}}
    nested |= {"required": ["a", "b"], "additionalProperties": False}
    constraint = schema(nested)
    if not alone:
        constraint = Constraint("lark", f"start: {schema_in_lark(constraint.text)}")
    value = {"a": "x", "b": [1, {"c": []}]}
    for indent in (None, 1, 2, 4, "\t"):
        assert matches(constraint, json.dumps(value, indent=indent))
    assert matches(constraint, json.dumps(value, separators=(",", ":")))
    for gap in ("  ", "\n\n", " \n", "\n ".ljust(23), "\n \t", "\r\n"):
        assert not matches(constraint, f'{{"a": "x"{gap}, "b": []}}')


@pytest.mark.parametrize("text", ["true", "{}", " { } ", '{"type": "array"}'])
def test_any_schema_can_stand_in_a_grammar(text):
    assert matches(Constraint("lark", f'start: {schema_in_lark(text)} "!"'), "[1, 2]!")


def test_the_end_comes_with_the_token_that_completes_the_output(generator):
    found = answer(generator, Constraint("regex", "[ab]{5}"))
    assert re.fullmatch("[ab]{5}", found.text)
    assert (found.reason, len(found.tokens)) == ("stop", 5)
    assert answer(generator, Constraint("regex", "[ab]{5}"), max_tokens=5).reason == "stop"
    cut = answer(generator, Constraint("regex", "[ab]{5}"), max_tokens=4)
    assert (cut.reason, len(cut.text)) == ("length", 4)


@pytest.mark.parametrize("ending", ["<|im_end|>", "<|endoftext|>"])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_every_end_of_text_token_ends_an_output_that_may_end(generator, ending, ignore_eos):
    token = generator._vocabulary.of_type(TokenType.CONTROL)[ending]
    message = request("r", Constraint("regex", "a*"), ignore_eos=ignore_eos)
    message.logit_bias.append((token, 50.0))
    found = answers(generator, [message])["r"]
    assert (found.tokens, found.text, found.reason) == ([token], "", "stop")


def test_no_end_comes_before_min_tokens_unless_nothing_else_may(generator):
    tokens = generator._vocabulary.of_type(TokenType.CONTROL)

    def ended(pattern: str) -> Answer:
        message = request("r", Constraint("regex", pattern), min_tokens=7)
        message.logit_bias.extend((token, 50.0) for token in tokens.values())
        return answers(generator, [message])["r"]

    assert len(ended("[ab]*").tokens) == 8
    assert ended("[ab]{3}").tokens[3:] == []


def test_a_token_mask_follows_the_grammars_special_tokens(generator):
    token = generator._vocabulary.of_type(TokenType.CONTROL)["<|im_start|>"]
    found = answer(generator, Constraint("lark", f'start: "x" <[{token}]> "y"'))
    assert (found.tokens[1], found.text, found.reason) == (token, "xy", "stop")


CASES = {
    "schema": schema(PERSON),
    "again": schema(PERSON),
    "regex": Constraint("regex", r"(\d\d-[a-z]+ ){4,9}"),
    "grammar": Constraint("lark", 'start: item ("," item){3,30}\nitem: /[a-c]{1,9}/ | "[" start "]"'),
    "any": schema({"type": "object"}),
    "free": None,
}
SAMPLINGS = [SamplingParams(temperature=0), SamplingParams(seed=5), SamplingParams(seed=6, top_k=20)]


def mixed() -> list[Submit]:
    return [
        request(f"{name} {number}", constraint, 60, sampling=sampling, prompt=[*range(40), number])
        for number, sampling in enumerate(SAMPLINGS)
        for name, constraint in CASES.items()
    ]


@pytest.fixture(scope="module")
def alone(generator) -> dict[str, Answer]:
    return {each.id: answers(generator, [each])[each.id] for each in mixed()}


def test_constrained_tokens_do_not_depend_on_the_batch(generator, alone):
    assert answers(generator, mixed()) == alone


def test_nor_on_preemption_and_cached_prefixes(synthetic_model, alone):
    with running(synthetic_model, cache_tokens=256, context_length=192) as generator:
        assert answers(generator, mixed()) == alone
        assert generator.stats().preemptions > 0 and generator.stats().cached_tokens > 0


@pytest.mark.parametrize("draft", [{"speculate": "draft"}, {"speculate": "prompt-lookup"}], ids=str)
def test_nor_on_speculation(synthetic_model, alone, draft):
    if draft["speculate"] == "draft":
        draft = {**draft, "draft_model": str(synthetic_model)}
    with running(synthetic_model, **draft) as generator:
        assert answers(generator, mixed()) == alone
        assert generator.stats().accepted_tokens > 0


def test_nor_on_the_backend_that_asks_for_them(synthetic_model):
    """The reference backend's logits differ in the last bits; the masks are the same."""
    with running(synthetic_model, backend="reference") as generator:
        found = answer(generator, schema(PERSON), max_tokens=200)
        jsonschema.validate(json.loads(found.text), PERSON)


def test_a_constraint_that_cannot_be_compiled_ends_its_request_alone(generator):
    generator.submit(request("bad", Constraint("lark", "start: <|nosuch|>")))
    generator.submit(request("good", Constraint("regex", "ok")))
    events, messages = [], []
    while generator.begin():
        messages += generator.take_messages()
        events += generator.complete()
    messages += generator.take_messages()
    (refused,) = messages
    assert isinstance(refused, Rejected) and refused.id == "bad" and "special token" in refused.reason
    assert {event.id for event in events} == {"good"} and events[-1].finish_reason == "stop"
    assert generator.live == 0


def test_a_constraint_that_grows_too_complex_ends_its_request_alone(generator):
    generator.submit(request("bad", Constraint("lark", 'start: x*\nx: y*\ny: "a"*'), 1000, ignore_eos=True))
    generator.submit(request("good", Constraint("regex", "[ab]{30}")))
    events, messages = [], []
    while generator.begin():
        events += generator.complete()
        messages += generator.take_messages()
    messages += generator.take_messages()
    if messages:  # an end-of-text token may have come first
        assert [message.id for message in messages] == ["bad"] and "could not be followed" in messages[
            0
        ].reason
    assert any(event.id == "good" and event.finish_reason == "stop" for event in events)
    assert generator.live == 0 and generator.stats().blocks_used == 0


def test_a_request_is_cancelled_while_its_constraint_is_compiled(generator):
    generator.submit(request("gone", schema(chained(500))))
    generator.cancel("gone")
    assert generator.live == 0
    assert not generator.begin()


def test_a_matcher_gives_the_same_masks_after_going_back(generator):
    random = Random(1)
    vocab = generator._vocabulary
    matcher = Constraints(vocab.vocab_size + 40, lambda: vocab).compile(schema(PERSON)).result()
    words = (vocab.vocab_size + 40 + 31) // 32

    def mask() -> np.ndarray:
        bits = np.zeros(words, np.uint32)
        matcher.fill(bits)
        return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))

    for _ in range(60):
        before, taken = mask(), []
        assert before.max() < vocab.vocab_size
        while len(taken) < random.randint(1, 6) and not matcher.finished:
            token = int(random.choice(mask().tolist()))
            matcher.rollback(len(taken))
            assert matcher.allowed([*taken, token]) == len(taken) + 1
            for each in [*taken, token]:
                matcher.advance(each)
            taken.append(token)
        matcher.rollback(len(taken))
        assert np.array_equal(mask(), before)
        forbidden = sorted(set(range(vocab.vocab_size)) - set(before.tolist()))
        assert matcher.allowed([random.choice(forbidden)]) == 0
        if matcher.finished:
            break
        matcher.advance(taken[0])
    assert not matcher.error
