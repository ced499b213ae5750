"""The command line as a user meets it."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.running import running
from headrace import __version__
from headrace.gateway.callers import Callers
from headrace.gateway.keys import environment_key
from headrace.models.registry import DEFAULT_MODEL, known_models


def headrace(*args: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PATH": os.environ["PATH"]} | environment,
    )


def told(result: subprocess.CompletedProcess[str], status: int = 1) -> str:
    """What the user is told; one line, no traceback."""
    assert result.returncode == status, result.stderr
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def test_help_lists_the_verbs_without_loading_them() -> None:
    code = (
        "import sys; sys.argv = ['headrace', '--help']; from headrace.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'msgspec', 'uvicorn', 'starlette', 'tokenizers', 'zmq', 'asyncio'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60
    )
    for verb in ("serve", "chat", "generate", "pull", "bench", "doctor"):
        assert f"\n  {verb} " in run.stdout
    assert run.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("verb", "argument"), [("generate", "PROMPT"), ("pull", "NAME")])
def test_an_argument_that_is_left_out_is_named(verb: str, argument: str) -> None:
    result = headrace(verb)
    assert result.returncode == 2
    assert f"Missing argument '{argument}'" in result.stderr


def test_the_version_is_told() -> None:
    assert headrace("--version").stdout == f"headrace {__version__}\n"


@pytest.mark.parametrize("verb", ["serve", "chat", "generate", "pull"])
def test_every_verb_explains_itself(verb: str) -> None:
    result = headrace(verb, "--help")
    assert result.returncode == 0
    assert f"Usage: headrace {verb}" in result.stdout
    assert "None]" not in result.stdout  # as the bounds of what has none


def test_an_unknown_model_is_one_clear_line() -> None:
    for verb in ("pull", "generate"):
        args = ["--model", "no-such-model"] if verb == "generate" else []
        assert "no-such-model" in told(headrace(verb, "no-such-model", *args))
    assert "no-such-model" in told(headrace("serve", "--port", "0", "--model", "no-such-model"))


def test_a_warning_is_one_plain_line(synthetic_model: Path) -> None:
    pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")
    options = ("--model", str(synthetic_model), "--cache-tokens", "512", "--max-tokens", "1")
    warned = headrace("generate", *options, "hello").stderr
    assert warned.startswith("headrace: context lowered from 2048 to 512 tokens")
    assert warned.count("\n") == 1


@pytest.mark.parametrize("verb", ["pull", "serve"])
def test_who_waits_for_another_process_that_fetches_is_told_so(verb: str, tmp_path: Path) -> None:
    entry = next(entry for entry in known_models() if entry.name == DEFAULT_MODEL)
    folder = tmp_path / "models"
    folder.mkdir()
    arguments = [DEFAULT_MODEL] if verb == "pull" else ["--port", "0"]
    with (folder / f".{entry.file}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = subprocess.Popen(
            [sys.executable, "-m", "headrace", verb, *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
            | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HEADRACE_HOME": str(tmp_path)},
        )
        try:
            assert waiting.stderr is not None
            assert waiting.stderr.readline() == (
                f"headrace: {DEFAULT_MODEL}: another process is fetching it; waiting for that\n"
            )
        finally:
            waiting.kill()
            waiting.communicate()


def test_wrong_settings_are_one_clear_line(tmp_path: Path) -> None:
    assert "--port" in told(headrace("serve", "--port", "http"))
    assert "HEADRACE_THREADS" in told(headrace("serve", HEADRACE_THREADS="many"))
    file = tmp_path / "other.toml"
    file.write_text("max-queue = 0")
    assert f"'max-queue' in {file}" in told(headrace("--config", str(file), "serve"))


def test_the_file_of_settings_is_named_before_or_behind_the_verb(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text("max-queue = 0")
    for args in (["serve", "--config", str(file)], ["serve", f"--config={file}"]):
        assert f"'max-queue' in {file}" in told(headrace(*args))
    assert "Option '--config' requires an argument" in headrace("serve", "--config").stderr


def test_a_running_server_is_looked_for_where_the_settings_say_it_listens(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text('host = "0.0.0.0"\nport = 2')
    assert "no server answers at http://127.0.0.1:1:" in told(headrace("ps", HEADRACE_PORT="1"))
    assert "no server answers at http://127.0.0.1:2:" in told(headrace("ps", HEADRACE_CONFIG=str(file)))
    for verb in (["fleet", "status"], ["prefix", "list"]):
        assert "http://127.0.0.1:2" in told(headrace("--config", str(file), *verb))
    assert "port: " in told(headrace("ps", HEADRACE_PORT="tcp://10.0.0.1:80"))


def test_a_variable_that_is_no_setting_is_one_warning() -> None:
    warned = headrace("pull", "no-such-model", HEADRACE_PROT="1", HEADRACE_XYZZY="", HEADRACE_ISA="portable")
    assert warned.stderr.splitlines()[0] == (
        "headrace: ignored, for there is no such setting: HEADRACE_PROT (did you mean HEADRACE_PORT?), "
        "HEADRACE_XYZZY"
    )
    assert "no-such-model" in warned.stderr.splitlines()[1]


def test_a_port_in_use_is_told_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port} on 127.0.0.1 is in use" in told(headrace("serve", "--port", port))


def test_chat_keeps_the_conversation_until_it_is_reset() -> None:
    with running() as server:
        said = headrace(
            "chat", "--url", server.url, "--system", "Be brief.", "--max-tokens", "5", "--seed", "7",
            stdin="Hello\n\n/reset\nWho?\nWhy?\n/exit\nnever\n",
        )  # fmt: skip
        prompts = [bytes(submit.prompt).decode() for submit in server.engine.submitted]
        seeds = {submit.sampling.seed for submit in server.engine.submitted}
    assert said.stdout == "Water\n" * 3
    assert prompts == [
        "system:Be brief.;user:Hello;",
        "system:Be brief.;user:Who?;",
        "system:Be brief.;user:Who?;assistant:Water;user:Why?;",
    ]
    assert seeds == {7}


def test_chat_shows_its_key_to_the_server_and_to_nobody_else() -> None:
    key = "a-key-that-someone-made-up"
    with running(callers=Callers(key=environment_key(key))) as server:
        asked = ("chat", "--url", server.url, "--max-tokens", "5")
        flag = headrace(*asked, "--api-key", key, stdin="Hi\n")
        variable = headrace(*asked, stdin="Hi\n", HEADRACE_API_KEY=key)
        without = told(headrace(*asked, stdin="Hi\n"))
        broken = told(headrace(*asked, "--api-key", f"{key}\n", stdin="Hi\n"))
    assert flag.stdout == variable.stdout == "Water\n"
    assert "An API key is needed" in without and "--api-key" in broken
    assert key not in flag.stderr + variable.stderr + broken


def test_an_unknown_command_in_chat_is_told_the_commands_and_a_path_is_text() -> None:
    with running() as server:
        said = headrace("chat", "--url", server.url, "--max-tokens", "5", stdin="/restart now\n/etc/hosts?\n")
        prompts = [bytes(submit.prompt).decode() for submit in server.engine.submitted]
    assert prompts == ["user:/etc/hosts?;"]
    assert "There is no /restart: /reset begins" in said.stderr


def test_chat_goes_on_after_an_error() -> None:
    with running() as server:
        said = headrace("chat", "--url", f"{server.url}/v1", "--max-tokens", "5", stdin=f"{'a' * 600}\nHi\n")
    assert said.returncode == 0
    assert "This model's maximum context length is 512 tokens" in said.stderr
    assert said.stdout == "Water\n"


def test_chat_with_no_server_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    assert f"{url} does not answer" in told(headrace("chat", "--url", url))
    assert "--url" in told(headrace("chat", "--url", "http://:x"))


def test_an_interrupt_stops_the_answer_and_not_the_chat() -> None:
    with running(step_seconds=0.05) as server:
        chat = subprocess.Popen(
            [sys.executable, "-m", "headrace", "chat", "--url", server.url, "--max-tokens", "400"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert chat.stdin is not None and chat.stdout is not None
        chat.stdin.write(b"Hello\n")
        chat.stdin.flush()
        assert chat.stdout.read(5) == b"Water"
        chat.send_signal(signal.SIGINT)
        rest = chat.stdout.readline()
        assert len(rest) < 50
        chat.stdin.write(b"Again\n/exit\n")
        chat.stdin.flush()
        assert chat.stdout.read(5) == b"Water"
        chat.send_signal(signal.SIGINT)
        chat.communicate(timeout=20)
        assert chat.returncode == 0
        prompt = bytes(server.engine.submitted[1].prompt)
        assert prompt == b"user:Hello;assistant:Water" + rest.strip(b"\n") + b";user:Again;"
        assert len(server.engine.cancelled) == 2
