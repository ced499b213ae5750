"""Blocks as files: what is not whole is never served, and the folder never outgrows its bound."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.worker.tiers.block_file import HEADER_BYTES, BrokenBlockError
from headrace.worker.tiers.disk import Block, DiskStore

SIZE = 1000


def digest(number: int) -> bytes:
    return number.to_bytes(2, "big") * 8


def block(number: int, size: int = SIZE) -> Block:
    """A block of two groups, the content of which follows from its number."""
    data = memoryview(bytes((number + i) % 256 for i in range(size)))
    return Block(digest(number), (data[: size // 4], data[size // 4 :]))


def write(store: DiskStore, *numbers: int) -> None:
    for number in numbers:
        store.write([block(number)], lambda _: None, time.time_ns())


def read(store: DiskStore, number: int, size: int = SIZE) -> bytes | None:
    data = bytearray(size)
    view = memoryview(data)
    return bytes(data) if store.read(digest(number), (view[: size // 2], view[size // 2 :])) else None


def content(number: int) -> bytes:
    return b"".join(block(number).parts)


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.block"))


def used(folder: Path) -> int:
    return sum(path.stat().st_size for path in files(folder))


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path, "f", 100 * SIZE)


def test_a_block_is_read_as_it_was_written_and_written_once(store: DiskStore, tmp_path: Path) -> None:
    sizes: list[int] = []
    for _ in range(2):
        store.write([block(1), block(2)], sizes.append, time.time_ns())
    assert sizes == [SIZE + HEADER_BYTES] * 2
    assert store.contains(digest(1)) and not store.contains(digest(3))
    assert (read(store, 1), read(store, 2), read(store, 3)) == (content(1), content(2), None)
    again = DiskStore(tmp_path, "f", 100 * SIZE)
    assert read(again, 1) == content(1)


def test_other_fingerprints_find_nothing(store: DiskStore, tmp_path: Path) -> None:
    write(store, 1)
    other = DiskStore(tmp_path, "g", 100 * SIZE)
    assert not other.contains(digest(1)) and read(other, 1) is None


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: data[:-1], id="short"),
        pytest.param(lambda data: data + b"x", id="long"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: bytes(len(data)), id="zeros"),
        pytest.param(lambda data: data[:600] + bytes([data[600] ^ 1]) + data[601:], id="one bit"),
        pytest.param(lambda data: b"hrblock0" + data[8:], id="another format"),
    ],
)
def test_a_broken_file_is_refused_and_removed(store: DiskStore, tmp_path: Path, change) -> None:
    write(store, 1, 2)
    path = next(path for path in files(tmp_path) if path.stem == digest(1).hex())
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(BrokenBlockError):
        read(store, 1)
    assert not path.exists() and read(store, 1) is None
    write(store, 1)
    assert (read(store, 1), read(store, 2)) == (content(1), content(2))


def test_a_block_under_the_name_of_another_is_refused(store: DiskStore, tmp_path: Path) -> None:
    write(store, 1, 2)
    one, two = files(tmp_path)
    one.write_bytes(two.read_bytes())
    with pytest.raises(BrokenBlockError):
        read(store, 1)


def test_the_least_recently_used_make_room(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, "f", 10 * (SIZE + HEADER_BYTES))
    write(store, *range(10))
    assert store.use(digest(0)) and not store.use(digest(99))
    write(store, 10)
    assert used(tmp_path) <= store.capacity
    assert store.contains(digest(0)) and store.contains(digest(10)) and not store.contains(digest(1))


def test_of_blocks_written_at_once_the_first_stay_longest(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, "f", 10 * (SIZE + HEADER_BYTES))
    store.write([block(n) for n in range(8)], lambda _: None, time.time_ns())
    write(store, *range(100, 105))
    assert [store.contains(digest(n)) for n in range(8)] == sorted(
        (store.contains(digest(n)) for n in range(8)), reverse=True
    )
    assert store.contains(digest(0)) and not store.contains(digest(7))


def test_a_folder_that_holds_no_block_takes_none(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, "f", SIZE)
    write(store, 1, 2)
    assert files(tmp_path) == [] and not store.contains(digest(1))


def test_a_smaller_bound_is_kept_from_the_start(store: DiskStore, tmp_path: Path) -> None:
    write(store, *range(20))
    smaller = DiskStore(tmp_path, "f", 5 * (SIZE + HEADER_BYTES))
    assert len(files(tmp_path)) == 5 and smaller.contains(digest(19))


def test_files_of_others_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    note = tmp_path / "a" / "b" / "note.txt"
    note.parent.mkdir(parents=True)
    note.write_text("mine")
    store = DiskStore(tmp_path, "f", 3 * SIZE)
    write(store, *range(10))
    assert note.read_text() == "mine"


def test_several_threads_share_a_folder(tmp_path: Path) -> None:
    bound = 20 * (SIZE + HEADER_BYTES)
    stores = [DiskStore(tmp_path, "f", bound) for _ in range(3)]
    wrong: list[int] = []

    def run(store: DiskStore, seed: int) -> None:
        for turn in range(150):
            number = (turn * 7 + seed) % 40
            if (found := read(store, number)) is None:
                write(store, number)
            elif found != content(number):
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(store, 3 * n)) for n, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert used(tmp_path) <= bound


WRITE_FOR_EVER = """
import sys, time
from pathlib import Path
from headrace.worker.tiers.disk import Block, DiskStore
store = DiskStore(Path(sys.argv[1]), "f", int(sys.argv[2]))
print("ready", flush=True)
for number in range(10**9):
    name = (number % 500).to_bytes(2, "big") * 8
    data = memoryview(bytes((number % 500 + i) % 256 for i in range(1000)))
    store.write([Block(name, (data,))], lambda _: None, time.time_ns())
"""


def test_what_a_killed_process_leaves_is_neither_served_nor_counted_short(tmp_path: Path) -> None:
    bound = 30 * (SIZE + HEADER_BYTES)
    for turn in range(4):
        command = [sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path), str(bound)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline()
            time.sleep(0.1 + 0.03 * turn)
            process.send_signal(signal.SIGKILL)
        assert used(tmp_path) <= bound
        counted = int.from_bytes((tmp_path / "usage").read_bytes(), "little")
        assert counted >= used(tmp_path), "the bound would be exceeded"
    (tmp_path / "f" / "00").mkdir(exist_ok=True)
    (tmp_path / "f" / "00" / "unfinished").write_bytes(b"begun")
    store = DiskStore(tmp_path, "f", bound)
    assert not list(tmp_path.rglob("unfinished"))
    assert files(tmp_path)
    for path in files(tmp_path):
        number = int(path.stem[:4], 16)
        assert read(store, number) == content(number)


def test_a_disk_that_is_full_leaves_no_half_of_a_block(store: DiskStore, tmp_path: Path) -> None:
    write(store, 1)
    counted = (tmp_path / "usage").read_bytes()
    with file_limit(4 * SIZE), pytest.raises(OSError, match=r"."):
        store.write([block(2, size=8 * SIZE)], lambda _: None, time.time_ns())
    assert len(files(tmp_path)) == 1 and not [*tmp_path.rglob("unfinished")]
    assert (tmp_path / "usage").read_bytes() == counted
    write(store, 3)
    assert read(store, 3) == content(3)


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file of this process may have more bytes; beyond them writing fails as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
