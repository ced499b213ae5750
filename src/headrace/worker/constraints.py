"""Constraints on outputs, through the llguidance library: checked, compiled, and followed token by token."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from headrace.backends.step import UInt32
from headrace.errors import RequestError
from headrace.models.tokenizer import Tokenizer
from headrace.models.vocabulary import TokenType
from headrace.worker.messages import Constraint

_LONGEST = 256 * 1024
"""Characters of a constraint."""
_STACK_BYTES = 256 * 2**20
"""Of the thread that compiles, which recurses as deep as rules refer to rules; only what is used is paid."""
_COMPILED = 64
"""Compiled constraints that are kept."""
# A step of one mask stays within some tens of milliseconds, a constraint's automaton within some ten MiB.
_LIMITS = LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=50_000,
    max_lexer_states=20_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
# A model that may not write what it wants to, such as the end, writes white space as long as it may: most
# often before a comma. So a gap is a blank, or a new line and its indentation; no two of them in a row.
_JSON_OPTIONS: Any = {"whitespace_pattern": r" |\n( {0,20}|\t{0,8})"}
_BRANCHES = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf")
_SINGLE = ("items", "additionalProperties", "additionalItems", "contains", "not", "if", "then", "else")
_TRIES, _TRIED_CHARACTERS = 500, 2_000_000
"""Parts of a schema that are tried to find the one at fault, and how long they may be together."""


def check(constraint: Constraint) -> None:
    """Raises RequestError, saying what is wrong where, for a constraint that cannot be compiled.

    It may take a second, in which other threads can run; what was found good before takes none.
    """
    if len(constraint.text) > _LONGEST:
        raise RequestError(f"the constraint has {len(constraint.text)} characters; {_LONGEST} are allowed")
    _check_once(constraint.kind, constraint.text)


@lru_cache(maxsize=64)
def _check_once(kind: str, text: str) -> None:
    _compiler().submit(_check, kind, text).result()


def _check(kind: str, text: str) -> None:
    grammar = _grammar(kind, text)
    fault = _fault(grammar)
    if not fault and kind != "lark":  # which may name tokens of the model
        fault = _unusable(LLMatcher(LLTokenizer("byte"), grammar, log_level=0, limits=_LIMITS))
    if fault:
        where = f"at {_place(json.loads(text), fault)}: " if kind == "json_schema" else ""
        raise RequestError(where + _shortened(kind, fault))


def schema_in_lark(text: str) -> str:
    """A schema's text as a term of a Lark grammar, with the same white space as where it stands alone."""
    text = "{}" if text.strip() == "true" else text.strip()
    if not text.startswith("{"):
        return f"%json {text}"
    rest = text[1:].lstrip()
    comma = "" if rest == "}" else ", "
    return f'%json {{"x-guidance": {json.dumps(_JSON_OPTIONS)}{comma}{rest}'


class Constraints:
    """Compiles constraints for one model. Equal ones are compiled once, as long as they are remembered."""

    def __init__(self, vocab_size: int, open_tokenizer: Callable[[], Tokenizer]):
        """`vocab_size` is the backend's; the tokenizer is only opened when there is a constraint."""
        self._vocab_size = vocab_size
        self._open_tokenizer = open_tokenizer
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[Constraint, LLMatcher] = OrderedDict()

    def compile(self, constraint: Constraint) -> Future[TokenMatcher]:
        """A matcher for one output, made on another thread; RequestError where it cannot be."""
        return _compiler().submit(self._compile, constraint)

    def _compile(self, constraint: Constraint) -> TokenMatcher:
        found = self._compiled.get(constraint)
        if found is None:
            if self._tokenizer is None:
                self._tokenizer = make_tokenizer(self._open_tokenizer(), self._vocab_size)
            grammar = _grammar(constraint.kind, constraint.text)
            found = LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)
            if fault := _unusable(found):
                raise RequestError(_shortened(constraint.kind, fault))
            self._compiled[constraint] = found
            if len(self._compiled) > _COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(constraint)
        return TokenMatcher(found.deep_copy())


class TokenMatcher:
    """Implements `headrace.engine.constraint.Matcher`."""

    def __init__(self, matcher: LLMatcher):
        self._matcher = matcher
        self.error = ""

    @property
    def finished(self) -> bool:
        return not self.error and self._matcher.is_stopped()

    def fill(self, mask: UInt32) -> None:
        if not self.error:
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            self._look(bool(mask.any()), "nothing can follow")
        if self.error:
            mask.fill(0xFFFFFFFF)

    def allowed(self, tokens: Sequence[int]) -> int:
        return 0 if self.error else self._matcher.validate_tokens(list(tokens))

    def advance(self, token: int) -> None:
        if not self.error:
            self._look(self._matcher.consume_token(token), f"token {token} cannot follow")

    def rollback(self, count: int) -> None:
        if not self.error:
            self._look(self._matcher.rollback(count), "it cannot go back")

    def _look(self, good: bool, otherwise: str) -> None:
        if not good or self._matcher.is_error():
            reason = self._matcher.get_error().split("\n")[0][:300] or otherwise
            self.error = f"the constraint could not be followed any further: {reason}"


