"""How many replicas there are, from what the user wrote."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.fleet import FleetShape, Shapes


def test_there_is_one_replica_unless_more_or_roles_are_asked_for() -> None:
    assert Shapes.parse(None).of("any") == FleetShape(1)
    assert Shapes.parse("3").of("any").roles() == ["both"] * 3
    assert Shapes.parse(None, 1, 2).of("any").roles() == ["prefill", "decode", "decode"]
    assert Shapes.parse("1", 1, 0).of("any").roles() == ["both", "prefill"]
    assert Shapes.parse("0").of("any").count == 0


def test_a_model_may_have_a_number_of_its_own() -> None:
    shapes = Shapes.parse("a=2, b=0,3")
    assert [shapes.of(name).both for name in ("a", "b", "c")] == [2, 0, 3]


@pytest.mark.parametrize("text", ["x", "-1", "a=", "1.5", "a=b"])
def test_what_is_no_number_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="replicas"):
        Shapes.parse(text)


def test_roles_that_cannot_work_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="--prefill"):
        Shapes.parse(None, 0, 1)
    with pytest.raises(ConfigError, match="--decode"):
        Shapes.parse(None, 1, 0)
    with pytest.raises(ConfigError, match="at the most"):
        Shapes.parse("999")
