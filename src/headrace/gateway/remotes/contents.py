"""What messages consist of, for a remote model: texts and images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.gateway.errors import missing, unsupported
from headrace.gateway.openai.requests import ChatMessage, ContentPart, ImageUrl

TEXTS = ("text", "input_text", "output_text")


@dataclass(frozen=True, slots=True)
class Image:
    """An image by its URL, which may hold it (`data:`)."""

    url: str
    detail: str | None
    field: str
    """Where the request has it."""


def contents(message: ChatMessage, where: str) -> Iterator[str | Image]:
    """The message's texts and images in order. Raises RequestError that names a part which is neither."""
    if isinstance(message.content, str):
        yield message.content
        return
    for i, part in enumerate(message.content or ()):
        yield _content(part, f"{where}.content[{i}]")


def images_in(messages: list[ChatMessage]) -> Iterator[str]:
    """The URLs of all images."""
    for message in messages:
        if isinstance(message.content, list):
            for part in message.content:
                if isinstance(part.image_url, ImageUrl):
                    yield part.image_url.url
                elif part.image_url is not None:
                    yield part.image_url


def _content(part: ContentPart, where: str) -> str | Image:
    if part.type == "image_url":
        if part.image_url is None:
            raise missing(f"{where}.image_url")
        if isinstance(part.image_url, str):
            return Image(part.image_url, None, f"{where}.image_url")
        return Image(part.image_url.url, part.image_url.detail, f"{where}.image_url.url")
    if part.type not in (*TEXTS, "refusal"):
        raise unsupported(f"{where}.type")
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        raise missing(f"{where}.text")
    return text
