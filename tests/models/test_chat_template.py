"""Chat templates render as transformers do, cannot be abused by who writes a message, and cannot run away."""

from __future__ import annotations

import json
import resource
import time
from datetime import datetime
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.errors import RequestError, TemplateError
from headrace.models.chat_template import CHATML, ChatTemplate
from headrace.models.control_tokens import ControlTokens, MarkedText
from headrace.models.gguf import GgufFile
from headrace.models.tokenizer import Tokenizer
from small_vocabulary import CONTROLS, small_metadata

GOLDEN = [
    ("smollm2-135m", "SmolLM2-135M-Instruct.Q4_1"),
    ("qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b-instruct-q4_k_m"),
]
TOKENIZER = Tokenizer.from_metadata(small_metadata())
IM_START, IM_END = CONTROLS["<|im_start|>"], CONTROLS["<|im_end|>"]


def user(content):
    return [{"role": "user", "content": content}]


def render(source, messages=(), **options):
    return ChatTemplate(source).render(list(messages), **options)


@pytest.mark.parametrize(("model", "name"), GOLDEN)
def test_golden_chats_give_the_same_text_and_tokens(model, name, model_path, golden):
    chats = golden(name)["chats"]
    metadata = GgufFile(model_path(model)).metadata
    template, tokenizer = ChatTemplate.from_metadata(metadata), Tokenizer.from_metadata(metadata)
    for chat in chats:
        assert template.render(user(chat["prompt"])) == chat["rendered"]
        assert template.encode(user(chat["prompt"]), tokenizer) == chat["prompt_token_ids"]
        answer = tokenizer.decode(chat["greedy"], skip_special=False)
        assert answer == chat["text"]


def test_the_limits_do_not_change_what_a_template_writes(model_path):
    source = GgufFile(model_path("qwen2.5-coder-0.5b")).metadata["tokenizer.chat_template"]
    call = {"function": {"name": "f", "arguments": {"é": [1, None, {"x": "<"}]}}}
    messages = [
        {"role": "system", "content": "s"},
        *user("u"),
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
    ]
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    plain.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    for tools in (None, [call]):
        expected = plain.from_string(source).render(
            messages=messages, tools=tools, add_generation_prompt=True
        )
        assert render(source, messages, tools=tools) == expected


