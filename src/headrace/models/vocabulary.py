"""A model's tokens: what bytes each stands for, which are control tokens, and which end a turn.

Read from GGUF metadata (github.com/ggml-org/ggml, docs/gguf.md, "Tokenizer"). This is all that turning ids
into text needs; `tokenizer` adds the way from text to ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from headrace.errors import ModelFileError, RequestError
from headrace.models.answers.syntax import ANSWER_TAGS

TOKENS_KEY = "tokenizer.ggml.tokens"
TYPES_KEY = "tokenizer.ggml.token_type"
_ID_KEY = "tokenizer.ggml.{}_token_id"

# Control tokens that end a turn or a text in the models of today, whichever of them the file names as eos.
_ENDINGS = frozenset(
    [
        *("<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|eot|>"),
        *("<end_of_turn>", "<EOT>", "</s>"),
    ]
)


class TokenType(IntEnum):
    """Kinds of tokens, numbered as in the file."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    """Found whole in any text; stands for itself."""
    UNUSED = 5
    BYTE = 6


_TEXTLESS = frozenset({TokenType.UNKNOWN, TokenType.CONTROL, TokenType.UNUSED})


def _byte_characters() -> str:
    """The character that stands for each byte in byte-level BPE (Radford et al., 2019, `bytes_to_unicode`).

    Visible Latin-1 characters stand for themselves; the other bytes take the characters from U+0100 on.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in visible else next(spare)) for byte in range(256))


BYTE_CHARACTERS = _byte_characters()
_TO_LATIN_1 = {ord(char): byte for byte, char in enumerate(BYTE_CHARACTERS)}


class Vocabulary:
    """Tokens by id. Raises ModelFileError, naming the key, where the metadata contradicts itself."""

    def __init__(self, metadata: Mapping[str, object]):
        self._tokens = string_list(metadata, TOKENS_KEY)
        self._types = _token_types(metadata, len(self._tokens))
        self.bos_id = self._special_id(metadata, "bos")
        """The token that begins a text, None where the model has none."""
        self.eos_id = self._special_id(metadata, "eos")
        self.add_bos = self.bos_id is not None and _flag(metadata, "tokenizer.ggml.add_bos_token")
        """Whether a prompt begins with `bos_id`."""
        named = [self.eos_id, self._special_id(metadata, "eot"), self._special_id(metadata, "eom")]
        controls = self.of_type(TokenType.CONTROL)
        endings = [controls.get(literal) for literal in _ENDINGS]
        self.eos_ids = frozenset(token for token in [*named, *endings] if token is not None)
        """Tokens at which generation ends."""
        self._check_normal_tokens()
        self._bytes: dict[int, bytes] = {}

    @property
    def vocab_size(self) -> int:
        """The number of tokens; ids run from 0."""
        return len(self._tokens)

    def literal(self, token: int | None) -> str:
        """The token as the file writes it, "" for None."""
        return "" if token is None else self._tokens[token]

    def of_type(self, kind: TokenType) -> dict[str, int]:
        """Ids of the tokens of one type, by their literals."""
        return {self._tokens[i]: i for i, this in enumerate(self._types) if this is kind}

    def has_text(self, token: int) -> bool:
        """Whether the token belongs to the text of an answer; control and unused tokens do not.

        The control tokens that structure an answer do: tags of calls and of reasoning.
        """
        return self._types[token] not in _TEXTLESS or self._tokens[token] in ANSWER_TAGS

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for, perhaps part of a character; a control token's are its literal.

        Raises RequestError on an id outside the vocabulary.
        """
        found = self._bytes.get(token)
        if found is None:
            if not 0 <= token < len(self._tokens):
                raise RequestError(
                    f"token id {token} is outside the vocabulary of {len(self._tokens)} tokens"
                )
            found = self._bytes[token] = self._to_bytes(token)
        return found

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of tokens; invalid UTF-8 becomes U+FFFD.

        Control and unused tokens give nothing, or their literals where `skip_special` is false.
        """
        pieces = ((token, self.token_bytes(token)) for token in ids)
        kept = [piece for token, piece in pieces if not skip_special or self.has_text(token)]
        return b"".join(kept).decode("utf-8", "replace")

    def _to_bytes(self, token: int) -> bytes:
        literal = self._tokens[token]
        if self._types[token] is TokenType.NORMAL:
            return literal.translate(_TO_LATIN_1).encode("latin-1")
        return literal.encode()

    def _special_id(self, metadata: Mapping[str, object], name: str) -> int | None:
        """The id that a key names, which is a control token from then on, whatever its type in the file."""
        key = _ID_KEY.format(name)
        value = metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < len(self._tokens):
            raise ModelFileError(f"{key}: {value!r} is no token id, expected 0 to {len(self._tokens) - 1}")
        self._types[value] = TokenType.CONTROL
        return value

    def _check_normal_tokens(self) -> None:
        normal = [self._tokens[i] for i, kind in enumerate(self._types) if kind is TokenType.NORMAL]
        if set("".join(normal)) <= set(BYTE_CHARACTERS):
            return
        bad = next(token for token in normal if not set(token) <= set(BYTE_CHARACTERS))
        raise ModelFileError(
            f"{TOKENS_KEY}: token {self._tokens.index(bad)}, {bad[:80]!r}, is not byte-level"
        )


def string_list(metadata: Mapping[str, object], key: str) -> list[str]:
    """The list of strings under `key`; raises ModelFileError where it is something else."""
    value = metadata.get(key)
    if not isinstance(value, list) or not set(map(type, value)) <= {str}:
        raise ModelFileError(
            f"{key}: expected a list of strings, found {'no such key' if value is None else 'others'}"
        )
    return value


def _token_types(metadata: Mapping[str, object], count: int) -> list[TokenType]:
    value = metadata.get(TYPES_KEY)
    if value is None:
        raise ModelFileError(f"{TYPES_KEY}: is missing")
    known = {int(kind): kind for kind in TokenType}
    try:
        types = [known[number] for number in list(value)]  # type: ignore[call-overload]
    except (TypeError, KeyError) as error:
        raise ModelFileError(f"{TYPES_KEY}: expected a list of the numbers 1 to 6") from error
    if len(types) != count:
        raise ModelFileError(f"{TYPES_KEY}: has {len(types)} entries, {TOKENS_KEY} has {count}")
    return types


def _flag(metadata: Mapping[str, object], key: str) -> bool:
    value = metadata.get(key, False)
    if not isinstance(value, bool):
        raise ModelFileError(f"{key}: {value!r} is neither true nor false")
    return value
