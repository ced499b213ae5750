"""Chat templates: the Jinja2 program in a model file that turns messages into a prompt.

Variables, functions and whitespace are those of Hugging Face transformers (`apply_chat_template`). A template
comes with a file from anywhere, and so runs in a sandbox with limits (`template_sandbox`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property, partial
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes

from headrace.errors import HeadraceError, ModelFileError, RequestError, TemplateError
from headrace.models.control_tokens import ControlTokens, MarkedText, choose_markers
from headrace.models.template_limits import Budget, text_size
from headrace.models.template_messages import (
    call_shapes,
    wants_short_ids,
    with_call_objects,
    with_ending,
)
from headrace.models.template_sandbox import LimitedEnvironment, budget_variables
from headrace.models.tokenizer import Tokenizer
from headrace.models.vocabulary import TOKENS_KEY, string_list

TEMPLATE_KEY = "tokenizer.chat_template"
MAX_SOURCE = 200_000
"""Characters of a template; published ones have up to some 30 thousand."""
MAX_TIME_PATTERN = 200

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""For models that have the control tokens of ChatML and no template."""

Messages = Sequence[Mapping[str, Any]]


class _RefusedError(Exception):
    """What `raise_exception` raises: the template does not accept these messages."""


class ChatTemplate:
    """A template, compiled once. May render in several threads at a time."""

    def __init__(self, source: str, *, bos: str = "", eos: str = ""):
        """`bos` and `eos` are the literals that the template knows as `bos_token` and `eos_token`.

        Raises TemplateError where the source is no template.
        """
        self._source = source
        self._constants = {"bos_token": bos, "eos_token": eos, "raise_exception": _refuse}
        if len(source) > MAX_SOURCE:
            raise TemplateError(f"{TEMPLATE_KEY}: {len(source)} characters, more than {MAX_SOURCE}")
        try:
            self._template = LimitedEnvironment().compile_limited(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"{TEMPLATE_KEY}: line {error.lineno}: {error.message}") from error
        except Exception as error:  # Python's compiler, on what Jinja2 made of a template nested too deeply
            raise TemplateError(f"{TEMPLATE_KEY}: {type(error).__name__}: {error}") from error

    @property
    def source(self) -> str:
        """The template as the file has it."""
        return self._source

    @cached_property
    def knows_tools(self) -> bool:
        """Whether the template reads the variable `tools`."""
        tree = LimitedEnvironment().parse(self._source)
        return any(name.name == "tools" and name.ctx == "load" for name in tree.find_all(nodes.Name))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], variant: str = "") -> ChatTemplate | None:
        """The template of a GGUF file, or ChatML's where the file has none but has the tokens for it.

        A `variant` is another template that some files have beside it ("tool_use"). None where there is
        neither: a model without a template completes text, it does not chat. Raises TemplateError.
        """
        tokens = string_list(metadata, TOKENS_KEY)
        source = metadata.get(f"{TEMPLATE_KEY}.{variant}" if variant else TEMPLATE_KEY)
        if source is None and not variant and {"<|im_start|>", "<|im_end|>"} <= set(tokens):
            source = CHATML
        if source is None:
            return None
        if not isinstance(source, str):
            raise ModelFileError(f"{TEMPLATE_KEY}: expected a string")
        ids = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos"))
        bos, eos = (tokens[i] if isinstance(i, int) and 0 <= i < len(tokens) else "" for i in ids)
        return cls(source, bos=bos, eos=eos)

    def render(
        self,
        messages: Messages,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> str:
        """The prompt as text, for reading only: nothing in it tells control tokens from what users wrote.

        `extra` are further variables of the template (`enable_thinking`, …), `now` is the time that
        `strftime_now` tells, None the current one. Raises RequestError where the template refuses the
        messages, TemplateError where it fails or exceeds its limits.
        """
        variables = {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        budget = Budget(text_size([variables, extra]))
        try:
            given = {
                "documents": None,
                **(extra or {}),
                **variables,
                **self._constants,
                **budget_variables(budget),
            }
            given["strftime_now"] = partial(_format_time, now or datetime.now())
            return self._run(given, budget)
        except _RefusedError as refusal:
            raise RequestError(f"the model's chat template refuses: {refusal}", "messages") from refusal
        except HeadraceError:
            raise
        except Exception as error:  # a template can raise anything that an expression of Python can
            raise TemplateError(f"the chat template failed: {type(error).__name__}: {error}") from error

    def encode(self, messages: Messages, tokenizer: Tokenizer, **variables: Any) -> list[int]:
        """The prompt as token ids, else as `render`. No string of the request becomes a control token."""
        return tokenizer.encode_prompt(self.render_marked(messages, tokenizer.controls, **variables))

    def render_marked(
        self,
        messages: Messages,
        controls: ControlTokens,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
        now: datetime | None = None,
        continue_final: bool = False,
    ) -> MarkedText:
        """The prompt as text that tells its own control tokens from what users wrote, else as `render`.

        `continue_final` ends it right behind the content of the last message, an answer's beginning.
        """
        try:
            marker, end = choose_markers(self._source, messages, tools, extra)
            # Arguments become objects first: a control token may hide in the escapes of their JSON text.
            messages = with_call_objects(messages, short_ids=wants_short_ids(self._source))
            messages, tools, extra = (controls.mark(value, marker) for value in (messages, tools, extra))
        except RecursionError as error:
            raise RequestError("the messages or tools are nested too deeply", "messages") from error
        if continue_final:
            messages = with_ending(messages, end)
        text = self._render_calls(
            messages,
            add_generation_prompt=add_generation_prompt and not continue_final,
            tools=tools,
            extra=extra,
            now=now,
        )
        if continue_final:
            text, found, _ = text.rpartition(end)
            if not found:
                raise RequestError("the model's chat template leaves the last message out", "messages")
        return MarkedText(text, marker, controls.tail(MarkedText(text, marker)))

    def _render_calls(self, messages: Messages, **options: Any) -> str:
        """The rendered text; calls are tried in the shapes that templates expect, the usual one first."""
        first, *others = call_shapes(messages)
        try:
            return self.render(first, **options)
        except TemplateError as error:
            # It joined what cannot be joined, such as an object and a string.
            if not others or not isinstance(error.__cause__, TypeError):
                raise
            for shape in others:
                with suppress(TemplateError):
                    return self.render(shape, **options)
            raise

    def _run(self, variables: dict[str, Any], budget: Budget) -> str:
        pieces, size = [], 0
        for piece in self._template.generate(variables):
            size += len(piece)
            budget.check_output(size)
            pieces.append(piece)
        return "".join(pieces)


def _format_time(now: datetime, pattern: str) -> str:
    if len(pattern) > MAX_TIME_PATTERN:
        raise TemplateError(f"the chat template's time format is longer than {MAX_TIME_PATTERN} characters")
    return now.strftime(pattern)


def _refuse(message: object) -> NoReturn:
    raise _RefusedError(str(message))
