"""The writers of `benchmarks/quality.py`: what they write is read by the schemes' plugins."""

from __future__ import annotations

from pathlib import Path

import pytest
from quality_schemes import ENCODINGS, with_writers
from safetensors.torch import load_file

from inferno.catalog import load_catalog
from inferno.contracts import WriteOptions
from inferno.convert import convert
from inferno.testing import TOY_SIZES
from inferno.testing.writer import skewed_model

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TOY_SIZES, **SIZES}
ERROR = {"bitsandbytes int8": 0.02, "MXFP4": 0.2}
"""The most by which a matrix may differ, relative to its norm; of others with 4 bits 0.15."""


@pytest.mark.parametrize("name", ENCODINGS)
def test_what_is_written_is_read_with_nearly_the_same_values(name: str, tmp_path: Path) -> None:
    source, catalog = skewed_model(tmp_path, LLAMA), with_writers(load_catalog())
    convert(str(source), name, tmp_path / "made", catalog=catalog)
    exact = WriteOptions(dtype="float32")
    convert(str(tmp_path / "made"), "safetensors", tmp_path / "values", exact)
    ours, theirs = (load_file(path / "model.safetensors") for path in (tmp_path / "values", source))
    assert ours.keys() == theirs.keys()
    changed = 0
    for tensor, before in theirs.items():
        distance = (ours[tensor] - before.float()).norm() / before.float().norm()
        assert distance < ERROR.get(name, 0.15), tensor
        changed += bool(distance > 1e-4)
    assert changed == 7, "all matrices of the layer, and nothing else"
