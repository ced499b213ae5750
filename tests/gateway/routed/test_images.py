"""What requests with images may cost at most: nobody here knows how many tokens an image has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from gateway.remotes.upstream import openai_answer
from gateway.routed.fleet import Fleet, eventually, far, routed
from headrace.gateway.openai.requests import ChatMessage, ChatRequest, ContentPart
from headrace.gateway.routed.need import Need, need_of
from headrace.gateway.routed.prompt_length import PromptLength
from headrace.routing.tables import IMAGE_TOKENS

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + 1000 * "A"}}


def seeing(tokens: int = 30, **table: Any) -> dict[str, Any]:
    """A model that takes images, and tells so many tokens of its prompts."""
    return far(openai_answer("Seen.", usage=(tokens, 2)), abilities=["vision"], max_output=100, **table)


def asked(images: int) -> dict[str, Any]:
    content = [{"type": "text", "text": "What is this?"}, *[IMAGE] * images]
    return {"model": "far", "messages": [{"role": "user", "content": content}]}


def look(fleet: Fleet, images: int = 1, **fields: Any) -> httpx.Response:
    return fleet.chat(**asked(images), **fields)


def most_cost(fleet: Fleet, images: int) -> float:
    """As /v1/route says it."""
    (candidate,) = fleet.explain(**asked(images))["candidates"]
    return float(candidate["most_cost"])


def test_each_image_may_cost_what_the_table_says(tmp_path: Path) -> None:
    with routed(tmp_path, {"far": seeing(image_tokens=1000)}) as fleet:
        most = [most_cost(fleet, images) for images in range(3)]
        assert [round(1e6 * (each - most[0])) for each in most] == [0, 1000, 2000]
        assert look(fleet, headrace={"max_cost": 0.001}).json()["error"]["code"] == "max_cost"
        assert look(fleet, headrace={"max_cost": 0.0013}).status_code == 200


def test_an_image_fits_a_budget_however_large_it_proves(tmp_path: Path) -> None:
    told = IMAGE_TOKENS - 1000
    with routed(tmp_path, {"far": seeing(told)}, budgets={"per_day": 0.06}) as fleet:
        assert look(fleet).json()["usage"]["prompt_tokens"] == told
        eventually(lambda: fleet.spent() == (1000 * (told + 2), 0))
        assert look(fleet).json()["error"]["code"] == "budget_exceeded"
        assert look(fleet, images=0).status_code == 200


def test_no_prompt_has_more_tokens_than_the_context(tmp_path: Path) -> None:
    with routed(tmp_path, {"far": seeing(context_length=8000)}, budgets={"per_request": 0.0081}) as fleet:
        assert look(fleet, images=3).status_code == 200


def test_lengths_of_texts_are_not_learnt_from_prompts_with_images() -> None:
    def need(images: int) -> Need:
        parts = [ContentPart("text", "word " * 100), *[ContentPart("image_url", image_url="data:")] * images]
        return need_of(ChatRequest(model="far", messages=[ChatMessage("user", parts)]))

    length = PromptLength()
    before = length.save()
    length.observed(need(1), 2000)
    assert length.save() == before
    length.observed(need(0), 100)
    assert length.save() != before
