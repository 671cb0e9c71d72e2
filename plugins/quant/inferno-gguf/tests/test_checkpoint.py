"""A GGUF file reads as the checkpoint it was made from: names, config, values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf.constants import GGMLQuantizationType as Type
from gguf_models import CONFIG, LLAMA, architectures, opened, write_gguf
from torch import Tensor

from inferno.contracts import Architecture, Dialect
from inferno.errors import CheckpointError, Missing
from inferno.testing import CheckpointFormatTests
from inferno_gguf.checkpoint import GgufCheckpoint


class GgufTests(CheckpointFormatTests):
    format = "gguf"
    config = CONFIG
    architectures = architectures()
    options: Mapping[str, Any] = {}

    def write(self, folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
        return write_gguf(folder / "model.gguf", config, tensors, **self.options)


class TestOneFile(GgufTests):
    pass


class TestRotaryPairs(GgufTests):
    config = LLAMA

    def tensors(self) -> dict[str, Tensor]:
        weights = super().tensors()
        for name, rows in (("q_proj", 32), ("k_proj", 16), ("v_proj", 16)):
            weights[f"model.layers.0.self_attn.{name}.weight"] = torch.arange(rows * 32.0).view(
                rows, 32
            )
        weights["model.layers.0.self_attn.q_proj.bias"] = torch.arange(32.0)
        return weights


class TestBigEndian(GgufTests):
    options = {"endianess": gguf.GGUFEndian.BIG}


class TestFolderOfShards(GgufTests):
    options = {"split_max_tensors": 2}

    def write(self, folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
        return super().write(folder, config, tensors).parent


# --- names and types ------------------------------------------------------------------------------


def test_packed_matrices_are_parts_by_the_name_of_their_type(tmp_path: Path) -> None:
    wide = {**CONFIG, "hidden_size": 256}
    tensors = {
        "model.embed_tokens.weight": torch.randn(64, 256),
        "model.layers.0.mlp.down_proj.weight": torch.randint(0, 256, (5, 144), dtype=torch.uint8),
        "model.layers.0.mlp.up_proj.weight": torch.randn(3, 256),
    }
    types = dict(zip(tensors, (Type.Q8_0, Type.Q4_K, Type.Q5_1), strict=True))
    checkpoint = opened(write_gguf(tmp_path / "model.gguf", wide, tensors, types=types))
    infos = {
        name: (info.dtype, info.shape, info.nbytes) for name, info in checkpoint.tensors.items()
    }
    assert infos == {
        "model.embed_tokens.q8_0": ("uint8", (64, 272), 64 * 272),
        "model.layers.0.mlp.down_proj.q4_k": ("uint8", (5, 144), 5 * 144),
        "model.layers.0.mlp.up_proj.q5_1": ("uint8", (3, 192), 3 * 192),
    }
    assert torch.equal(
        checkpoint.read("model.layers.0.mlp.down_proj.q4_k"),
        tensors["model.layers.0.mlp.down_proj.weight"],
    )
    assert checkpoint.config["torch_dtype"] == "bfloat16" and checkpoint.config["vocab_size"] == 64


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q8_0, Type.Q4_K, Type.Q6_K])
def test_blocks_of_the_other_byte_order_are_swapped(kind: Type, tmp_path: Path) -> None:
    """As gguf-py's converter of byte orders does it."""
    values, nbytes = gguf.GGML_QUANT_SIZES[kind]
    little = torch.randint(0, 256, (3, nbytes * 2), dtype=torch.uint8)
    big = little.clone()
    for start in (0, nbytes):
        for offset in {Type.Q4_K: (0, 2), Type.Q6_K: (208,)}.get(kind, (0,)):
            at = start + offset
            big[:, [at, at + 1]] = little[:, [at + 1, at]]
    tensors = {"model.layers.0.mlp.down_proj.weight": big}
    types = dict.fromkeys(tensors, kind)
    path = write_gguf(
        tmp_path / "model.gguf", CONFIG, tensors, types=types, endianess=gguf.GGUFEndian.BIG
    )
    [name] = (checkpoint := opened(path)).tensors
    assert torch.equal(checkpoint.read(name), little)


def test_blocks_without_a_defined_byte_order_are_refused(tmp_path: Path) -> None:
    tensors = {"model.layers.0.mlp.down_proj.weight": torch.zeros(3, 22, dtype=torch.uint8)}
    types = dict.fromkeys(tensors, Type.Q5_0)
    path = write_gguf(
        tmp_path / "model.gguf", CONFIG, tensors, types=types, endianess=gguf.GGUFEndian.BIG
    )
    with pytest.raises(CheckpointError, match="byte order"):
        opened(path).read("model.layers.0.mlp.down_proj.q5_0")


def test_packed_rows_of_rotary_pairs_move_whole(tmp_path: Path) -> None:
    rows = torch.arange(32)[:, None].expand(32, 34).to(torch.uint8).contiguous()
    tensors = {"model.layers.0.self_attn.q_proj.weight": rows}
    path = write_gguf(
        tmp_path / "model.gguf", LLAMA, tensors, types=dict.fromkeys(tensors, Type.Q8_0)
    )
    [name] = (checkpoint := opened(path)).tensors
    assert torch.equal(checkpoint.read(name), rows)