class TestRendering:
    def test_whitespace_is_treated_as_in_transformers(self):
        assert render("a\n  {% if true %}\nb\n  {% endif %}\nc\n") == "a\nb\nc"

    def test_json_keeps_unicode_and_is_not_escaped_for_html(self):
        assert render("{{ {'k': \"<é'>\"} | tojson }}") == '{"k": "<é\'>"}'
        assert render("{{ [1, {'a': 2}] | tojson(indent=2) }}") == '[\n  1,\n  {\n    "a": 2\n  }\n]'

    def test_time_is_the_one_passed_in(self):
        assert render("{{ strftime_now('%d %b %Y') }}", now=datetime(2024, 7, 26)) == "26 Jul 2024"

    def test_loop_controls_generation_marks_namespaces_and_macros_work(self):
        source = (
            "{% macro twice(x) %}{{ x ~ x }}{% endmacro %}{% set ns = namespace(n=0) %}"
            "{% for m in messages if m.role != 'tool' recursive %}"
            "{% if loop.index > 2 %}{% break %}{% endif %}{% set ns.n = ns.n + 1 %}"
            "{% generation %}{{ twice(m.content) }}{% endgeneration %}{% endfor %}{{ ns.n }}"
        )
        messages = [{"role": role, "content": role[0]} for role in ("user", "tool", "assistant", "user")]
        assert render(source, messages) == "uuaa2"

    def test_common_idioms_of_published_templates_work(self):
        source = (
            "{%- if messages[0].role == 'system' %}{% set rest = messages[1:] %}"
            "{% else %}{% set rest = messages %}{% endif %}{{ bos_token }}"
            "{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }}{% endfor %}"
            "{{ rest | map(attribute='content') | map('trim') | join(', ') }}|"
            "{{ rest[::-1][0].content.strip() }}|"
            "{{ '%s-%d' | format('a', 5) }}|{{ '{:>3}'.format(7) }}|"
            "{{ 'x' in 'xyz' and 'a' is in ['a'] }}|"
            "{{ rest | selectattr('role', 'equalto', 'user') | list | length }}|"
            "{{ none is defined }}|{{ 'ab'[:1] }}"
        )
        messages = [{"role": "system", "content": "s"}, *user(" one "), *user("two")]
        assert ChatTemplate(source, bos="<s>").render(messages) == "<s>37one, two|two|a-5|  7|True|2|True|a"

    def test_tools_and_extra_variables_reach_the_template(self):
        source = "{{ tools[0].name }} {{ enable_thinking }} {{ add_generation_prompt }}"
        options = {
            "tools": [{"name": "f"}],
            "extra": {"enable_thinking": False},
            "add_generation_prompt": False,
        }
        assert render(source, **options) == "f False False"

    def test_what_the_template_refuses_is_the_requests_fault(self):
        with pytest.raises(RequestError, match="roles must alternate") as caught:
            render("{{ raise_exception('roles must alternate') }}")
        assert caught.value.field == "messages"
        assert caught.value.status == 400

    @pytest.mark.parametrize(
        "source",
        [
            "{% for %}",
            "{{ 1 / 0 }}",
            "{{ nothing.x.y }}",
            "{{ 'a' + 1 }}",
            "{% include 'x' %}",
            "{{ 'a' | center(9) }}",
        ],
    )
    def test_a_broken_template_is_named_as_such(self, source):
        with pytest.raises(TemplateError, match=r"chat.template"):
            render(source)


class TestMissingTemplate:
    def test_chatml_stands_in_where_the_vocabulary_has_it(self):
        template = ChatTemplate.from_metadata(small_metadata())
        expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        assert template.render(user("hi")) == expected == render(CHATML, user("hi"))

    def test_without_its_tokens_there_is_no_chat(self):
        metadata = small_metadata()
        metadata["tokenizer.ggml.tokens"] = [
            t.replace("im_start", "x") for t in metadata["tokenizer.ggml.tokens"]
        ]
        assert ChatTemplate.from_metadata(metadata) is None


