"""The answer format of a model family, recognised from its model file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.models.answer import AnswerParser, PlainParser
from headrace.models.answers.functions import Tools, functions
from headrace.models.answers.grammar import CallGrammar
from headrace.models.answers.parser import FamilyParser
from headrace.models.answers.syntax import CallSyntax, ReasoningSyntax, call_syntax, reasoning_syntax
from headrace.models.vocabulary import TokenType, Vocabulary


@dataclass(frozen=True, slots=True)
class FamilyFormat:
    """What the models of a family write besides text."""

    calls: CallSyntax
    reasoning: ReasoningSyntax | None
    control_ids: Mapping[str, int]
    """Ids of the control tokens by their literals: a grammar must name these by number."""

    @classmethod
    def recognise(cls, template: str, vocabulary: Vocabulary) -> FamilyFormat:
        """By the source of the chat template, or of all its variants together, and by the vocabulary."""
        controls = vocabulary.of_type(TokenType.CONTROL)
        literals = controls.keys() | vocabulary.of_type(TokenType.USER_DEFINED).keys()
        return cls(call_syntax(template, literals), reasoning_syntax(template, literals), controls)

    def parser(self, tools: Tools | None, prompt_tail: str) -> AnswerParser:
        """For one answer; without tools nothing is a call.

        `prompt_tail` is the prompt's text behind its last control token (`MarkedText.tail`): a template, or
        an answer that is continued, may have begun the reasoning there.
        """
        if not tools and self.reasoning is None:
            return PlainParser()
        names = {function.name for function in functions(tools or [])}
        return FamilyParser(self.calls if tools else None, self.reasoning, names, self._thinks(prompt_tail))

    def grammar(
        self, tools: Tools, choice: str | Mapping[str, Any], parallel: bool, prompt_tail: str = ""
    ) -> str | None:
        """What an answer must match under OpenAI's `tool_choice`, in llguidance's dialect of Lark.

        "required" and a named function force calls whose arguments match their functions' schemas, behind
        reasoning where the model thinks. Under "auto" the answer is free, None, unless a function is strict
        and the family marks its calls by a tag: then what follows the tag must be a call.
        """
        offered = functions(tools)
        grammar = CallGrammar(self.calls, self.reasoning, self.control_ids)
        thinks = self._thinks(prompt_tail)
        if isinstance(choice, Mapping):
            name = choice["function"]["name"]
            chosen = [function for function in offered if function.name == name]
            return grammar.forced(chosen, several=False, thinks=thinks)
        if choice == "required":
            return grammar.forced(offered, several=parallel and self.calls.several, thinks=thinks)
        if choice == "auto" and self.calls.tag and any(function.strict for function in offered):
            return grammar.free(offered, thinks=thinks)
        return None

    def after_reasoning(self, rules: str, prompt_tail: str) -> str | None:
        """A grammar for an answer that matches Lark rules, of which the first is `answer`.

        Reasoning may come before it, and must where the prompt has begun it. None for models that do not
        think.
        """
        if self.reasoning is None:
            return None
        grammar = CallGrammar(self.calls, self.reasoning, self.control_ids)
        return grammar.around(rules, thinks=self._thinks(prompt_tail))

    def _thinks(self, prompt_tail: str) -> bool:
        if self.reasoning is None:
            return False
        return prompt_tail.rfind(self.reasoning.opening) > prompt_tail.rfind(self.reasoning.closing)
