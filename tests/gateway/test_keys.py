"""Keys in a file or the environment: what opens the server, what is said of a broken file, and reloading."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, RequestError
from headrace.gateway import callers as callers_module
from headrace.gateway.callers import ANONYMOUS, Caller, Callers
from headrace.gateway.errors import UnauthorizedError
from headrace.gateway.keys import KeyLimits, KeyRing, environment_key, new_key, read_keys

PLAIN = "a-key-that-someone-made-up"


def scope(**headers: str) -> dict[str, Any]:
    names = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return {"type": "http", "path": "/v1/models", "headers": list(names.items())}


def write(file: Path, text: str) -> Path:
    """As an editor does: a new file in the place of the old one."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)
    return file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def test_a_fresh_key_opens_the_server_by_its_hash(file: Path) -> None:
    (key, stored), (other, _) = new_key(), new_key()
    assert key != other and key not in stored
    write(file, f'[keys.alice]\nhash = "{stored}"\nweight = 2\n[keys.bob]\nkey = "{PLAIN}"\n')
    callers = Callers(file)
    for shown in ({"authorization": f"Bearer {key}"}, {"x_api_key": key}, {"api_key": key}):
        caller = callers.identify(scope(**shown))
        assert (caller.name, caller.weight) == ("alice", 2)
    assert callers.identify(scope(authorization=f"bearer {PLAIN}")).name == "bob"
    for wrong in (
        {},
        {"authorization": f"Bearer {other}"},
        {"authorization": f"Basic {key}"},
        {"x_api_key": ""},
    ):
        with pytest.raises(UnauthorizedError) as error:
            callers.identify(scope(**wrong))
        assert (error.value.status, error.value.code) == (401, "invalid_api_key")
        assert other not in str(error.value)


def test_without_keys_the_server_is_open() -> None:
    assert Callers().identify(scope()).name == ANONYMOUS


def test_a_file_without_keys_opens_nothing(file: Path) -> None:
    with pytest.raises(UnauthorizedError):
        Callers(write(file, "")).identify(scope())


def test_the_environments_key_stands_beside_the_files(file: Path) -> None:
    write(file, f'[keys.bob]\nkey = "{PLAIN}"')
    callers = Callers(file, environment_key("0123456789abcdef"))
    assert callers.identify(scope(x_api_key="0123456789abcdef")).name == "environment"
    assert callers.identify(scope(x_api_key=PLAIN)).name == "bob"
    with pytest.raises(ConfigError, match="HEADRACE_API_KEY is too short"):
        environment_key("short")


def test_only_hashes_are_held(file: Path) -> None:
    ring = KeyRing(read_keys(write(file, f'[keys.bob]\nkey = "{PLAIN}"')))
    assert PLAIN not in repr(vars(ring)) and PLAIN not in repr(ring.keys)
    assert ring.find(PLAIN.encode()) is ring.keys["bob"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[keys", "not valid TOML"),
        ("[key.bob]", r"only tables \[keys.NAME\]"),
        ("keys = 3", r"only tables \[keys.NAME\]"),
        ("[keys.bob]", r"\[keys.bob\]: give either 'hash' .* or 'key'"),
        ("[keys.bob]\nkey = 'short-but-secret'\nhash = 'x'", "give either"),
        ("[keys.bob]\nhash = 'sha256:12'", "'hash' must be 'sha256:' and 64"),
        ("[keys.bob]\nkey = 'tiny'", r"length >= 16.*\$.key"),
        (f"[keys.bob]\nkey = '{PLAIN}'\nrpm = 3", "unknown field `rpm`"),
        (f"[keys.bob]\nkey = '{PLAIN}'\nrequests_per_minute = 0", r">= 1.*\$.requests_per_minute"),
        (f"[keys.a]\nkey = '{PLAIN}'\n[keys.b]\nkey = '{PLAIN}'", "'a' and 'b' are the same key"),
        (f"[keys.environment]\nkey = '{PLAIN}'", "taken by HEADRACE_API_KEY"),
    ],
)
def test_a_broken_file_is_refused_without_telling_a_key(file: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        read_keys(write(file, text))
    assert str(file) in str(error.value)
    assert PLAIN not in str(error.value) and "short-but-secret" not in str(error.value)


def test_a_key_may_be_kept_to_some_models_and_priorities(file: Path) -> None:
    limits = "models = ['small']\npriority = 5"
    caller = Callers(write(file, f"[keys.bob]\nkey = '{PLAIN}'\n{limits}")).identify(scope(x_api_key=PLAIN))
    caller.check_model("small")
    with pytest.raises(RequestError) as error:
        caller.check_model("large")
    assert (error.value.status, error.value.code) == (404, "model_not_found")
    assert (caller.priority(-3), caller.priority(9)) == (5, 9)
    assert (caller.rank(5), caller.rank(9)) == (5, 9)


def test_only_the_keys_file_lets_a_key_go_before_others() -> None:
    assert Caller("unbounded", KeyLimits()).rank(-3) == 0
    assert Caller("urgent", KeyLimits(priority=-5)).rank(-3) == -3


def test_a_changed_file_is_read_and_a_broken_one_is_not(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callers_module, "_LOOK_SECONDS", 0.02)
    callers = Callers(write(file, f"[keys.bob]\nkey = '{PLAIN}'"))
    bob = callers.identify(scope(x_api_key=PLAIN))
    bob.limits.enter(0, 0.0)

    async def until(check: Any) -> None:
        for _ in range(500):
            if check():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it never came to be")

    def knows(key: str) -> bool:
        try:
            return bool(callers.identify(scope(x_api_key=key)))
        except UnauthorizedError:
            return False

    async def change() -> None:
        hurry = asyncio.Event()
        watching = asyncio.create_task(callers.watch(hurry))
        write(file, f"[keys.bob]\nkey = '{PLAIN}'\nweight = 3\n[keys.eve]\nkey = 'eves-very-own-key'")
        await until(lambda: knows("eves-very-own-key"))
        assert callers.identify(scope(x_api_key=PLAIN)) is bob and bob.weight == 3 and bob.limits.active == 1
        write(file, "[keys.bob")
        await until(lambda: "the keys stay as they were" in caplog.text)
        assert knows("eves-very-own-key")
        file.unlink()
        await until(lambda: "cannot be read" in caplog.text)
        assert knows(PLAIN)
        write(file, f"[keys.bob]\nkey = '{PLAIN}'")
        hurry.set()
        await until(lambda: not knows("eves-very-own-key"))
        watching.cancel()

    with caplog.at_level(logging.WARNING):
        asyncio.run(change())
    assert PLAIN not in caplog.text and "eves-very-own-key" not in caplog.text
