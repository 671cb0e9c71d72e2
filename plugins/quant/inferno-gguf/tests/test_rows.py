"""Fused, stacked and joined matrices of a file are the model's own, dense or packed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf.constants import GGMLQuantizationType as Type
from torch import Tensor

from inferno.contracts import Architecture, Dialect, RowJoin, RowSplit
from inferno.errors import CheckpointError
from inferno_gguf.checkpoint import GgufCheckpoint

LAYER = "model.layers.{n}"
DIALECT = Dialect(
    architecture="toy",
    rows={
        "blk.{n}.ffn_up": RowSplit({f"{LAYER}.gate": 1, f"{LAYER}.up": 1}),
        "blk.{n}.wide": RowSplit({f"{LAYER}.a": "given", f"{LAYER}.b": 2}),
    },
    modules={"blk.{n}.ffn_up": None},
    joins={f"{LAYER}.kv": RowJoin(("blk.{n}.k_b", "blk.{n}.v_b"), transposed=("blk.{n}.k_b",))},
    rotary_pairs={"blk.{n}.attn_q": "attention.head_count"},
    constants={"given": 3},
)
TOY = Architecture(name="Toy", config=dict, build=dict, dialects={"gguf": DIALECT})
ORDERS = pytest.mark.parametrize("order", [gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG])


def opened(
    folder: Path,
    tensors: Mapping[str, Tensor],
    kind: Type = Type.F32,
    order: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE,
) -> GgufCheckpoint:
    writer = gguf.GGUFWriter(folder / "toy.gguf", "toy", endianess=order)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    for name, tensor in tensors.items():
        packed = kind if tensor.dtype == torch.uint8 else None
        writer.add_tensor(name, tensor.numpy().copy(), raw_dtype=packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufCheckpoint.open(folder / "toy.gguf", [TOY])


def rows_of(count: int, packed: bool = False) -> Tensor:
    """Rows that are told apart by their values; packed, each is a block of Q8_0."""
    if packed:
        blocks = torch.arange(count * 34).view(count, 34) % 251
        return blocks.to(torch.uint8)
    return torch.arange(count * 32.0).view(count, 32)


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_queries_keys_and_values_are_rows_of_one_matrix(packed: bool, tmp_path: Path) -> None:
    """By default, in the ratio of the heads; the bias as the matrix. Rows in rotary pairs are put
    in order within their part."""
    fused, bias, part = rows_of(32, packed), torch.arange(32.0), "q8_0" if packed else "weight"
    checkpoint = opened(
        tmp_path, {"blk.3.attn_qkv.weight": fused, "blk.3.attn_qkv.bias": bias}, Type.Q8_0
    )
    order = torch.arange(16).view(4, 2, 2).transpose(1, 2).flatten()
    for name, rows in (("q", order), ("k", torch.arange(16, 24)), ("v", torch.arange(24, 32))):
        path = f"model.layers.3.self_attn.{name}_proj"
        assert torch.equal(checkpoint.read(f"{path}.{part}"), fused[rows])
        assert torch.equal(checkpoint.read(f"{path}.bias"), bias[rows])
        info = checkpoint.tensors[f"{path}.{part}"]
        assert (info.shape, info.nbytes) == (
            (len(rows), fused.shape[1]),
            fused[rows].nbytes,
        )
    assert len(checkpoint.tensors) == 6


@ORDERS
def test_experts_are_members_of_a_stack_and_rows_of_a_fused_one(
    order: gguf.GGUFEndian, tmp_path: Path
) -> None:
    stack = torch.arange(3 * 4 * 32.0).view(3, 4, 32)
    checkpoint = opened(
        tmp_path,
        {"blk.0.ffn_gate_up_exps.weight": stack, "blk.0.ffn_down_exps.weight": stack + 1000},
        order=order,
    )
    for expert in range(3):
        path = f"model.layers.0.mlp.experts.{expert}"
        assert torch.equal(checkpoint.read(f"{path}.gate_proj.weight"), stack[expert, :2])
        assert torch.equal(checkpoint.read(f"{path}.up_proj.weight"), stack[expert, 2:])
        assert torch.equal(checkpoint.read(f"{path}.down_proj.weight"), stack[expert] + 1000)


@ORDERS
def test_packed_rows_of_the_other_byte_order_are_swapped_row_by_row(
    order: gguf.GGUFEndian, tmp_path: Path
) -> None:
    little = rows_of(10, packed=True)
    stored = little.clone()
    if order == gguf.GGUFEndian.BIG:
        stored[:, [0, 1]] = little[:, [1, 0]]
    checkpoint = opened(tmp_path, {"blk.0.ffn_up.weight": stored}, Type.Q8_0, order)
    assert torch.equal(checkpoint.read("model.layers.0.gate.q8_0"), little[:5])
    assert torch.equal(checkpoint.read("model.layers.0.up.q8_0"), little[5:])


def test_shares_are_numbers_or_fields_of_the_config(tmp_path: Path) -> None:
    wide = rows_of(10)
    checkpoint = opened(tmp_path, {"blk.0.wide.weight": wide})
    assert torch.equal(checkpoint.read("model.layers.0.a.weight"), wide[:6])
    assert torch.equal(checkpoint.read("model.layers.0.b.weight"), wide[6:])


@pytest.mark.parametrize("kind", [None, Type.Q8_0], ids=["dense", "packed"])
def test_a_matrix_is_joined_head_by_head(kind: Type | None, tmp_path: Path) -> None:
    """Packed ones are unpacked: blocks do not run along transposed rows."""
    keys, values = torch.randn(2, 5, 32), torch.randn(2, 32, 5).transpose(1, 2).contiguous()
    keys_stored = keys.transpose(1, 2).contiguous()  # (head, column, row)
    if kind is None:
        stored = {"blk.1.k_b.weight": keys_stored, "blk.1.v_b.weight": values}
    else:
        keys_stored, values = torch.randn(2, 32, 64), torch.randn(2, 3, 32)
        packed = [gguf.quants.quantize(t.numpy(), kind) for t in (keys_stored, values)]
        names = ("blk.1.k_b.weight", "blk.1.v_b.weight")
        stored = {n: torch.from_numpy(p) for n, p in zip(names, packed, strict=True)}
        keys_stored, values = (torch.from_numpy(gguf.quants.dequantize(p, kind)) for p in packed)
    checkpoint = opened(tmp_path, stored, kind or Type.F32)
    [name] = checkpoint.tensors
    assert name == "model.layers.1.kv.weight"
    matrix = checkpoint.read(name)
    heads = [torch.cat([k.T, v]) for k, v in zip(keys_stored, values, strict=True)]
    assert torch.equal(matrix, torch.cat(heads))
    info = checkpoint.tensors[name]
    assert (info.dtype, info.shape) == ("float32", tuple(matrix.shape))
    assert info.nbytes == matrix.nbytes


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ({"blk.0.attn_qkv.weight": rows_of(12)}, "12 rows for parts in the ratio of 4:2:2"),
        ({"blk.0.ffn_up.weight": rows_of(3)}, "3 rows for parts in the ratio of 1:1"),
        ({"blk.0.ffn_gate_up_exps.weight": rows_of(4)[0]}, "not a stack"),
        ({"blk.0.k_b.weight": torch.zeros(2, 32, 5)}, "v_b"),
        (
            {"blk.0.k_b.weight": torch.zeros(2, 32, 5), "blk.0.v_b.weight": torch.zeros(3, 5, 32)},
            "not the same heads",
        ),
        (
            {"blk.0.k_b.weight": torch.zeros(2, 32, 5), "blk.0.v_b.weight": torch.zeros(5, 32)},
            "not the same heads",
        ),
        (
            {"blk.0.attn_q.weight": rows_of(16), "blk.0.attn_qkv.weight": rows_of(32)},
            "stored twice",
        ),
    ],
)
def test_rows_that_cannot_be_the_models_are_refused(
    tensors: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=named):
        opened(tmp_path, tensors)
