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
from torch import Tensor

from inferno.configs import RopeConfig
from inferno.contracts import Architecture, Dialect
from inferno.errors import CheckpointError, Missing
from inferno.testing import CheckpointFormatTests, load_catalog
from inferno_gguf.checkpoint import GgufCheckpoint

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 32,
    "vocab_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
}
LLAMA = {**CONFIG, "architectures": ["LlamaForCausalLM"]}


def architectures() -> list[Architecture]:
    return [offer.item for offer in load_catalog().of("inferno_architectures")]


def opened(path: Path) -> GgufCheckpoint:
    return GgufCheckpoint.open(path, architectures())


class GgufTests(CheckpointFormatTests):
    format = "gguf"
    config = CONFIG
    architectures = architectures()
    options: Mapping[str, Any] = {}

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def writer(cls, write_gguf: Any) -> None:
        cls.write_gguf = staticmethod(write_gguf)

    @pytest.fixture(scope="class")
    @classmethod
    def written(cls, writer: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
        toy = cls()
        return toy.write(tmp_path_factory.mktemp("checkpoint"), cls.config, toy.tensors())

    def write(self, folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
        path: Path = self.write_gguf(folder / "model.gguf", config, tensors, **self.options)
        return path


class TestOneFile(GgufTests):
    pass


class TestRotaryPairs(GgufTests):
    config = LLAMA

    def tensors(self) -> dict[str, Tensor]:
        found = super().tensors()
        for name, rows in (("q_proj", 32), ("k_proj", 16), ("v_proj", 16)):
            found[f"model.layers.0.self_attn.{name}.weight"] = torch.arange(rows * 32.0).view(
                rows, 32
            )
        found["model.layers.0.self_attn.q_proj.bias"] = torch.arange(32.0)
        return found


class TestBigEndian(GgufTests):
    options = {"endianess": gguf.GGUFEndian.BIG}


class TestFolderOfShards(GgufTests):
    options = {"split_max_tensors": 2}

    def write(self, folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
        return super().write(folder, config, tensors).parent


# --- names and types ------------------------------------------------------------------------------


def test_packed_matrices_are_parts_by_the_name_of_their_type(
    write_gguf: Any, tmp_path: Path
) -> None:
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
def test_blocks_of_the_other_byte_order_are_swapped(
    kind: Type, write_gguf: Any, tmp_path: Path
) -> None:
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


def test_blocks_whose_byte_order_nobody_defined_are_refused(
    write_gguf: Any, tmp_path: Path
) -> None:
    tensors = {"model.layers.0.mlp.down_proj.weight": torch.zeros(3, 22, dtype=torch.uint8)}
    types = dict.fromkeys(tensors, Type.Q5_0)
    path = write_gguf(
        tmp_path / "model.gguf", CONFIG, tensors, types=types, endianess=gguf.GGUFEndian.BIG
    )
    with pytest.raises(CheckpointError, match="byte order"):
        opened(path).read("model.layers.0.mlp.down_proj.q5_0")


def test_packed_rows_of_rotary_pairs_move_whole(write_gguf: Any, tmp_path: Path) -> None:
    rows = torch.arange(32)[:, None].expand(32, 34).to(torch.uint8).contiguous()
    tensors = {"model.layers.0.self_attn.q_proj.weight": rows}
    path = write_gguf(
        tmp_path / "model.gguf", LLAMA, tensors, types=dict.fromkeys(tensors, Type.Q8_0)
    )
    [name] = (checkpoint := opened(path)).tensors
    assert torch.equal(checkpoint.read(name), rows)


@pytest.mark.parametrize("heads", [None, [2, 2]])
def test_heads_of_keys_may_be_left_out_or_told_for_each_layer(
    heads: list[int] | None, write_gguf: Any, tmp_path: Path
) -> None:
    config = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
    config |= {"num_key_value_heads": heads} if heads else {}
    tensors = {"model.layers.0.self_attn.k_proj.weight": torch.arange(512.0).view(16, 32)}
    [name] = (checkpoint := opened(write_gguf(tmp_path / "model.gguf", config, tensors))).tensors
    assert torch.equal(checkpoint.read(name), tensors[name])


@pytest.mark.parametrize("heads", [0, 3, 1.5, [1.5, 2.5]])
def test_heads_that_the_rows_cannot_be_of_are_refused(
    heads: Any, write_gguf: Any, tmp_path: Path
) -> None:
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
    installed: list[str], cause: str, remedy: str, write_gguf: Any, tmp_path: Path
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


# --- config ---------------------------------------------------------------------------------------


def config_of(path: Path) -> Mapping[str, Any]:
    return opened(path).config


def test_the_config_is_the_original_one(write_gguf: Any, tmp_path: Path) -> None:
    config = {**CONFIG, "intermediate_size": 48, "tie_word_embeddings": False, "rms_norm_eps": 1e-5}
    tensors = {
        "model.embed_tokens.weight": torch.zeros(64, 32).half(),
        "lm_head.weight": torch.zeros(64, 32).half(),
    }
    assert config_of(write_gguf(tmp_path / "model.gguf", config, tensors)) == {
        **config,
        "torch_dtype": "float16",
        "attention_bias": False,
    }


def of_dialect(**fields: Any) -> Architecture:
    dialect = Dialect(architecture="qwen3", **fields)
    return Architecture(name="Toy", config=dict, build=dict, dialects={"gguf": dialect})


def test_a_dialect_has_the_last_word_on_the_config(write_gguf: Any, tmp_path: Path) -> None:
    toy = of_dialect(
        fields={"width": "embedding_length", "head_dim": None},
        constants={"window": None},
        config=lambda fields: {"twice": 2 * fields["width"], "names": sorted(fields)},
    )
    path = write_gguf(tmp_path / "model.gguf", CONFIG, {})
    config = GgufCheckpoint.open(path, [toy]).config
    assert config["twice"] == 64
    assert {"width", "hidden_size", "window", "rope_theta"} <= set(config["names"])
    assert "head_dim" not in config["names"]


@pytest.mark.parametrize(
    "config",
    [
        lambda fields: fields["unsaid"],
        lambda fields: fields["hidden_size"] // 0,
        lambda fields: fields["hidden_size"] + None,
    ],
    ids=["missing", "zero", "type"],
)
def test_metadata_that_no_config_can_be_made_of_is_refused(
    config: Any, write_gguf: Any, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "model.gguf", CONFIG, {})
    with pytest.raises(CheckpointError, match="no config of Toy") as caught:
        GgufCheckpoint.open(path, [of_dialect(config=config)])
    assert "download it again" in caught.value.remedy


def test_more_layers_than_tensors_are_refused(write_gguf: Any, tmp_path: Path) -> None:
    """Before any is built."""
    with pytest.raises(CheckpointError, match="4294967295 layers of 0 tensors"):
        config_of(
            write_gguf(
                tmp_path / "model.gguf", CONFIG, {}, add=lambda w: w.add_block_count(2**32 - 1)
            )
        )


def test_biases_that_are_stored_are_declared(write_gguf: Any, tmp_path: Path) -> None:
    tensors = {"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}
    assert config_of(write_gguf(tmp_path / "model.gguf", CONFIG, tensors))["attention_bias"] is True
    without = config_of(write_gguf(tmp_path / "other.gguf", CONFIG, {}))
    assert without["attention_bias"] is False


def test_a_value_per_layer_that_never_changes_is_one_value(write_gguf: Any, tmp_path: Path) -> None:
    def config(values: list[int]) -> Mapping[str, Any]:
        return config_of(
            write_gguf(
                tmp_path / "m.gguf",
                CONFIG,
                {},
                add=lambda w: w.add_array("qwen3.feed_forward_length", values),
            )
        )

    assert config([48, 48])["intermediate_size"] == 48
    assert config([48, 56])["intermediate_size"] == [48, 56]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, RopeConfig(rope_theta=1e6)),
        ({"type": "none", "factor": 4.0}, RopeConfig(rope_theta=1e6)),
        (
            {"type": "linear", "factor": 4.0},
            RopeConfig(rope_theta=1e6, rope_type="linear", factor=4.0),
        ),
        ({"factor": 2.5}, RopeConfig(rope_theta=1e6, rope_type="linear", factor=2.5)),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 64, "yarn_beta_fast": 16.0},
            RopeConfig(
                rope_theta=1e6,
                rope_type="yarn",
                factor=4.0,
                original_max_position_embeddings=64,
                beta_fast=16.0,
            ),
        ),
    ],
)
def test_rotary_scaling(
    keys: Mapping[str, Any], expected: RopeConfig, write_gguf: Any, tmp_path: Path
) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        for key, value in keys.items():
            method = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[
                type(value)
            ]
            method(f"qwen3.rope.scaling.{key}", value)

    assert (
        RopeConfig.from_json(config_of(write_gguf(tmp_path / "model.gguf", CONFIG, {}, add=add)))
        == expected
    )


