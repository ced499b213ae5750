"""Packed weights on disk: made once, shared by processes, made anew when damaged."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from headrace.backends.cpu import CpuBackend, huge_pages, packed_cache
from headrace.backends.cpu.packed_cache import PackedCache
from headrace.backends.cpu.packed_file import verify
from headrace.errors import ModelFileError
from headrace.models.gguf import GgufFile
from headrace.models.weights import TensorType
from plans import teacher_forced
from synthetic import write_synthetic
from talker import Talker

TOKENS = [int(token) for token in np.random.default_rng(3).integers(0, 300, 40)]

LOAD = """
import sys
from pathlib import Path
from headrace.backends.cpu import CpuBackend
from headrace.backends.cpu.packed_cache import PackedCache
from headrace.models.gguf import GgufFile

sys.stdin.readline()
backend = CpuBackend(GgufFile(sys.argv[1]), threads=1, packed_cache=PackedCache(Path(sys.argv[2])))
print("loaded", flush=True)
sys.stdin.readline()
lines = Path("/proc/self/smaps").read_text().splitlines()
(at,) = (i for i, line in enumerate(lines) if sys.argv[2] in line)
fields = dict(line.split(":", 1) for line in lines[at + 1 : at + 20])
print(lines[at].split()[4], fields["Rss"].split()[0], fields["Pss"].split()[0], flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "packed"


def load(model: Path, folder: Path | None) -> CpuBackend:
    backend = CpuBackend(
        GgufFile(model), threads=2, packed_cache=None if folder is None else PackedCache(folder)
    )
    for thread in threading.enumerate():
        if thread.name == "keep-packed-weights":
            thread.join()
    return backend


def logits(backend: CpuBackend) -> np.ndarray:
    backend.allocate_cache([8])
    return teacher_forced(backend, TOKENS)


def the_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    assert file.suffix == ".packed"
    return file


def test_weights_from_the_file_compute_the_same_bits(synthetic_model: Path, folder: Path) -> None:
    expected = logits(load(synthetic_model, None))
    assert np.array_equal(logits(load(synthetic_model, folder)), expected)
    made = the_file(folder).stat()
    again = load(synthetic_model, folder)
    assert np.array_equal(logits(again), expected)
    assert the_file(folder).stat().st_ino == made.st_ino, "a good file is made only once"
    assert 0 < again.page_cache_bytes < made.st_size


def test_processes_that_start_at_once_pack_once_and_share_the_memory(
    synthetic_model: Path, folder: Path
) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(Talker(LOAD, synthetic_model, folder)) for _ in range(3)]
        for worker in workers:
            worker.say()
        for worker in workers:
            assert worker.hear() == "loaded"
        for worker in workers:
            worker.say()
        maps = [worker.hear().split() for worker in workers]
    inodes, rss, pss = zip(*maps, strict=True)
    assert len(set(inodes)) == 1
    assert sum(map(int, pss)) <= 1.2 * max(map(int, rss)), "all of them together take the memory of one"
    assert the_file(folder).stat().st_ino == int(inodes[0])


def test_who_waits_for_the_packing_does_not_wait_for_the_packer_to_end(
    synthetic_model: Path, folder: Path
) -> None:
    load(synthetic_model, folder)
    path = the_file(folder)
    path.rename(unfinished := path.with_suffix(".packing"))
    packing, used = os.open(unfinished, os.O_RDWR), os.open(unfinished, os.O_RDONLY)
    with ExitStack() as stack:
        stack.callback(os.close, used)
        fcntl.flock(packing, fcntl.LOCK_EX)
        workers = [stack.enter_context(Talker(LOAD, synthetic_model, folder)) for _ in range(3)]
        for worker in workers:
            worker.say()
        assert all(worker.silent(0.6) for worker in workers), "they wait"
        unfinished.rename(path)
        os.close(packing)
        fcntl.flock(used, fcntl.LOCK_SH)  # as its user, at once
        assert [worker.hear() for worker in workers] == ["loaded"] * 3
    assert the_file(folder) == path


