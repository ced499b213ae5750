"""Virtual environments of the peers: one each, made once, so that nothing they need reaches headrace's."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from side_by_side.process import BUILD, Command, PeerError, output_of

INSTALL_SECONDS = 3600
"""llama.cpp is compiled, which takes ten minutes on two cores, and the wheels of vLLM are large."""


class Environment:
    """A virtual environment under build/peers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = BUILD / name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        """Its site-packages."""
        (found,) = (self.folder / "lib").glob("python3*/site-packages")
        return found

    @property
    def installed(self) -> bool:
        """Whether `finish` was reached."""
        return self._stamp.exists()

    def create(self) -> None:
        """An empty environment, where there is none."""
        if not self.python.exists():
            print(f"peers: making an environment for {self.name}", file=sys.stderr, flush=True)
            venv.create(self.folder, with_pip=True)

    def provide(self, requirement: str) -> None:
        """Install a package with all it requires, where that is not done. Raises PeerError."""
        if not self.installed:
            self.create()
            self.install([requirement])
            self.finish()

    def install(
        self, requirements: Sequence[str], *options: str, env: Mapping[str, str] | None = None
    ) -> None:
        """Install from the package index, politely towards whoever shares the machine. Raises PeerError."""
        pip: Command = ["nice", "-n", "10", self.python, "-m", "pip", "--disable-pip-version-check"]
        pip += ["install", "-q", *options, *requirements]
        output_of(pip, f"install-{self.name}", INSTALL_SECONDS, env=env)

    def finish(self) -> None:
        """Remember that all is installed."""
        self._stamp.touch()

    def version(self, package: str) -> str:
        """Version of an installed package."""
        code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
        found = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=False)
        if found.returncode != 0:
            raise PeerError(f"{package} is not installed")
        return found.stdout.strip()

    def requirements(self, package: str) -> list[str]:
        """What an installed package requires, its extras apart."""
        code = f"import importlib.metadata as m, json; print(json.dumps(m.requires({package!r})))"
        found = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True)
        return [line for line in json.loads(found.stdout) if "extra ==" not in line]

    @property
    def _stamp(self) -> Path:
        return self.folder / "installed"
