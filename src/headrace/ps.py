"""`headrace ps`: the models that a running server has in memory."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import click

from headrace.address import parse_url
from headrace.config import own_certificate, url_option
from headrace.errors import HeadraceError

_TIMEOUT_SECONDS = 10.0
_FOREVER_DAYS = 36500


@click.command()
@url_option
def ps(url: str) -> None:
    """List the models that a running server has loaded, and until when they stay."""
    for line in _lines(_loaded(url)):
        click.echo(line)


def _loaded(url: str) -> list[dict[str, Any]]:
    """Raises ConfigError for what is no URL, HeadraceError where no server tells."""
    address = parse_url(url, os.environ.get("HEADRACE_API_KEY"), own_certificate(url))
    connection = address.connection(_TIMEOUT_SECONDS)
    try:
        connection.request("GET", f"{address.base}/api/ps", headers=address.headers)
        response = connection.getresponse()
        told = json.loads(response.read())
        if response.status != 200:
            raise HeadraceError(f"{url} answers {response.status}: {told['error']}")
        models: list[dict[str, Any]] = told["models"]
    except OSError as error:
        raise HeadraceError(f"no server answers at {url}: {error.strerror or error}") from None
    except (http.client.HTTPException, ValueError, KeyError, TypeError):
        raise HeadraceError(f"what answers at {url} is no Headrace server") from None
    finally:
        connection.close()
    return models


def _lines(models: list[dict[str, Any]]) -> Iterator[str]:
    yield f"{'MODEL':<32} {'MEMORY':>10} {'CONTEXT':>8}  STAYS"
    for model in models:
        name, size = model["name"].removesuffix(":latest"), f"{model['size'] / 2**20:,.0f} MiB"
        yield f"{name:<32} {size:>10} {model['context_length']:>8}  {_until(model['expires_at'])}"


def _until(text: str) -> str:
    left = datetime.fromisoformat(text.replace("Z", "+00:00")) - datetime.now(timezone.utc)
    if left.days > _FOREVER_DAYS:
        return "for good"
    return f"for {max(0, round(left.total_seconds()))} s unless used"
