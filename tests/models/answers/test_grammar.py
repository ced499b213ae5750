"""Forced calls match their functions' schemas and the family's own syntax, and the parser reads them back."""

from __future__ import annotations

import json

import pytest

from headrace.models.answer import CallArguments, CallStart
from headrace.models.answers.formats import FamilyFormat
from headrace.models.answers.syntax import BARE, HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, THINK

llguidance = pytest.importorskip("llguidance")

CONTROLS = {"<|im_end|>": 256, "[TOOL_CALLS]": 257, "[ARGS]": 258, "<|python_tag|>": 259}
PLAIN = [b"<tool_call>", b'": {"', b'{"name": "', b'"}}']


class ByteTokenizer:
    """A token for each byte, some control tokens, and some that span the borders of a grammar's parts."""

    is_tokenizer_wrapper = True
    eos_token_id = 256
    bos_token_id = None
    tokens = [*(bytes([byte]) for byte in range(256)), *(text.encode() for text in CONTROLS), *PLAIN]  # noqa: RUF012
    special_token_ids = list(CONTROLS.values())  # noqa: RUF012

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)


TOKENIZER = llguidance.LLTokenizer(ByteTokenizer())
WEATHER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}},
    "required": ["city"],
    "$defs": {"city": {"type": "string"}},
}
STRANGE = 'a"\\/é\n'


def tool(name, parameters=None, **more):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


TOOLS = [tool("weather", WEATHER), tool("now"), tool(STRANGE)]


def ids(text):
    for literal, token in CONTROLS.items():
        text = text.replace(literal, chr(0xE000 + token))
    found = []
    for char in text:
        found += [ord(char) - 0xE000] if 0xE000 <= ord(char) < 0xE200 else list(char.encode())
    return found


def accepts(grammar, text, tokens=None):
    assert llguidance.LLMatcher.validate_grammar(grammar, TOKENIZER) == ""
    matcher = llguidance.LLMatcher(TOKENIZER, grammar)
    tokens = ids(text) if tokens is None else tokens
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def written(syntax, *calls):
    objects = [
        f'{{"name": {json.dumps(name)}, "{syntax.arguments_key}": {arguments}}}' for name, arguments in calls
    ]
    if syntax is HERMES:
        return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in objects)
    if syntax is MISTRAL:
        return f"[TOOL_CALLS][{', '.join(objects)}]"
    if syntax is MISTRAL_NAMED:
        return "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in calls)
    return "\n".join(objects)


PARIS, NOW = ("weather", '{"city": "Par</tool_call>is"}'), ("now", "{}")
NAMED = {"type": "function", "function": {"name": "now"}}
FAMILIES = pytest.mark.parametrize("syntax", [HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, BARE])


@FAMILIES
def test_required_is_one_call_or_more_and_nothing_else(syntax):
    family = FamilyFormat(syntax, None, CONTROLS)
    grammar = family.grammar(TOOLS, "required", True)
    for calls in ([PARIS], [NOW], [PARIS, NOW, PARIS]):
        text = written(syntax, *calls)
        assert accepts(grammar, text) == (len(calls) == 1 or syntax.several)
        parser = family.parser(TOOLS, "")
        found = [*parser.push(text), *parser.finish()]
        assert [p.name for p in found if isinstance(p, CallStart)] == [name for name, _ in calls]
        assert [p.text for p in found if isinstance(p, CallArguments)] == [text for _, text in calls]
    for text in ("", "Hello", written(syntax, PARIS)[:-1], written(syntax, ("other", "{}"))):
        assert not accepts(grammar, text)


@FAMILIES
def test_arguments_match_the_schema(syntax):
    grammar = FamilyFormat(syntax, None, CONTROLS).grammar(TOOLS, "required", True)
    for arguments in ("{}", '{"city": 1}', '{"city": "x", "zip": 1}', "[]"):
        assert not accepts(grammar, written(syntax, ("weather", arguments)))
    assert accepts(grammar, written(syntax, ("now", '{"any": [1, null]}')))


