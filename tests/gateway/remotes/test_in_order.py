"""Calls of tools that a remote sends all at once come one after the other."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.remotes.in_order import InOrder
from headrace.models.answer import AnswerPart, CallArguments, CallStart, Text, join_parts


def test_a_call_without_arguments_gets_an_empty_object_before_what_follows() -> None:
    order = InOrder()
    assert order.add(CallStart(0, "now")) == [CallStart(0, "now")]
    assert order.add(CallStart(1, "look")) == []
    assert order.add(CallArguments(1, '{"at":"sky"}')) == []
    assert order.end() == [
        CallArguments(0, "{}"),
        CallStart(1, "look"),
        CallArguments(1, '{"at":"sky"}'),
    ]


def test_a_call_behind_a_complete_one_is_not_held_back() -> None:
    order = InOrder()
    for part in (CallStart(0, "look"), CallArguments(0, '{"a":'), CallArguments(0, "1}"), Text("and")):
        assert order.add(part) == [part]
    assert order.add(CallStart(1, "now")) == [CallStart(1, "now")]
    assert order.end() == [CallArguments(1, "{}")]


def test_arguments_behind_those_that_were_complete_are_refused() -> None:
    order = InOrder()
    for part in (CallStart(0, "look"), CallArguments(0, "{}"), Text("and")):
        order.add(part)
    with pytest.raises(ValueError):
        order.add(CallArguments(0, "{}"))


@given(st.lists(st.lists(st.sampled_from(['{"a":', '"}",', '"b":{}', "}"])), max_size=4), st.randoms())
def test_nothing_is_lost_and_each_call_is_told_in_one_go(calls: list[list[str]], luck: Random) -> None:
    """The calls' arguments come in any mixture."""
    order = InOrder()
    told: list[AnswerPart] = []
    left = [list(pieces) for pieces in calls]
    for number in range(len(calls)):
        told += order.add(CallStart(number, "look"))
    while any(left):
        number = luck.choice([each for each, pieces in enumerate(left) if pieces])
        try:
            told += order.add(CallArguments(number, left[number].pop(0)))
        except ValueError:
            return
    told += order.end()
    expected: list[AnswerPart] = []
    for number, pieces in enumerate(calls):
        expected += [CallStart(number, "look"), CallArguments(number, "".join(pieces) or "{}")]
    assert join_parts(told) == expected
