"""Runs code that a model wrote where it does no harm: a process with little time, memory and disk.

It starts without the caller's environment, in an empty folder that is removed, as nobody where that can be
had, and without a network where the kernel lets it be taken away (`unshare`). It can still read the files of
this machine: this is a guard against accidents, which is what such code makes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

_SECONDS = 10
_MEMORY = 1 << 30
_FILE = 1 << 20
_PROCESSES = 64
_NOBODY = 65534


def passes(code: str, seconds: int = _SECONDS) -> bool:
    """Whether the code runs to its end: without an exception, an exit of its own, or more than its share."""
    done = b"it ran to its end"
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "answer.py")
        script.write_text(f"{code}\nimport sys\nsys.__stdout__.write({done.decode()!r})\n", encoding="utf-8")
        Path(folder).chmod(0o777)  # it runs as another user
        with Path(folder, "output").open("w+b") as output:  # no pipe: so it, too, is held to _FILE
            process = subprocess.Popen(
                [*_without_network(), sys.executable, "-I", "-S", str(script)],
                cwd=folder,
                env={"PATH": os.defpath, "HOME": folder, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=functools.partial(_limit, seconds),
            )
            try:
                status = process.wait(timeout=2 * seconds)
            except subprocess.TimeoutExpired:
                return False
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            return status == 0 and output.read().endswith(done)


@functools.cache
def _without_network() -> tuple[str, ...]:
    """The command that takes the network away and, from root, its rights; empty where there is none."""
    unshare, setpriv = shutil.which("unshare"), shutil.which("setpriv")
    if unshare is None:
        return ()
    command: tuple[str, ...] = (unshare, "--net", "--map-root-user")
    if os.geteuid() == 0:
        command = (unshare, "--net")
        if setpriv is not None:
            user = (f"--reuid={_NOBODY}", f"--regid={_NOBODY}")
            command += (setpriv, *user, "--clear-groups", "--no-new-privs")
    works = subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if works else ()


def _limit(seconds: int) -> None:
    """In the child, before anything of it runs."""
    for what, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, _MEMORY),
        (resource.RLIMIT_FSIZE, _FILE),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_NPROC, _PROCESSES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