def test_a_process_killed_while_it_packed_is_in_nobodys_way(synthetic_model: Path, folder: Path) -> None:
    load(synthetic_model, folder)
    the_file(folder).rename(the_file(folder).with_suffix(".packing"))  # as if it had come no further
    assert np.array_equal(logits(load(synthetic_model, folder)), logits(load(synthetic_model, None)))
    verify(the_file(folder))


@pytest.mark.parametrize("damage", ["header", "magic", "truncated", "empty", "longer"])
def test_a_damaged_file_is_made_anew(damage: str, synthetic_model: Path, folder: Path) -> None:
    load(synthetic_model, folder)
    path = the_file(folder)
    data = bytearray(path.read_bytes())
    match damage:
        case "header":
            data[100] ^= 1
        case "magic":
            data[0] ^= 1
        case "truncated":
            del data[-1]
        case "empty":
            data.clear()
        case "longer":
            data.append(0)
    path.write_bytes(data)
    assert np.array_equal(logits(load(synthetic_model, folder)), logits(load(synthetic_model, None)))
    verify(the_file(folder))
    assert the_file(folder).read_bytes() != data


def test_damaged_weights_are_found_on_demand(synthetic_model: Path, folder: Path) -> None:
    load(synthetic_model, folder)
    path = the_file(folder)
    verify(path)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="damaged"):
        verify(path)


def test_without_a_place_on_disk_the_weights_are_packed_into_memory(
    synthetic_model: Path, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits(load(synthetic_model, None))
    (tmp_path / "file").touch()
    private = load(synthetic_model, tmp_path / "file" / "packed")
    assert private.page_cache_bytes == 0
    assert np.array_equal(logits(private), expected)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert np.array_equal(logits(load(synthetic_model, folder)), expected)
    assert not [*folder.iterdir()]


def test_weights_on_small_pages_are_copied_to_large_ones(
    synthetic_model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_cache, "_LARGE", 0)
    monkeypatch.setattr(huge_pages, "available", lambda: True)
    monkeypatch.setattr(huge_pages, "share", lambda _: 0.0)
    load(synthetic_model, folder)
    copied = load(synthetic_model, folder)
    assert copied.page_cache_bytes == 0
    assert np.array_equal(logits(copied), logits(load(synthetic_model, None)))


def test_files_unused_for_longest_are_deleted_first_and_none_that_is_in_use(
    tmp_path: Path, folder: Path
) -> None:
    models = [
        write_synthetic(tmp_path / f"{kind.name}.gguf", types=kind)
        for kind in (TensorType.Q8_0, TensorType.Q5_0, TensorType.Q5_1, TensorType.Q6_K)
    ]
    in_use = load(models[0], folder)
    paths = [PackedCache(folder).path(GgufFile(model).digest()) for model in models]
    for age, model in enumerate(models[1:]):
        load(model, folder).close()
        os.utime(paths[0], (1, 1))  # the oldest of all
        os.utime(paths[1 + age], (100 + age, 100 + age))
    assert paths[0].exists(), "in use"
    assert not paths[1].exists()
    assert paths[-1].exists()
    in_use.close()


def test_the_share_of_huge_pages_is_read_from_the_kernels_table(tmp_path: Path) -> None:
    memory = np.zeros(100, np.uint8)
    first = memory.ctypes.data & ~0xFFF
    smaps = tmp_path / "smaps"
    smaps.write_text(
        f"{first - 0x10000:x}-{first:x} r--s 0 00:00 0 other\nFilePmdMapped: 64 kB\n"
        f"{first:x}-{first + 0x10000:x} r--s 0 00:00 0 file\nRss: 64 kB\nFilePmdMapped: 48 kB\n"
    )
    assert huge_pages.share(memory, smaps) == 0.75
    assert huge_pages.share(memory, tmp_path / "absent") == 0.0