class _Tokens:
    """A vocabulary as LLTokenizer wants it. Forced text is cut into tokens as the model's own is."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, vocab_size: int):
        self._tokenizer = tokenizer
        known = range(tokenizer.vocab_size)
        padding = [b""] * (vocab_size - len(known))
        self.tokens = [tokenizer.token_bytes(token) for token in known] + padding
        kinds = TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED
        self.special_token_ids = [token for kind in kinds for token in tokenizer.of_type(kind).values()]
        self.bos_token_id = tokenizer.bos_id
        self.eos_token_id = _endings(tokenizer)[0]

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_bos=False)


def make_tokenizer(tokenizer: Tokenizer, vocab_size: int) -> LLTokenizer:
    """Raises RequestError where the model has no token that ends a text."""
    tokens: Any = _Tokens(tokenizer, vocab_size)
    return LLTokenizer(tokens, eos_token=_endings(tokenizer))


def _endings(tokenizer: Tokenizer) -> list[int]:
    """Every token that ends an output, the file's own end-of-text token first."""
    endings = sorted(tokenizer.eos_ids, key=lambda token: (token != tokenizer.eos_id, token))
    if not endings:
        raise RequestError("this model has no end-of-text token, so its output cannot be constrained")
    return endings


@cache
def _compiler() -> ThreadPoolExecutor:
    """One thread with a stack for the deepest of grammars that llguidance's own limits let pass."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="constraints")
    before = threading.stack_size(_STACK_BYTES)
    try:
        pool.submit(int)
    finally:
        threading.stack_size(before)
    return pool


def _grammar(kind: str, text: str) -> str:
    """The constraint in llguidance's own form. Raises RequestError for text that is no JSON."""
    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    if kind == "lark":
        return LLMatcher.grammar_from_lark(text)
    try:
        schema = json.loads(text)
        return LLMatcher.grammar_from_json_schema("{}" if schema is True else text, defaults=_JSON_OPTIONS)
    except json.JSONDecodeError as error:
        raise RequestError(f"the schema is no JSON: {error}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the schema cannot be read: {str(error)[:200]}") from error


def _fault(grammar: str) -> str:
    """What is wrong with a grammar, empty for nothing."""
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=_LIMITS)
    return messages[0] if failed else ""


def _unusable(matcher: LLMatcher) -> str:
    """Why not even a first token can be found, empty where one can; the first mask is the dearest."""
    if not matcher.is_error():
        matcher.compute_bitmask()
    fault = matcher.get_error()
    return "nothing matches it" if fault.startswith("NoExtension") else fault


def _shortened(kind: str, fault: str) -> str:
    if kind == "regex":  # which stands in a grammar that the client did not write
        fault = re.sub(r"^.*?(?=regex parse error)", "", fault, count=1, flags=re.DOTALL)
        fault = re.sub(r"\n +\d+ \| .*", "", fault, flags=re.DOTALL)
    return fault.replace("\n<non-verbose/>", "").strip()[:800]


def _place(schema: object, fault: str) -> str:
    """The innermost part of a schema that has the fault by itself, as a path from its root, "$"."""
    path, root = "$", schema
    tries = min(_TRIES, _TRIED_CHARACTERS // len(json.dumps(schema)))
    while True:
        for name, part in _parts(schema):
            tries -= 1
            if tries < 0:
                return path
            if isinstance(part, dict) and isinstance(root, dict):
                known = {key: root[key] for key in ("$defs", "definitions") if key in root}
                alone = json.dumps({**known, **part})
                if _fault(_grammar("json_schema", alone)) == fault:
                    path, schema = f"{path}.{name}", part
                    break
        else:
            return path


def _parts(schema: object) -> Iterator[tuple[str, object]]:
    """The schemas within a schema, with the way to each."""
    if not isinstance(schema, dict):
        return
    for key in _BRANCHES:
        if isinstance(schema.get(key), dict):
            yield from ((f"{key}.{name}", part) for name, part in schema[key].items())
    for key in _LISTS:
        if isinstance(schema.get(key), list):
            yield from ((f"{key}[{index}]", part) for index, part in enumerate(schema[key]))
    for key in _SINGLE:
        if key in schema:
            yield key, schema[key]
