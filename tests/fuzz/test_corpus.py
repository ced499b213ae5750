"""Every case that fuzzing has kept still ends well."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.targets import TARGETS

CASES = sorted((Path(__file__).parent / "corpus").glob("*/*"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}-{case.name}")
def test_a_kept_case_ends_well(case: Path) -> None:
    TARGETS[case.parent.name](case.read_bytes())
