"""Answers are taken apart as they are written, wherever the stream cuts them, and nothing of them is lost."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.models.answer import CallArguments, CallStart, PlainParser, Reasoning, Text, join_parts
from headrace.models.answers.formats import FamilyFormat
from headrace.models.answers.syntax import BARE, HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, MISTRAL_THINK, THINK

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "weather")]
PARIS = '{"city": "Paris"}'


def call(name, arguments, key="arguments"):
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def hermes(name, arguments):
    return f"<tool_call>\n{call(name, arguments)}\n</tool_call>"


def parts(pieces, syntax=HERMES, reasoning=None, tools=TOOLS, tail=""):
    parser = FamilyFormat(syntax, reasoning, {}).parser(tools, tail)
    found = [part for piece in pieces for part in parser.push(piece)]
    return join_parts([*found, *parser.finish()])


def made(*calls):
    return [
        part for i, (name, text) in enumerate(calls) for part in (CallStart(i, name), CallArguments(i, text))
    ]


SAMPLES = [
    (HERMES, None, ""),
    (HERMES, THINK, ""),
    (HERMES, THINK, "<think>\n"),
    (LLAMA, None, ""),
    (MISTRAL, MISTRAL_THINK, ""),
    (MISTRAL_NAMED, None, ""),
    (BARE, None, ""),
]
WORDS = [
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<think>"),
    *("</think>", "[THINK]", "[/THINK]", call("f", '{"a": "}</tool_call>"}'), call("f", "{}", "parameters")),
    *(
        call("other", "{}"),
        '{"name": "f", ',
        '"arguments": ',
        '"{\\"a\\": 1}"',
        "null",
        "f",
        "{",
        "}",
        "[",
        "]",
    ),
    *(
        ",",
        ";",
        ":",
        '"',
        "\\",
        "\n",
        " ",
        "```json\n",
        "```",
        "<",
        "a",
        "é",
        '{"arguments": {"x": 1}, "name": "f"}',
    ),
]


@given(st.sampled_from(SAMPLES), st.lists(st.sampled_from(WORDS), max_size=12).map("".join), st.data())
def test_where_the_text_is_cut_does_not_matter(sample, text, data):
    syntax, reasoning, tail = sample
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parts([text], syntax, reasoning, tail=tail)
    assert parts(pieces, syntax, reasoning, tail=tail) == whole
    assert parts(list(text), syntax, reasoning, tail=tail) == whole


@given(st.lists(st.sampled_from([*WORDS, " b "]), max_size=8).map("".join))
def test_an_answer_without_calls_or_reasoning_is_the_text_itself(text):
    found = parts(list(text))
    if not any(isinstance(part, CallStart) for part in found):
        assert "".join(part.text for part in found) == text


class TestHermes:
    def test_text_and_calls_without_the_whitespace_between(self):
        text = "I look.\n\n" + hermes("weather", PARIS) + "\n" + hermes("f", "{}") + "\n"
        assert parts([text]) == [Text("I look."), *made(("weather", PARIS), ("f", "{}"))]

    def test_text_behind_a_call_keeps_its_distance(self):
        assert parts(["a " + hermes("f", "{}") + "\n\nb\n"]) == [
            Text("a"),
            *made(("f", "{}")),
            Text("\n\nb\n"),
        ]

    def test_the_name_comes_before_the_arguments_do_and_these_piece_by_piece(self):
        parser = FamilyFormat(HERMES, None, {}).parser(TOOLS, "")
        assert parser.push('<tool_call>\n{"name": "weather", "arguments": ') == []
        assert parser.push("{") == [CallStart(0, "weather"), CallArguments(0, "{")]
        assert parser.push('"city": "Pa') == [CallArguments(0, '"city": "Pa')]
        assert parser.push('ris"}') == [CallArguments(0, 'ris"}')]
        assert parser.push("}\n</tool_call>") == []
        assert parser.finish() == []

    def test_arguments_stay_as_the_model_wrote_them(self):
        arguments = '{ "a":"</tool_call> \\" } ]","b" : [1,{"c":"\\u00e9"}]\n}'
        assert parts(list(hermes("f", arguments))) == made(("f", arguments))

    def test_keys_in_another_order_and_further_keys(self):
        text = '<tool_call>{"id": [1, "}"], "arguments": {"a": 1}, "name": "f", "x": null}</tool_call>'
        assert parts([text]) == made(("f", '{"a": 1}'))

    def test_arguments_that_are_missing_null_or_a_text_of_json(self):
        texts = ['{"name": "f"}', call("f", "null"), call("f", '"{\\"a\\": 1}"')]
        found = parts(["".join(f"<tool_call>{text}</tool_call>" for text in texts)])
        assert found == made(("f", "{}"), ("f", "{}"), ("f", '{"a": 1}'))

    def test_a_brace_too_many_and_a_closing_tag_too_few(self):
        assert parts([f"<tool_call>\n{call('f', '{}')}}}\n</tool_call>"]) == made(("f", "{}"))
        assert parts([f"<tool_call>\n{call('f', '{}')}"]) == made(("f", "{}"))

    def test_a_call_of_an_unknown_function_is_a_call_where_a_tag_says_so(self):
        assert parts([hermes("other", "{}")]) == made(("other", "{}"))
        assert parts([call("other", "{}")]) == [Text(call("other", "{}"))]

    @pytest.mark.parametrize(
        "text",
        [
            "<tool_call>\nno json\n</tool_call>",
            "<tool_call>",
            '<tool_call>{"a": 1}</tool_call> x',
            "a <tool_",
        ],
    )
    def test_what_is_no_call_is_text(self, text):
        assert parts(list(text)) == [Text(text)]

    def test_a_call_that_is_cut_short_is_what_has_come_of_it(self):
        assert parts(['<tool_call>{"name": "f", "arguments": {"a": "b']) == made(("f", '{"a": "b'))
        assert parts(['x <tool_call>{"name": "f", "argu']) == [Text('x <tool_call>{"name": "f", "argu')]

    @pytest.mark.parametrize("fence", ["```json\n{}\n```", "```\n{}\n```", "{}", "Sure:\n{}"])
    def test_a_call_without_the_tag_is_found_at_a_lines_beginning(self, fence):
        body = '{\n  "name": "weather",\n  "arguments": ' + PARIS + "\n}"
        *text, start, arguments = parts(list(fence.replace("{}", body)))
        assert [start, arguments] == made(("weather", PARIS))
        assert text == ([Text("Sure:")] if "Sure" in fence else [])

    @pytest.mark.parametrize(
        "text",
        [
            "```python\n{}\n```",
            '{"name": "Ada", "age": 36}',
            "a " + call("f", "{}"),
            "```json\n[1, 2]\n```",
            "{",
        ],
    )
    def test_other_json_and_code_is_text(self, text):
        assert parts(list(text)) == [Text(text)]

    def test_where_no_tools_were_offered_nothing_is_a_call(self):
        assert parts([hermes("f", "{}")], tools=None) == [Text(hermes("f", "{}"))]
        assert isinstance(FamilyFormat(HERMES, None, {}).parser(None, ""), PlainParser)


class TestOtherFamilies:
    def test_llama_with_and_without_its_tag(self):
        text = call("weather", PARIS, "parameters")
        assert parts(list(text), LLAMA) == made(("weather", PARIS))
        assert parts(list("<|python_tag|>" + text), LLAMA) == made(("weather", PARIS))
        assert parts(list(f"{text}; {text}"), LLAMA) == made(("weather", PARIS), ("weather", PARIS))
        assert parts(list('{"type": "function", ' + text[1:]), LLAMA) == made(("weather", PARIS))

    def test_llamas_code_is_text(self):
        assert parts(['<|python_tag|>print("x")'], LLAMA) == [Text('<|python_tag|>print("x")')]

    def test_mistrals_array(self):
        text = f"[TOOL_CALLS] [{call('weather', PARIS)}, {call('f', '{}')}]"
        assert parts(list(text), MISTRAL) == made(("weather", PARIS), ("f", "{}"))

    def test_mistrals_names_before_arguments(self):
        text = f"Yes.[TOOL_CALLS]weather[ARGS]{PARIS}[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{{}}"
        assert parts(list(text), MISTRAL_NAMED) == [Text("Yes."), *made(("weather", PARIS), ("f", "{}"))]


class TestReasoning:
    @pytest.mark.parametrize(
        ("tail", "opening"), [("", "<think>\n"), ("<think>\n", ""), ("<think>", "<think>")]
    )
    def test_is_reported_apart_whoever_opened_it(self, tail, opening):
        text = opening + "Let me <b>see</b>.\n\nYes.\n</think>\n\nHello\n"
        found = parts(list(text), reasoning=THINK, tail="assistant\n" + tail)
        assert found == [Reasoning("Let me <b>see</b>.\n\nYes."), Text("Hello\n")]

    def test_without_tools_too_and_before_calls(self):
        assert parts(["<think>a</think>b"], reasoning=THINK, tools=None) == [Reasoning("a"), Text("b")]
        text = "<think>a</think>\n" + hermes("f", "{}")
        assert parts([text], reasoning=THINK) == [Reasoning("a"), *made(("f", "{}"))]

    def test_a_call_within_it_is_not_made(self):
        text = hermes("f", "{}")
        assert parts([f"<think>{text}</think>x"], reasoning=THINK) == [Reasoning(text), Text("x")]

    def test_empty_or_closed_in_the_prompt_there_is_none(self):
        assert parts(["<think>\n\n</think>\n\nx"], reasoning=THINK) == [Text("x")]
        assert parts(["x"], reasoning=THINK, tail="<think>\n\n</think>\n\n") == [Text("x")]

    def test_tags_within_the_text_are_text(self):
        assert parts(["Use <think> and </think>."], reasoning=THINK) == [Text("Use <think> and </think>.")]

    def test_that_is_cut_short_is_reasoning(self):
        assert parts(["<think>a </thi"], reasoning=THINK) == [Reasoning("a </thi")]


def test_long_arguments_take_time_in_proportion_to_their_text():
    arguments = json.dumps({"code": 'x = "{[" ' * 20_000})
    start = time.thread_time()
    assert parts(list(hermes("f", arguments))) == made(("f", arguments))
    assert time.thread_time() - start < 10
