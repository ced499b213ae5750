"""A server's URL as users write it."""

from __future__ import annotations

import pytest

from headrace.address import Address, parse_url
from headrace.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000", Address("127.0.0.1", 8000, False, "")),
        ("localhost:8000/v1/", Address("localhost", 8000, False, "")),
        ("https://models.example/api/v1", Address("models.example", 443, True, "/api")),
        ("http://[::1]", Address("::1", 80, False, "")),
    ],
)
def test_a_url_is_read_with_and_without_scheme_port_and_v1(url: str, address: Address) -> None:
    assert parse_url(url) == address


@pytest.mark.parametrize(
    "url", ["", "http://", "http://:8000", "ftp://host", "host:port", "host:99999", "http://["]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^--url: expected an address"):
        parse_url(url)