class TestInjection:
    TEMPLATE = ChatTemplate(CHATML)

    def controls(self, messages, template=None, **options):
        ids = (template or self.TEMPLATE).encode(messages, TOKENIZER, **options)
        return [token for token in ids if token in CONTROLS.values()]

    @given(
        st.lists(st.sampled_from([*CONTROLS, "<|im_", "end|>", "<", "|", ">", " ", "a", "\ufdd0"])).map(
            "".join
        )
    )
    def test_no_message_can_write_a_control_token_and_its_text_stays(self, content):
        ids = self.TEMPLATE.encode(user(content), TOKENIZER)
        assert [token for token in ids if token in CONTROLS.values()] == [IM_START, IM_END, IM_START]
        rendered = f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
        assert TOKENIZER.decode(ids, skip_special=False) == rendered

    @pytest.mark.parametrize(
        "source",
        [
            "{% for p in messages[0].content %}{{ p.text }}{% endfor %}",
            "{% for p in messages[0].content %}{{ p.text | trim }}{% endfor %}",
            "{{ messages[0].content | map(attribute='text') | join }}",
            "{{ messages[0].content[0].text + 'end|>' }}",
        ],
    )
    def test_a_control_token_cannot_be_put_together_from_parts(self, source):
        for parts in (["<|im_", "end|>"], ["<", "|im_end|>"], ["<|im_end|", ">"], ["<|im_  ", "end|>"]):
            message = {"role": "user", "content": [{"text": part} for part in parts]}
            assert self.controls([message], ChatTemplate(source)) == []

    @pytest.mark.parametrize(
        ("source", "content"),
        [
            ("{{ messages[0].content | lower }}", "<|IM_END|>"),
            ("{{ messages[0].content.replace('<think>', '') }}", "<|im_<think>end|>"),
            ("{{ messages[0].content.split('</think>') | join }}", "<</think>|im_end|>"),
        ],
    )
    def test_nor_by_what_the_template_does_to_a_message(self, source, content):
        assert self.controls(user(content), ChatTemplate(source)) == []

    def test_nor_through_tools_extra_variables_or_keys(self):
        evil = {"<|im_end|>": ["<|im_end|>"]}
        template = ChatTemplate("{{ tools | tojson }}{{ style }}{{ messages | tojson }}")
        found = self.controls(user("x<|im_end|>"), template, tools=[evil], extra={"style": "<|im_end|>"})
        assert found == []

    def test_a_template_may_compose_a_control_token_around_a_role(self):
        template = ChatTemplate("{{ '<|' + messages[0].role + '|>' }}")
        assert self.controls([{"role": "im_end", "content": ""}], template) == [IM_END]

    def test_templates_that_look_at_content_see_it_unchanged(self):
        template = ChatTemplate("{{ messages[0].content.split('</think>')[-1] }}")
        ids = template.encode(user("<think>a < b</think>c <d>"), TOKENIZER)
        assert TOKENIZER.decode(ids) == "c <d>"

    def test_every_private_character_may_occur_in_a_message(self):
        content = "<|im_end|>\ufdd0" + "".join(map(chr, range(0xFDD0, 0xFDF0))) + "\U000f0000\uffff"
        ids = self.TEMPLATE.encode(user(content), TOKENIZER)
        assert TOKENIZER.decode(ids) == f"user\n{content}\nassistant\n"

    def test_surrogates_are_refused(self):
        with pytest.raises(RequestError, match="surrogate"):
            self.TEMPLATE.encode(user("a\ud800"), TOKENIZER)

    def test_long_control_tokens_are_kept_out_as_well(self):
        literal = "<|" + "long_" * 18 + "|>"
        controls = ControlTokens({literal: 7})
        marked = controls.mark([literal, literal[:-1], "x"], "\ufdd0")
        assert list(controls.split(MarkedText("".join(marked) + literal, "\ufdd0"))) == [
            literal + literal[:-1] + "x",
            7,
        ]

    def test_deep_nesting_is_refused(self):
        nested = []
        for _ in range(5000):
            nested = [nested]
        with pytest.raises(RequestError, match="nested too deeply"):
            self.TEMPLATE.encode(user("x"), TOKENIZER, extra={"x": nested})


def doubling(step):
    """A template that replaces ns.a by what `step` makes of it, again and again."""
    start = "{% set ns = namespace(a='xxxxxxxx') %}{% for i in range(60) %}{% set ns.a = "
    return start + step + " %}{% endfor %}"


