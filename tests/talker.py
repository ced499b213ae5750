"""Python processes that a test talks to, line by line."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from types import TracebackType


class Talker:
    """A process that runs `code`; its standard input and output are the conversation."""

    def __init__(self, code: str, *arguments: object) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment,
        )

    def say(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")

    def hear(self, seconds: float = 30) -> str:
        """The process's next line."""
        assert self.process.stdout is not None
        assert not self.silent(seconds), "the process says nothing"
        return self.process.stdout.readline().strip()

    def silent(self, seconds: float) -> bool:
        """Whether the process says nothing for so long."""
        return not select.select([self.process.stdout], [], [], seconds)[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Talker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()
