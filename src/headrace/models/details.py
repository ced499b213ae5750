"""What a model file says of itself, for listings: family, size, quantization, template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path

from headrace.models.chat_template import ChatTemplate
from headrace.models.gguf import GgufFile

_FILE_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K"},
    **{11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M"},
    **{18: "Q6_K", 32: "BF16"},
}
"""general.file_type as llama.cpp numbers it (enum llama_ftype): what most of a file's tensors are."""

_LONGEST_VALUE = 16
"""Items of a metadata array that is kept; vocabularies are not."""
_CACHED = 256


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """A model in figures."""

    architecture: str
    parameters: int
    quantization: str
    context_length: int | None
    """Tokens that the model was made for."""
    embedding_length: int | None
    chat_template: str | None
    chats: bool
    tools: bool
    """Its template has a place for tools."""
    thinking: bool
    """Its template knows text that the model writes for itself."""
    digest: str
    """SHA-256 over the header and a sample of every tensor; see `GgufFile.digest`."""
    metadata: Mapping[str, object]
    """Without the vocabulary and other long arrays."""

    @property
    def parameter_size(self) -> str:
        """The count of parameters as people write it: 134.5M, 1.5B."""
        unit, letter = (10**9, "B") if self.parameters >= 10**9 else (10**6, "M")
        return f"{self.parameters / unit:.1f}{letter}"


def model_details(path: Path) -> ModelDetails:
    """Reads the file's header, some tenths of a second for a large vocabulary; again only once it changed.

    Raises ModelFileError, TemplateError for a file that is broken or not supported.
    """
    status = path.stat()
    return _read(path, status.st_mtime_ns, status.st_size)


@lru_cache(_CACHED)
def _read(path: Path, modified: int, size: int) -> ModelDetails:
    with GgufFile(path) as file:
        metadata = file.metadata
        architecture = str(metadata.get("general.architecture", "unknown"))
        template = metadata.get("tokenizer.chat_template")
        source = template if isinstance(template, str) else ""
        sizes: Counter[str] = Counter()
        for name in file:
            tensor = file.tensor(name)
            sizes[tensor.type.name] += prod(tensor.shape)
        return ModelDetails(
            architecture=architecture,
            parameters=sizes.total(),
            quantization=_quantization(metadata, sizes),
            context_length=_count(metadata.get(f"{architecture}.context_length")),
            embedding_length=_count(metadata.get(f"{architecture}.embedding_length")),
            chat_template=source or None,
            chats=ChatTemplate.from_metadata(metadata) is not None,
            tools="tools" in source,
            thinking="<think>" in source or "enable_thinking" in source,
            digest=file.digest(),
            metadata={key: value for key, value in metadata.items() if _is_short(value)},
        )


def _quantization(metadata: Mapping[str, object], sizes: Counter[str]) -> str:
    """As the file names it, else the type of most of its parameters."""
    number = metadata.get("general.file_type")
    named = _FILE_TYPES.get(number) if isinstance(number, int) else None
    return named or (sizes.most_common(1)[0][0] if sizes else "unknown")


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _is_short(value: object) -> bool:
    return isinstance(value, (str, int, float)) or (isinstance(value, list) and len(value) <= _LONGEST_VALUE)
