"""A secret as a file that is in no folder and on no disk, for what reads secrets from files."""

from __future__ import annotations

import os
from pathlib import Path


def secret_file(secret: str) -> Path:
    """Readable by this process alone, for as long as it lives."""
    descriptor = os.memfd_create("secret", os.MFD_CLOEXEC)
    os.write(descriptor, secret.encode())
    return Path(f"/proc/self/fd/{descriptor}")
