"""Certificates for servers of tests, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headrace.gateway.server import Tls


def self_signed(folder: Path, name: str, alternative: str) -> Tls:
    """One that nobody else has signed, for this name and an alternative such as IP:127.0.0.1."""
    return _made(folder, name, "-x509", "-addext", f"subjectAltName={alternative}")


def signed(folder: Path, name: str, by: Tls) -> Tls:
    """One that another has signed; its file holds that one, too."""
    made = _made(folder, name, "-x509", "-CA", str(by.cert), "-CAkey", str(by.key))
    made.cert.write_bytes(made.cert.read_bytes() + by.cert.read_bytes())
    return made


def _made(folder: Path, name: str, *options: str) -> Tls:
    cert, key = folder / f"{name}.pem", folder / f"{name}-key.pem"
    command = f"openssl req -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout {key} -out {cert}"
    try:
        subprocess.run([*command.split(), *options], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    return Tls(cert, key)
