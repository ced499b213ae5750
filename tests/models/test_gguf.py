"""The GGUF reader agrees with the official one, and refuses what is broken by the name of what is broken."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from headrace.errors import ModelFileError
from headrace.models.gguf import GgufFile
from headrace.models.weights import TensorType
from synthetic import DEFAULT_TYPES, write_synthetic

TOKENS = ["a", "é", "", "<|end|>"]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A file of some 800 bytes with metadata of every type and two tensors."""
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -30000)
    writer.add_int32("i32", -5)
    writer.add_uint64("u64", 2**63 + 1)
    writer.add_int64("i64", -(2**62))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 1e-300)
    writer.add_bool("yes", True)
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("floats", [0.5, 1.5])
    writer.add_array("tokens", TOKENS)
    writer.add_tensor("norm", np.arange(8, dtype=np.float32))
    matrix = np.random.default_rng(1).normal(size=(2, 32)).astype(np.float32)
    packed = gguf.quants.quantize(matrix, gguf.GGMLQuantizationType.Q4_0)
    writer.add_tensor("matrix", np.tile(packed, (8, 1)), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read_everything(path: Path) -> None:
    with GgufFile(path) as file:
        file.digest()
        for name in file:
            int(file.tensor(name).data.sum())


def edited(path: Path, old: bytes, new: bytes) -> Path:
    """The file with one occurrence of `old` replaced by as many bytes."""
    data = path.read_bytes()
    assert data.count(old) == 1 and len(old) == len(new)
    path.write_bytes(data.replace(old, new))
    return path


def table_entry(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    """An entry of the table of tensors, as bytes; dimensions in the order of the file."""
    text = name.encode()
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return struct.pack("<Q", len(text)) + text + dimensions + struct.pack("<IQ", kind, offset)


def test_metadata_of_every_type_reads_back(tiny: Path) -> None:
    with GgufFile(tiny) as file:
        found = dict(file.metadata)
    assert found.pop("general.architecture") == "llama"
    assert found.pop("tokens") == TOKENS
    assert found.pop("yes") is True
    numbers, floats = found.pop("numbers"), found.pop("floats")
    assert isinstance(numbers, np.ndarray) and numbers.dtype == np.int32 and numbers.tolist() == [1, -2, 3]
    assert isinstance(floats, np.ndarray) and floats.dtype == np.float32 and floats.tolist() == [0.5, 1.5]
    assert found == {
        **{"u8": 200, "i8": -100, "u16": 60000, "i16": -30000, "i32": -5},
        **{"u64": 2**63 + 1, "i64": -(2**62), "f32": 0.5, "f64": 1e-300},
    }


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_tensors_are_those_that_the_official_reader_finds(tmp_path: Path, architecture: str) -> None:
    path = write_synthetic(tmp_path / "model.gguf", architecture=architecture, tied=architecture == "llama")
    official = gguf.GGUFReader(path)
    with GgufFile(path) as file:
        assert list(file) == [t.name for t in official.tensors]
        assert {file.tensor(name).type for name in file} == set(DEFAULT_TYPES) == set(TensorType)
        for theirs in official.tensors:
            ours = file.tensor(theirs.name)
            assert ours.shape == tuple(reversed(theirs.shape.tolist()))
            assert int(ours.type) == theirs.tensor_type
            assert ours.data.tobytes() == theirs.data.tobytes()
            assert not ours.data.flags.writeable
        for key, field in official.fields.items():
            if not key.startswith("GGUF."):
                assert np.array_equal(file.metadata[key], field.contents()), key


def test_the_synthetic_model_is_the_same_every_time(tmp_path: Path) -> None:
    one, two, other = (
        write_synthetic(tmp_path / f"{i}.gguf", seed=seed).read_bytes() for i, seed in enumerate([0, 0, 1])
    )
    assert one == two != other


def test_version_2_reads_like_version_3(tiny: Path) -> None:
    with GgufFile(tiny) as file:
        expected = file.tensor("matrix").data.tobytes(), dict(file.metadata)["tokens"]
    edited(tiny, b"GGUF\x03\0\0\0", b"GGUF\x02\0\0\0")
    with GgufFile(tiny) as file:
        assert (file.tensor("matrix").data.tobytes(), file.metadata["tokens"]) == expected


def test_tensors_outlive_the_closed_file(tiny: Path) -> None:
    with GgufFile(tiny) as file:
        norm = file.tensor("norm")
    assert norm.data.view(np.float32).tolist() == list(range(8))
    with pytest.raises(ValueError, match="closed"):
        file.tensor("norm")


def test_every_prefix_of_a_file_is_refused(tiny: Path) -> None:
    whole = tiny.read_bytes()
    read_everything(tiny)
    for length in range(len(whole)):
        tiny.write_bytes(whole[:length])
        with pytest.raises(ModelFileError, match=r"tiny\.gguf"):
            read_everything(tiny)


def test_a_truncated_model_names_the_tensor_that_is_cut(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(ModelFileError, match=r"tensor 'output_norm\.weight'.*truncated"):
        GgufFile(path)


def test_corrupt_bytes_are_refused_or_harmless(tiny: Path) -> None:
    whole = tiny.read_bytes()
    chance = random.Random(7)
    refused = 0
    deadline = time.thread_time() + 2
    for _ in range(4000):
        data = bytearray(whole)
        for _ in range(chance.choice([1, 1, 1, 4])):
            data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        tiny.write_bytes(data)
        try:
            read_everything(tiny)
        except ModelFileError:
            refused += 1
        if time.thread_time() > deadline:
            break
    assert refused > 100


NORM = table_entry("norm", (8,), 0, 0)
MATRIX = table_entry("matrix", (32, 16), 2, 32)
TOKENS_KEY = b"tokens" + struct.pack("<IIQ", 9, 8, len(TOKENS))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"GGUF", b"GGML", "not a GGUF file"),
        (b"GGUF\x03\0\0\0", b"GGUF\0\0\0\x03", "big-endian"),
        (b"GGUF\x03\0\0\0", b"GGUF\x01\0\0\0", "version 1"),
        (b"GGUF\x03\0\0\0", b"GGUF\x63\0\0\0", "version 99"),
        (struct.pack("<4sIQ", b"GGUF", 3, 2), struct.pack("<4sIQ", b"GGUF", 3, 2**60), f"{2**60} tensors"),
        (struct.pack("<QQ", 2, 14), struct.pack("<QQ", 2, 2**63), f"{2**63} keys"),
        (b"i16" + struct.pack("<I", 3), b"u16" + struct.pack("<I", 3), "key 'u16' occurs twice"),
        (b"i16" + struct.pack("<I", 3), b"i16" + struct.pack("<I", 13), "'i16': unknown value type 13"),
        (b"yes" + struct.pack("<I?", 7, True), b"yes" + struct.pack("<IB", 7, 2), "'yes': a boolean"),
        (b"llama", b"lla\xffa", r"'general\.architecture': .*UTF-8"),
        ("é".encode(), b"\xc3\xc3", "'tokens': item 1 is not valid UTF-8"),
        (b"tokens", b"tok\xffns", "number 13: .*UTF-8"),
        (TOKENS_KEY, b"tokens" + struct.pack("<IIQ", 9, 9, 4), "'tokens': an array of arrays"),
        (TOKENS_KEY, b"tokens" + struct.pack("<IIQ", 9, 8, 2**40), "'tokens': an array of 1099511627776"),
        (TOKENS_KEY, b"tokens" + struct.pack("<IIQ", 9, 8, 2**20), "'tokens': needs 8388608 bytes"),
        (TOKENS_KEY, b"tokens" + struct.pack("<IIQ", 9, 77, 4), "'tokens': unknown value type 77"),
        (struct.pack("<Q", 7) + b"<|end|>", struct.pack("<Q", 2**62) + b"<|end|>", "'tokens': item 3"),
        (struct.pack("<Q", 5) + b"llama", struct.pack("<Q", 2**62) + b"llama", "architecture': needs"),
        (NORM, table_entry("norm", (8,), 2, 0), "'norm': rows of 8 values are no whole number of Q4_0"),
        (NORM, table_entry("norm", (8,), 10, 0), "'norm': element type number 10 .* Q6_K"),
        (NORM, table_entry("norm", (0,), 0, 0), "'norm': shape .* zero"),
        (NORM, table_entry("norm", (2**61,), 0, 0), "'norm': ends .* past the end"),
        (NORM, table_entry("norm", (8,), 0, 8), "'norm': its offset 8 is not a multiple"),
        (NORM, table_entry("norm", (8,), 0, 2**63), "'norm': ends .* past the end"),
        (NORM, table_entry("norm", (8,), 0, 64), "'norm': overlaps tensor 'matrix'"),
        (MATRIX, table_entry("matrix", (2**32, 2**32), 2, 32), "'matrix': ends .* past the end"),
        (b"matrix", b"matr\xffx", "tensor number 1: .*UTF-8"),
        (struct.pack("<IQQI", 2, 32, 16, 2), struct.pack("<IQQI", 9, 32, 16, 2), "'matrix': 9 dimensions"),
        (struct.pack("<IQQI", 2, 32, 16, 2), struct.pack("<IQQI", 0, 32, 16, 2), "'matrix': 0 dimensions"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_broken_is_named(tiny: Path, old: bytes, new: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        GgufFile(edited(tiny, old, new))


@pytest.mark.parametrize("alignment", [0, 1, 24, 2**31])
def test_a_senseless_alignment_is_refused(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "aligned.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("general.alignment", alignment)
    writer.add_tensor("norm", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match=r"general\.alignment|needs|past the end"):
        GgufFile(path)


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.gguf"
    header = struct.pack("<4sIQQ", b"GGUF", 3, 2, 0)
    path.write_bytes(header + table_entry("x", (8,), 0, 0) + table_entry("x", (8,), 0, 32) + bytes(128))
    with pytest.raises(ModelFileError, match="'x' occurs twice"):
        GgufFile(path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "cannot be read: No such file"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
        (lambda path: path.touch(), "empty"),
        (lambda path: path.write_text("<html>404</html>"), "not a GGUF file"),
    ],
)
def test_what_is_no_model_file_is_refused(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "not-a-model.gguf"
    make(path)
    with pytest.raises(ModelFileError, match=rf"not-a-model\.gguf.*{message}"):
        GgufFile(path)


def test_a_missing_tensor_is_named(tiny: Path) -> None:
    with GgufFile(tiny) as file:
        assert "norm" in file and "nothing" not in file
        with pytest.raises(ModelFileError, match="'nothing' is missing"):
            file.tensor("nothing")


def test_the_digest_tells_models_apart(tmp_path: Path) -> None:
    def digest(name: str, **arguments: object) -> str:
        with GgufFile(write_synthetic(tmp_path / name, **arguments)) as file:
            return file.digest()

    same = digest("a.gguf")
    assert same == digest("a-copy-of-another-name.gguf")
    assert (
        len({same, digest("b.gguf", seed=1), digest("c.gguf", context=4096), digest("d.gguf", tied=False)})
        == 4
    )


def test_the_digest_sees_a_change_in_any_one_tensor(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "model.gguf")
    whole = path.read_bytes()
    with GgufFile(path) as file:
        seen = {file.digest()}
        names = list(file)
        ends = [whole.index(file.tensor(name).data.tobytes()) + file.tensor(name).data.size for name in names]
    for end in ends:
        path.write_bytes(whole[: end - 1] + bytes([whole[end - 1] ^ 1]) + whole[end:])
        with GgufFile(path) as file:
            seen.add(file.digest())
    assert len(seen) == len(names) + 1


def test_a_large_vocabulary_opens_within_half_a_second(model_path: Callable[[str], Path]) -> None:
    path = model_path("qwen2.5-coder-0.5b")
    GgufFile(path).close()  # reads the header from the disk
    start = time.process_time()
    with GgufFile(path) as file:
        taken = time.process_time() - start
        assert len(file.metadata["tokenizer.ggml.tokens"]) == 151936
    assert taken < 0.5
