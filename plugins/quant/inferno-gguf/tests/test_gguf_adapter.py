"""Adapters of llama.cpp: written by gguf-py under its names, q and k in its order of rows."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf.constants import GGMLQuantizationType as Type
from gguf_headers import raw
from gguf_models import (
    ARCHITECTURES,
    CONFIG,
    LLAMA,
    add_tensor,
    as_llama_cpp,
    names_in_file,
)
from torch import Tensor

from inferno.contracts import AdapterBase
from inferno.errors import CheckpointError, InfernoError, UnsupportedError
from inferno.testing import load_catalog
from inferno_gguf.adapter import GgufAdapter

Q, K = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"
DOWN, EMBEDDING = "model.layers.0.mlp.down_proj", "model.embed_tokens"
ALPHA = 6.0
Pairs = Mapping[str, tuple[Tensor, Tensor]]


def base(config: Mapping[str, Any] = LLAMA) -> AdapterBase:
    architecture = load_catalog().architecture(config["architectures"][0]).item
    return AdapterBase(architecture=architecture, config=config)


def pairs(rank: int = 4) -> dict[str, tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(rank)
    shapes = {Q: (32, 32), K: (16, 32), DOWN: (32, 64), EMBEDDING: (64, 32)}
    return {
        path: (torch.randn(rank, i, generator=draw), torch.randn(o, rank, generator=draw))
        for path, (o, i) in shapes.items()
    }


def written(
    path: Path,
    given: Pairs,
    config: Mapping[str, Any] = LLAMA,
    kind: Type = Type.F32,
    general: str = "adapter",
    adapter: str = "lora",
    more: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write an adapter as llama.cpp's converter does."""
    architecture = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[config["architectures"][0]]]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type(general)
    writer.add_string("adapter.type", adapter)
    writer.add_float32("adapter.lora.alpha", ALPHA)
    names = names_in_file(config, {f"{p}.weight": None for p in given})
    for module, (a, b) in given.items():
        name = names[f"{module}.weight"]
        b = as_llama_cpp(f"{module}.weight", b, config)
        if name == "token_embd.weight":  # the pair of the transposed matrix, the first by rows
            a, b = b, a.T
        add_tensor(writer, f"{name}.lora_a", a, kind)
        add_tensor(writer, f"{name}.lora_b", b.contiguous(), Type.F32)
    for name, tensor in (more or {}).items():
        add_tensor(writer, name, tensor, Type.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("config", [LLAMA, CONFIG], ids=["llama", "qwen3"])
def test_pairs_are_those_of_the_original_adapter(tmp_path: Path, config: dict[str, Any]) -> None:
    """Under the model's names, its rows in the model's order."""
    given = pairs()
    adapter = GgufAdapter.open(written(tmp_path / "a.gguf", given, config), base(config))
    values = adapter.read()
    assert adapter.pairs.keys() == values.keys() == given.keys()
    for path, (a, b) in given.items():
        ours_RI, ours_OR = values[path]
        assert torch.equal(ours_RI, a) and torch.equal(ours_OR, b)
        pair = adapter.pairs[path]
        assert (pair.rank, pair.scale) == (4, ALPHA / 4)
        assert (pair.outputs, pair.inputs) == (len(b), a.shape[1])


def test_packed_matrices_are_dequantized(tmp_path: Path) -> None:
    given = {DOWN: pairs()[DOWN]}
    adapter = GgufAdapter.open(written(tmp_path / "a.gguf", given, kind=Type.Q8_0), base())
    a, _ = adapter.read()[DOWN]
    assert 0 < float((a - given[DOWN][0]).abs().max()) < 0.02


MOE: dict[str, Any] = {
    **CONFIG,
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 3,
    "moe_intermediate_size": 8,
}


def test_pairs_of_stacks_are_divided_among_experts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "Qwen3MoeForCausalLM", gguf.MODEL_ARCH.QWEN3MOE)
    a, b = torch.randn(3, 4, 32), torch.randn(3, 8, 4)
    stack = "blk.0.ffn_up_exps.weight"
    more = {f"{stack}.lora_a": a, f"{stack}.lora_b": b}
    adapter = GgufAdapter.open(written(tmp_path / "a.gguf", {}, MOE, more=more), base(MOE))
    values = adapter.read()
    for expert in range(3):
        pair = values[f"model.layers.0.mlp.experts.{expert}.up_proj"]
        assert torch.equal(pair[0], a[expert]) and torch.equal(pair[1], b[expert])


def test_the_digest_is_that_of_the_content(tmp_path: Path) -> None:
    digests = [
        GgufAdapter.open(written(tmp_path / f"{i}.gguf", pairs(rank)), base()).digest
        for i, rank in enumerate((4, 4, 5))
    ]
    assert digests[0] == digests[1] != digests[2]
    adapter = GgufAdapter.open(tmp_path / "0.gguf", base())
    written(tmp_path / "0.gguf", pairs(5))
    with pytest.raises(CheckpointError, match="has changed"):
        adapter.read()


def test_what_is_no_adapter_of_the_model_is_refused_by_name(tmp_path: Path) -> None:
    file, given = tmp_path / "a.gguf", pairs()
    norm = {"blk.0.attn_norm.weight": torch.ones(32)}
    cases: list[tuple[dict[str, Any], type[InfernoError], str]] = [
        ({"general": "model"}, UnsupportedError, "no adapter"),
        ({"adapter": "control_vector"}, UnsupportedError, "control_vector"),
        ({"config": CONFIG}, CheckpointError, "for models of 'qwen3', not llama"),
        ({"more": norm}, UnsupportedError, "no part of a pair"),
        ({"more": {"blk.0.attn_v.weight.lora_a": torch.ones(4, 32)}}, CheckpointError, "second"),
        ({"given": {}}, CheckpointError, "no pair"),
        ({"given": {DOWN: (torch.ones(4, 64), torch.ones(32, 3))}}, CheckpointError, "ranks"),
    ]
    for changes, error, reason in cases:
        written(file, **{"given": given, **changes})
        with pytest.raises(error, match=reason):
            GgufAdapter.open(file, base())
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(CheckpointError):
        GgufAdapter.open(file, base())
    with pytest.raises(UnsupportedError, match="no adapter"):
        GgufAdapter.open(raw(tmp_path), base())
    with pytest.raises(CheckpointError, match="2 GGUF files"):
        GgufAdapter.open(tmp_path, base())


def test_a_damaged_file_is_read_or_refused_and_nothing_else(tmp_path: Path) -> None:
    whole = written(tmp_path / "a.gguf", pairs()).read_bytes()
    draw, refused = random.Random(7), 0
    for _ in range(60):
        data = bytearray(whole[: draw.choice([len(whole), draw.randrange(len(whole))])])
        for _ in range(draw.randint(0, 4) if data else 0):
            data[draw.randrange(min(len(data), 900))] = draw.randrange(256)
        (tmp_path / "a.gguf").write_bytes(data)
        try:
            adapter = GgufAdapter.open(tmp_path / "a.gguf", base())
            assert adapter.read().keys() == adapter.pairs.keys()
        except InfernoError as error:
            refused += 1
            assert error.remedy and len(str(error)) < 800
    assert refused > 15
