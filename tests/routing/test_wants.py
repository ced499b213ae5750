"""What requests ask of the route, in headers and bodies."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import RequestError
from headrace.routing.wants import Wants, WantsBody, wants_of

HEADERS = {
    "x-headrace-quality": "0.9",
    "x-headrace-max-first-token-ms": "300",
    "x-headrace-min-tokens-per-second": "20",
    "x-headrace-max-cost": "1e-2",
    "x-headrace-models": "small, large",
}


def test_headers_say_what_is_wanted() -> None:
    assert wants_of(HEADERS, None) == Wants(0.9, 0.3, 20.0, 0.01, ("small", "large"))
    assert wants_of({"content-type": "application/json"}, None) == Wants()


def test_the_body_beats_a_header_and_the_policy_says_the_rest() -> None:
    body = msgspec.json.decode(b'{"quality": 0.5, "models": ["a"]}', type=WantsBody)
    wants = wants_of({"x-headrace-quality": "0.9", "x-headrace-max-cost": "0"}, body)
    assert wants == Wants(quality=0.5, cost=0.0, models=("a",))
    defaults = Wants(quality=0.95, first_token=1.0, cost=5.0)
    assert wants.or_else(defaults) == Wants(0.5, 1.0, None, 0.0, ("a",))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quality", "0"),
        ("quality", "1.01"),
        ("quality", "nan"),
        ("quality", "-0.5"),
        ("quality", ""),
        ("quality", "0,9"),
        ("max-first-token-ms", "0"),
        ("max-first-token-ms", "inf"),
        ("max-first-token-ms", "1e99"),
        ("min-tokens-per-second", "1_0"),
        ("max-cost", "-1"),
        ("max-cost", "٣"),
        ("models", ""),
        ("models", "a,,b"),
    ],
)
def test_a_header_that_makes_no_sense_is_named(name: str, value: str) -> None:
    header = "x-headrace-" + name
    with pytest.raises(RequestError, match=f"^{header}: expected ") as error:
        wants_of({header: value}, None)
    assert (error.value.field, error.value.status) == (header, 400)


@given(st.sampled_from(sorted(HEADERS)), st.text(max_size=20))
def test_whatever_a_header_holds_it_is_read_or_refused(header: str, text: str) -> None:
    try:
        wants = wants_of({header: text}, None)
    except RequestError as error:
        assert error.field == header
    else:
        assert wants.quality is None or 0 < wants.quality <= 1


@pytest.mark.parametrize(
    "body",
    [
        '{"quality": 2}',
        '{"quality": "high"}',
        '{"max_cost": -1}',
        '{"models": []}',
        '{"quaility": 1}',
        '{"max_cost": 1e999}',
    ],
)
def test_a_body_that_makes_no_sense_is_refused(body: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(body, type=WantsBody)
