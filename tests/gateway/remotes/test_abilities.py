"""What a request needs of a model."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.remotes.asking import remote, request
from gateway.remotes.upstream import Upstream, stalling
from headrace.gateway.remotes.abilities import abilities_needed
from headrace.gateway.remotes.errors import RemoteError

TOOL = {"type": "function", "function": {"name": "look"}}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a.example/b"}}]}]


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ({}, set()),
        ({"tools": [TOOL]}, {"tools"}),
        ({"tools": [TOOL], "tool_choice": "none"}, set()),
        ({"tools": []}, set()),
        ({"messages": IMAGE}, {"vision"}),
        ({"response_format": {"type": "text"}}, set()),
        ({"response_format": {"type": "json_object"}}, {"json"}),
        ({"guided_regex": "a"}, {"json"}),
        ({"logprobs": True, "tools": [TOOL]}, {"logprobs", "tools"}),
    ],
)
def test_each_wish_needs_an_ability(fields: dict[str, Any], needed: set[str]) -> None:
    assert abilities_needed(request(**fields)) == needed


def test_a_remote_says_beforehand_what_it_cannot_be_asked() -> None:
    upstream = Upstream(stalling)
    upstream.url = "http://far.example"
    remote(upstream).check(request())
    remote(upstream, api="anthropic").check(request(top_k=5))
    for api, fields in (("openai", {"min_p": 0.5}), ("anthropic", {"n": 2})):
        with pytest.raises(RemoteError):
            remote(upstream, api=api).check(request(**fields))