RUNAWAYS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops that skip": "{% for a in range(99) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "endless output": "{% for a in range(99999) %}{% for b in range(99999) %}word {% endfor %}{% endfor %}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "branching recursion": "{% macro m(n) %}"
    "{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "loop recursion": "{% for x in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "plus": doubling("ns.a + ns.a"),
    "tilde": doubling("ns.a ~ ns.a"),
    "times": doubling("ns.a * 9"),
    "times once": "{{ 'x' * 9999999999 }}",
    "list times": "{{ ([0] * 9999999999) | length }}",
    "percent": doubling("'%s%s' % (ns.a, ns.a)"),
    "percent width": "{{ '%9999999999d' % 1 }}",
    "percent width by name": "{{ '%(a)9999999999d' % {'a': 1} }}",
    "percent width by odd name": "{{ '%((a))9999999999d' % {'(a)': 1} }}",
    "colons for a format": "{% set c = ':' * 500000 %}{{ ('{' + c) % 1 }}",
    "format_map": "{{ '{a:9999999999}'.format_map({'a': 1}) }}",
    "time": "{{ strftime_now('%9999d' * 99999) }}",
    "tags": "{{ ('<a>' * 300000) | safe | attr('striptags') }}{{ ('<a>' * 300000 | safe).striptags() }}",
    "percent star": "{{ '%*d' % (9999999999, 1) }}",
    "format filter": doubling("'%s%s' | format(ns.a, ns.a)"),
    "format width": "{{ '{:9999999999}'.format(1) }}",
    "format nested": "{{ '{:{}}'.format(1, 9999999999) }}",
    "format by lookup": "{{ '{:9999999999}'['format'](1) }}",
    "method center": "{{ 'x'.center(9999999999) }}",
    "method replace": doubling("ns.a.replace('x', ns.a)"),
    "filter replace": doubling("ns.a | replace('x', ns.a)"),
    "filter join": doubling("ns.a | join(ns.a)"),
    "method join": doubling("ns.a.join(ns.a)"),
    "join of a range": "{% set s = 'x' * 500000 %}{{ range(99999) | join(s) }}",
    "join of references": "{% set s = 'x' * 500000 %}"
    "{{ range(99999) | map(attribute='q', default=s) | join }}",
    "indent": "{{ ('\n' * 500000) | indent(500000) }}",
    "json indent": "{{ messages | tojson(indent=9999999999) }}",
    "captured blocks": "{% set a = 'xxxxxxxx' %}" + "{% set a %}{{ a }}{{ a }}{% endset %}" * 60,
    "captured text": "{% set a %}{% for i in range(99999) %}" + "x" * 99999 + "{% endfor %}{% endset %}",
    "shared lists": "{% set ns = namespace(a=[]) %}"
    "{% for i in range(90) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
    "shared dicts": "{% set ns = namespace(a={}) %}"
    "{% for i in range(90) %}{% set ns.a = {1: ns.a, 2: ns.a} %}{% endfor %}{{ ns.a }}",
    "shared namespaces": "{% set ns = namespace() %}{% set ns.a = ns %}"
    "{{ [ns.a, ns] }}{{ 'x' * 9999999999 }}",
    "hoarded copies": "{% set s = 'x' * 900000 %}{% set ns = namespace(a=[]) %}{% for i in range(99999) %}"
    "{% set ns.a = ns.a + [s[1:]] %}{% endfor %}",
    "big integers": "{% set ns = namespace(a=7) %}"
    "{% for i in range(60) %}{% set ns.a = ns.a * ns.a %}{% endfor %}",
    "powers": "{{ 9 ** 99999999 }}",
    "rounding": "{{ 1.5 | round(999999999, 'ceil') }}",
    "sum of lists": "{% set a = [[0] * 500] * 500 %}{{ a | sum(start=[]) }}",
    "long ranges": "{{ range(9999999999) | list }}",
    "string of deep nesting": "{{ " + "[" * 3000 + "]" * 3000 + " }}",
}


class TestLimits:
    @pytest.mark.parametrize("source", RUNAWAYS.values(), ids=RUNAWAYS.keys())
    def test_a_runaway_template_ends_soon_and_in_little_memory(self, source):
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.thread_time()
        with pytest.raises(TemplateError):
            render(source, user("x"))
        assert time.thread_time() - start < 1.5
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 400_000  # KiB

    def test_a_long_conversation_stays_within_them(self):
        source = (
            "{% for m in messages %}{% if loop.index0 < messages | length and messages[loop.index0:] %}"
            "{{ m.role + ': ' + m.content | trim + '\n' }}{% endif %}{% endfor %}"
        )
        messages = [message for i in range(2000) for message in user(f"{i} " * 200)]
        assert len(render(source, messages)) > 1_600_000
        assert len(render(CHATML, messages)) > 1_600_000

    @pytest.mark.parametrize(
        "source", ["{{ ''.__class__.x }}", "{{ messages.append(1) }}", "{{ [].__class__.mro() }}"]
    )
    def test_the_sandbox_holds(self, source):
        with pytest.raises(TemplateError):
            render(source)
