"""Fuzzes for some minutes, guided by coverage (atheris): no crash, no hang, no unbounded memory.

Run by `make fuzz`: `run.py [TARGET …] [--seconds N]`. A case that fails is kept in tests/fuzz/found; move it
to the corpus once its cause is mended. What runs learn is kept in .fuzz, apart from the committed corpus.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import re
import subprocess
import sys
from pathlib import Path

from fuzz.json_mutator import mutated

HERE = Path(__file__).parent
LEARNT = HERE.parents[1] / ".fuzz"
_TARGETS = ["gguf", "requests"]
_SECONDS_OF_ONE_CASE = 25
_MIB = 2048
"""Resident memory that no case may bring the process to."""
_LONGEST = 16384


def fuzz(name: str, arguments: list[str]) -> None:
    """Fuzzes one target in this process; does not return."""
    import atheris

    with atheris.instrument_imports(include=["headrace"]):
        logging.disable()  # each refusal would be a line
        from fuzz import targets

    fields = sorted(field_names())

    def mutate(case: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        made = mutated(case, rng, fields) if rng.random() < 0.7 else None
        return atheris.Mutate(case, max_size) if made is None or len(made) > max_size else made

    mutator = {"custom_mutator": mutate} if name == "requests" else {}
    atheris.Setup([sys.argv[0], *arguments], targets.TARGETS[name], **mutator)
    atheris.Fuzz()


def arguments(name: str, seconds: int) -> list[str]:
    """Those of libFuzzer."""
    learnt, found = LEARNT / name, HERE / "found"
    for folder in (learnt, found):
        folder.mkdir(parents=True, exist_ok=True)
    return [
        str(learnt),
        str(HERE / "corpus" / name),
        f"-max_total_time={seconds}",
        f"-timeout={_SECONDS_OF_ONE_CASE}",
        f"-rss_limit_mb={_MIB}",
        f"-max_len={_LONGEST}",
        f"-artifact_prefix={found}/{name}-",
        "-print_final_stats=1",
        "-verbosity=1",
    ]


def field_names() -> set[str]:
    """The names of all fields of bodies."""
    from gateway.fake_engine import ByteWords, FakeEngine
    from headrace.gateway.admission import Admission
    from headrace.gateway.app import create_app
    from headrace.gateway.openapi import describe
    from headrace.gateway.served import ServedModel
    from headrace.gateway.state import Gateway

    model = ServedModel("fake", FakeEngine(), ByteWords(), 64)
    app = create_app(Gateway({"fake": model}, Admission(1), 1))
    schemas = json.dumps(describe(app.routes)["components"]["schemas"])  # type: ignore[arg-type]
    return set(re.findall(r'"([a-z_]{2,40})": {', schemas))


def main() -> int:
    """The exit status: 0 where nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(_TARGETS)}; all where none is named")
    parser.add_argument("--seconds", type=int, default=180, help="for each target")
    given = parser.parse_args()
    if unknown := set(given.targets) - set(_TARGETS):
        parser.error(f"there is no {', '.join(unknown)}")
    status = 0
    for name in given.targets or _TARGETS:
        print(f"fuzzing {name} for {given.seconds} s", flush=True)
        command = [sys.executable, __file__, "--one", name, *arguments(name, given.seconds)]
        status |= subprocess.run(command, check=False).returncode
    return int(status != 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        fuzz(sys.argv[2], sys.argv[3:])
    sys.exit(main())
