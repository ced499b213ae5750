"""How a bench prints what it measured."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click


def print_result(result: Mapping[str, object], as_json: bool) -> None:
    """One JSON object on one line of standard output, or a table for people."""
    if as_json:
        click.echo(json.dumps(result))
        return
    width = max(map(len, result))
    for name, value in result.items():
        shown = "  ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else value
        click.echo(f"{name:<{width}}  {shown}")
