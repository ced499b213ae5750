"""An open model file as the gateway uses it: prompts to tokens, and tokens to bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import RequestError
from headrace.models.answer import AnswerFormat
from headrace.models.answers.formats import FamilyFormat
from headrace.models.chat_template import ChatTemplate
from headrace.models.control_tokens import MarkedText
from headrace.models.tokenizer import Tokenizer
from headrace.worker.loader import OpenModel


class ModelPrompter:
    """The tokenizer and the chat template of a model file."""

    def __init__(self, model: OpenModel):
        """Raises ModelFileError or TemplateError for what is broken or not supported."""
        self._name = model.name
        self._tokenizer = Tokenizer.from_metadata(model.weights.metadata)
        self._template = ChatTemplate.from_metadata(model.weights.metadata)
        self._tool_template = ChatTemplate.from_metadata(model.weights.metadata, "tool_use") or self._template
        sources = [template.source for template in (self._template, self._tool_template) if template]
        self._format = FamilyFormat.recognise("".join(sources), self._tokenizer)

    @property
    def chats(self) -> bool:
        """Whether the model was made to chat: it has a chat template."""
        return self._template is not None

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def knows_tools(self) -> bool:
        """Whether the chat template can offer tools."""
        return self._tool_template is not None and self._tool_template.knows_tools

    @property
    def answer_format(self) -> AnswerFormat:
        """What the model writes besides text."""
        return self._format

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
    ) -> MarkedText:
        """A conversation's text up to where the answer begins.

        `tools` are as OpenAI writes them, `extra` further variables of the template; `continue_final` ends
        the text behind the last message's content. Raises RequestError for a model without a template and
        where the template refuses or knows no tools, TemplateError where it fails.
        """
        template = self._tool_template if tools else self._template
        if template is None:
            raise RequestError(
                f"'{self._name}' has no chat template, so it was not made to chat; use /v1/completions.",
                "messages",
                code="no_chat_template",
            )
        if tools and not template.knows_tools:
            raise RequestError(
                f"The chat template of '{self._name}' knows no tools; leave them out or use another model.",
                "tools",
                code="unsupported_value",
            )
        return template.render_marked(
            messages,
            self._tokenizer.controls,
            tools=tools,
            extra=extra,
            add_generation_prompt=add_generation_prompt,
            continue_final=continue_final,
        )

    def fewest_tokens(self, prompt: str | MarkedText) -> int:
        """No tokenization gives fewer; known without one."""
        return self._tokenizer.fewest_tokens(prompt)

    def encode(self, prompt: str | MarkedText, *, add_special: bool = True) -> list[int]:
        """A text's tokens, behind the token that the model begins every text with, if any and wanted."""
        if isinstance(prompt, str):
            return self._tokenizer.encode(prompt, add_bos=add_special)
        return self._tokenizer.encode_prompt(prompt)

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokenizer.token_bytes(token_id)
