"""`python -m headrace` is `headrace`."""

from __future__ import annotations

from headrace.cli import main

main()
