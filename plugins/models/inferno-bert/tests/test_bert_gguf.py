"""Files of one name: how they are told apart, and what llama.cpp's converter leaves out of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inferno.errors import CheckpointError
from inferno.testing import gguf_dialect, load_toy, plan_of, torch_only, write_gguf
from inferno_bert.gguf import BERT_HEAD, MODERN

CONFIG: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 192,
    "layer_norm_eps": 1e-12,
}


def tensors(*, pooler: bool, labels: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    layer, attention = "encoder.layer.0", "encoder.layer.0.attention"
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings": (64, 32),
        "embeddings.position_embeddings": (192, 32),
        "embeddings.token_type_embeddings": (2, 32),
        "embeddings.LayerNorm": (32,),
        **{f"{attention}.self.{name}": (32, 32) for name in ("query", "key", "value")},
        f"{attention}.output.dense": (32, 32),
        f"{attention}.output.LayerNorm": (32,),
        f"{layer}.intermediate.dense": (64, 32),
        f"{layer}.output.dense": (32, 64),
        f"{layer}.output.LayerNorm": (32,),
        **({"score.dense": (32, 32)} if pooler else {}),
        **({"score.out_proj": (labels, 32)} if labels else {}),
    }
    weights = {}
    for path, shape in shapes.items():
        weights[f"{path}.weight"] = torch.randn(shape, generator=generator)
        if not path.startswith("embeddings.") or path.endswith("LayerNorm"):
            weights[f"{path}.bias"] = torch.randn(shape[0], generator=generator)
    return weights


def written(path: Path, *, pooler: bool, labels: int) -> Path:
    dialect = gguf_dialect(torch_only(), "BertForSequenceClassification")
    assert dialect is not None
    write_gguf(path, dialect, CONFIG, tensors(pooler=pooler, labels=labels), "F32")
    return path


def test_a_head_for_labels_tells_files_of_one_name_apart(tmp_path: Path) -> None:
    encoder = plan_of(written(tmp_path / "a.gguf", pooler=False, labels=0))
    classifier = load_toy(written(tmp_path / "b.gguf", pooler=True, labels=3)).plan
    assert encoder.architecture == "BertModel"
    assert classifier.architecture == "BertForSequenceClassification"
    assert (classifier.config["num_labels"], classifier.config["type_vocab_size"]) == (3, 2)
    assert BERT_HEAD.architecture == "bert" and not MODERN.mark


def test_a_head_without_the_layer_that_it_was_trained_on_is_refused(tmp_path: Path) -> None:
    """llama.cpp's converter drops BERT's pooler: what the head would read means nothing to it."""
    path = written(tmp_path / "a.gguf", pooler=False, labels=1)
    with pytest.raises(CheckpointError, match="no layer before the head"):
        plan_of(path)