@FAMILIES
def test_one_function_is_called_once(syntax):
    grammar = FamilyFormat(syntax, None, CONTROLS).grammar(TOOLS, NAMED, True)
    assert accepts(grammar, written(syntax, NOW))
    assert not accepts(grammar, written(syntax, PARIS))
    assert not accepts(grammar, written(syntax, NOW, NOW))


@FAMILIES
def test_without_parallel_calls_there_is_one(syntax):
    grammar = FamilyFormat(syntax, None, CONTROLS).grammar(TOOLS, "required", False)
    assert accepts(grammar, written(syntax, NOW))
    assert not accepts(grammar, written(syntax, NOW, NOW))


def test_any_name_can_be_written():
    grammar = FamilyFormat(HERMES, None, CONTROLS).grammar(TOOLS, "required", True)
    assert accepts(grammar, written(HERMES, (STRANGE, "{}")))


def test_tokens_may_span_tags_and_json():
    grammar = FamilyFormat(HERMES, None, CONTROLS).grammar(TOOLS, "required", True)
    tag, middle, head, end = (260 + i for i in range(4))
    tokens = [tag, *b"\n", head, *b'weather", "arguments', middle, *b'city": "x', end, *b"\n</tool_call>"]
    assert accepts(grammar, "", tokens)


class TestReasoning:
    def test_may_come_first(self):
        grammar = FamilyFormat(HERMES, THINK, CONTROLS).grammar(TOOLS, "required", True)
        assert accepts(grammar, written(HERMES, NOW))
        assert accepts(grammar, "<think>\nhm { <b> \n</think>\n\n" + written(HERMES, NOW))
        assert not accepts(grammar, "<think>\nhm</think>Hello")

    def test_goes_on_where_the_prompt_began_it(self):
        grammar = FamilyFormat(HERMES, THINK, CONTROLS).grammar(TOOLS, "required", True, "<think>\n")
        assert accepts(grammar, "hm\n</think>\n\n" + written(HERMES, NOW))
        assert not accepts(grammar, written(HERMES, NOW))

    def test_comes_before_other_constrained_answers_too(self):
        family = FamilyFormat(HERMES, THINK, {**CONTROLS, "<think>": 300, "</think>": 257})
        grammar = family.after_reasoning('answer: %json {"type": "array"}', "<think>")
        assert accepts(grammar, "hm [TOOL_CALLS]\n[1]")
        assert not accepts(grammar, "[1]")


class TestFreeChoice:
    def test_has_no_grammar_unless_a_function_is_strict(self):
        strict = [tool("weather", WEATHER, strict=True)]
        for syntax in (HERMES, LLAMA, MISTRAL, MISTRAL_NAMED):
            family = FamilyFormat(syntax, None, CONTROLS)
            assert family.grammar(TOOLS, "auto", True) is None
            assert family.grammar(strict, "auto", True) is not None
            assert family.grammar(strict, "none", True) is None
        assert FamilyFormat(BARE, None, CONTROLS).grammar(strict, "auto", True) is None

    @pytest.mark.parametrize("syntax", [HERMES, MISTRAL, MISTRAL_NAMED])
    def test_a_strict_call_matches_its_schema_and_text_is_free(self, syntax):
        tools = [tool("weather", WEATHER, strict=True), tool("now")]
        grammar = FamilyFormat(syntax, None, CONTROLS).grammar(tools, "auto", True)
        assert accepts(grammar, "Hello <b> {\n")
        assert accepts(grammar, written(syntax, PARIS))
        assert accepts(grammar, "I look.\n" + written(syntax, PARIS, NOW) + "\nSo.")
        assert not accepts(grammar, "I look.\n" + written(syntax, ("weather", "{}")))
        assert not accepts(grammar, "I look.\n" + written(syntax, ("other", "{}")))


def test_what_llguidance_cannot_do_is_ignored_unless_strict():
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "unheard-of"}}}
    family = FamilyFormat(HERMES, None, CONTROLS)
    assert accepts(
        family.grammar([tool("f", schema)], "required", True), written(HERMES, ("f", '{"a": "x"}'))
    )
    strict = family.grammar([tool("f", schema, strict=True)], "required", True)
    assert llguidance.LLMatcher.validate_grammar(strict, TOKENIZER) != ""
