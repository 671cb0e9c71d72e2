"""Layers behind the pooling that files store, as EmbeddingGemma's do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from inferno.contracts import Dialect, TextAssets
from inferno.errors import UnsupportedError
from inferno_gguf.reader import GgufFile
from inferno_gguf.sentence import pooling_metadata
from inferno_gguf.stored import StoredTensors
from inferno_gguf.translate import translate


@pytest.mark.parametrize("pooled", [True, False])
def test_they_are_modules_and_no_tensors_of_the_model(pooled: bool, tmp_path: Path) -> None:
    wide = np.random.default_rng(0).standard_normal((96, 32), dtype=np.float32)
    narrow = np.random.default_rng(1).standard_normal((32, 96), dtype=np.float32)
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "gemma-embedding")
    if pooled:
        writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a"])
    writer.add_token_merges([])
    packed = gguf.quantize(wide, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("dense_2.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("dense_3.weight", narrow)
    writer.add_tensor("output_norm.weight", wide[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    stored = StoredTensors.of([GgufFile.open(tmp_path / "a.gguf")], {})
    assert list(translate(stored, Dialect(architecture="gemma-embedding"), {}).ranges) == [
        "output_norm.weight"
    ]
    modules = stored.text().modules
    kinds = [module["type"] for module in modules]
    if not pooled:
        assert kinds == []
        return
    assert kinds == ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
    first, second = (module["read"]()["linear.weight"] for module in modules[2:4])
    assert np.array_equal(first, gguf.dequantize(packed, gguf.GGMLQuantizationType.Q8_0))
    assert np.array_equal(second, narrow)
    settings = modules[2]["config"]
    assert (settings["in_features"], settings["out_features"]) == (32, 96)
    assert settings["bias"] is False


@pytest.mark.parametrize(
    "settings",
    [
        {"pooling_mode": ["cls", "mean"]},
        {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
    ],
)
def test_several_poolings_are_not_written_as_one(settings: dict[str, Any]) -> None:
    modules = ({"type": "Transformer"}, {"type": "Pooling", "config": settings})
    with pytest.raises(UnsupportedError, match=r"how its embeddings are made: cls.*\+mean"):
        pooling_metadata(TextAssets(modules=modules))
