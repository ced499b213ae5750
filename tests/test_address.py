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


@pytest.mark.parametrize("key", ["", "two\r\nlines", "trailing\n", " padded ", "schlüssel", "a\x00b"])
def test_a_key_that_cannot_stand_in_a_header_is_refused_unseen(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^--api-key: expected") as error:
        parse_url("localhost", key)
    assert not key.strip() or key.strip() not in str(error.value)


def test_a_key_is_not_shown_with_its_address() -> None:
    assert "secret" not in repr(parse_url("localhost", "a-secret-key"))
