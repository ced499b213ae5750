"""Opening a model: what it is comes before what it holds."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from headrace.errors import ModelFileError
from headrace.worker.loader import open_model


def test_an_unknown_architecture_is_what_a_user_is_told_first(tmp_path: Path) -> None:
    path = tmp_path / "mamba.gguf"
    writer = gguf.GGUFWriter(path, "mamba")  # which has no heads, and no key that counts them
    writer.add_tensor("x", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match=r"general.architecture: 'mamba' is not supported .*llama"):
        open_model(str(path))