@pytest.mark.parametrize("heads", [None, [2, 2]])
def test_heads_of_keys_may_be_left_out_or_told_for_each_layer(
    heads: list[int] | None, tmp_path: Path
) -> None:
    config = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
    config |= {"num_key_value_heads": heads} if heads else {}
    tensors = {"model.layers.0.self_attn.k_proj.weight": torch.arange(512.0).view(16, 32)}
    [name] = (checkpoint := opened(write_gguf(tmp_path / "model.gguf", config, tensors))).tensors
    assert torch.equal(checkpoint.read(name), tensors[name])


@pytest.mark.parametrize("heads", [0, 3, 1.5, [1.5, 2.5]])
def test_heads_that_the_rows_cannot_be_of_are_refused(heads: Any, tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        if isinstance(heads, list):
            writer.add_array("llama.attention.head_count", heads)
        else:
            (writer.add_float32 if isinstance(heads, float) else writer.add_uint32)(
                "llama.attention.head_count", heads
            )
        writer.add_tensor("blk.0.attn_q.weight", torch.zeros(16, 32).numpy())

    with pytest.raises(CheckpointError, match="16 rows for"):
        opened(
            write_gguf(
                tmp_path / "model.gguf", {"architectures": LLAMA["architectures"]}, {}, add=add
            )
        )


def test_stacked_experts_have_three_dimensions(tmp_path: Path) -> None:
    dialect = Dialect(
        architecture="moe",
        fields={"experts": "expert_count"},
        modules={"blk.{n}.ffn_up_exps": "layers.{n}.experts.up"},
        constants={"norm_topk_prob": True},
    )
    architecture = Architecture(name="MoE", config=dict, build=dict, dialects={"gguf": dialect})
    writer = gguf.GGUFWriter(tmp_path / "moe.gguf", "moe")
    writer.add_expert_count(4)
    writer.add_tensor(
        "blk.11.ffn_up_exps.weight",
        torch.zeros(4, 6, 34, dtype=torch.uint8).numpy(),
        raw_dtype=Type.Q8_0,
    )
    writer.add_tensor("blk.11.unknown.weight", torch.zeros(6).numpy())
    finish(writer)
    checkpoint = GgufCheckpoint.open(tmp_path / "moe.gguf", [architecture])
    infos = {name: info.shape for name, info in checkpoint.tensors.items()}
    assert infos == {"layers.11.experts.up.q8_0": (4, 6, 34), "blk.11.unknown.weight": (6,)}
    assert checkpoint.config["experts"] == 4 and checkpoint.config["norm_topk_prob"] is True
    assert checkpoint.read("layers.11.experts.up.q8_0").shape == (4, 6, 34)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("installed", "cause", "remedy"),
    [
        ([], "qwen3", "Install a plugin.*none"),
        (["llama"], "qwen3", r"Install a plugin.*llama \(A0\)"),
        (["qwen3", "qwen3"], "A0 and A1", "--disable"),
    ],
)
def test_an_architecture_that_is_not_installed_once_is_an_error_that_says_what_to_do(
    installed: list[str], cause: str, remedy: str, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "model.gguf", CONFIG, {})
    known = [
        Architecture(
            name=f"A{i}",
            config=dict,
            build=dict,
            dialects={"gguf": Dialect(architecture=name)},
        )
        for i, name in enumerate(installed)
    ]
    with pytest.raises(CheckpointError, match=cause) as caught:
        GgufCheckpoint.open(path, known)
    assert re.search(remedy, caught.value.remedy)
    wanted = Missing("architecture", "qwen3") if len(installed) < 2 else None
    assert caught.value.missing == wanted


# --- the map --------------------------------------------------------------------------------------


def test_tensors_outlive_the_checkpoint_and_change_no_file(tmp_path: Path) -> None:
    weight = torch.randn(2048, 64)
    path = write_gguf(
        tmp_path / "model.gguf",
        CONFIG,
        {"model.embed_tokens.weight": weight, "lm_head.weight": weight},
    )
    before = path.read_bytes()
    checkpoint = opened(path)
    kept, dropped = checkpoint.read("lm_head.weight"), checkpoint.read("model.embed_tokens.weight")
    kept += 1
    del dropped  # its pages go, its neighbour's stay
    assert torch.equal(checkpoint.read("model.embed_tokens.weight"), weight)
    checkpoint.close()
    del checkpoint
    assert torch.equal(kept, weight + 1) and path.read_bytes() == before


@pytest.mark.skipif(
    not Path("/proc/self/smaps").exists(), reason="counts resident pages as Linux shows them"
)
def test_pages_leave_memory_with_their_tensor(tmp_path: Path) -> None:
    weight = torch.randn(4096, 256)
    path = write_gguf(
        tmp_path / "model.gguf",
        CONFIG,
        {"model.embed_tokens.weight": weight, "lm_head.weight": weight},
    )
    checkpoint = opened(path)
    tensor = checkpoint.read("lm_head.weight")
    tensor.sum()
    assert resident(path) >= weight.nbytes
    del tensor
    assert resident(path) < weight.nbytes / 4


def resident(path: Path) -> int:
    """Bytes of the file's map that are in memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    return sum(
        int(next(line for line in lines if line.startswith("Rss:")).split()[1]) * 1024
        for line in lines
        if line.endswith(str(path))
    )
