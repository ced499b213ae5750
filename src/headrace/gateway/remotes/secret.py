"""Keeping a remote's key out of whatever is told."""

from __future__ import annotations

from headrace.errors import ConfigError

_PIECE = 8
"""So many of the key's characters in a row give it away."""
_HIDDEN = "***"


class Secret:
    """A remote's key. Shows itself nowhere but in `reveal`."""

    __slots__ = ("_key", "_pieces")

    def __init__(self, name: str, key: str | None):
        """`name` is the remote's. Raises ConfigError for a key that no header can hold."""
        key = (key or "").strip()
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(f"The key of the remote model '{name}' has characters that no key has.")
        self._key = key
        self._pieces = {key[i : i + _PIECE] for i in range(len(key) - _PIECE + 1)}

    def reveal(self) -> str:
        """The key, for a header; empty where there is none."""
        return self._key

    def scrub(self, text: str) -> str:
        """The text without the key, and without recognisable pieces of it."""
        if not self._key:
            return text
        if not self._pieces:
            return text.replace(self._key, _HIDDEN)
        hidden = [False] * len(text)
        for i in range(len(text) - _PIECE + 1):
            if text[i : i + _PIECE] in self._pieces:
                hidden[i : i + _PIECE] = [True] * _PIECE
        out: list[str] = []
        for i, letter in enumerate(text):
            if not hidden[i]:
                out.append(letter)
            elif not i or not hidden[i - 1]:
                out.append(_HIDDEN)
        return "".join(out)

    def __repr__(self) -> str:
        return "Secret()"