def test_the_attention_factor_of_yarn_multiplies_its_own(write_gguf: Any, tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_attn_factors(0.5)

    rope = RopeConfig.from_json(config_of(write_gguf(tmp_path / "model.gguf", CONFIG, {}, add=add)))
    assert rope.attention_factor == pytest.approx(0.5 * (1 + 0.1 * torch.tensor(4.0).log().item()))


def test_part_of_a_head_is_rotated(write_gguf: Any, tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "model.gguf", CONFIG, {}, add=lambda w: w.add_rope_dimension_count(4)
    )
    assert RopeConfig.from_json(config_of(path)).partial_rotary_factor == 0.5


def test_divisors_for_short_and_long_contexts(write_gguf: Any, tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_orig_ctx_len(64)
        writer.add_rope_scaling_attn_factors(1.25)
        for name, first in (("short", 1.0), ("long", 5.0)):
            writer.add_tensor(f"rope_factors_{name}.weight", torch.arange(first, first + 4).numpy())

    checkpoint = opened(write_gguf(tmp_path / "model.gguf", CONFIG, {}, add=add))
    assert not checkpoint.tensors
    assert RopeConfig.from_json(checkpoint.config) == RopeConfig(
        rope_theta=1e6,
        rope_type="longrope",
        short_factor=(1, 2, 3, 4),
        long_factor=(5, 6, 7, 8),
        attention_factor=1.25,
        original_max_position_embeddings=64,
    )


@pytest.mark.parametrize(
    "factors", [[1.0, 2.0], [1.0, 2.0, 0.0, 4.0], [1.0, float("inf"), 3.0, 4.0]]
)
def test_divisors_that_cannot_be_are_refused(
    factors: list[float], write_gguf: Any, tmp_path: Path
) -> None:
    path = write_gguf(
        tmp_path / "m.gguf",
        CONFIG,
        {},
        add=lambda w: w.add_tensor("rope_freqs.weight", torch.tensor(factors).numpy()),
    )
    with pytest.raises(CheckpointError, match="rope_freqs"):
        opened(path)


# --- the map --------------------------------------------------------------------------------------


def test_tensors_outlive_the_checkpoint_and_change_no_file(write_gguf: Any, tmp_path: Path) -> None:
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
def test_pages_leave_memory_with_their_tensor(write_gguf: Any, tmp_path: Path) -> None:
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
