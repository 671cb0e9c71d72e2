"""The config that a file's metadata gives, by its architecture's dialect."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf_models import CONFIG, opened, write_gguf

from inferno.configs import RopeConfig
from inferno.contracts import Architecture, Dialect
from inferno.errors import CheckpointError
from inferno_gguf.checkpoint import GgufCheckpoint


def config_of(path: Path) -> Mapping[str, Any]:
    return opened(path).config


def test_the_config_is_the_original_one(tmp_path: Path) -> None:
    config = {**CONFIG, "intermediate_size": 48, "tie_word_embeddings": False, "rms_norm_eps": 1e-5}
    tensors = {
        "model.embed_tokens.weight": torch.zeros(64, 32).bfloat16(),
        "lm_head.weight": torch.zeros(64, 32).bfloat16(),
    }
    assert config_of(write_gguf(tmp_path / "model.gguf", config, tensors)) == {
        **config,
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        "attention_bias": False,
    }


def of_dialect(**fields: Any) -> Architecture:
    dialect = Dialect(architecture="qwen3", **fields)
    return Architecture(name="Toy", config=dict, build=dict, dialects={"gguf": dialect})


def test_a_dialect_has_the_last_word_on_the_config(tmp_path: Path) -> None:
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
def test_metadata_that_no_config_can_be_made_of_is_refused(config: Any, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", CONFIG, {})
    with pytest.raises(CheckpointError, match="no config of Toy") as caught:
        GgufCheckpoint.open(path, [of_dialect(config=config)])
    assert "download it again" in caught.value.remedy


def test_more_layers_than_tensors_are_refused(tmp_path: Path) -> None:
    """Before any is built."""
    with pytest.raises(CheckpointError, match="4294967295 layers of 0 tensors"):
        config_of(
            write_gguf(
                tmp_path / "model.gguf", CONFIG, {}, add=lambda w: w.add_block_count(2**32 - 1)
            )
        )


def test_biases_that_are_stored_are_declared(tmp_path: Path) -> None:
    tensors = {"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}
    assert config_of(write_gguf(tmp_path / "model.gguf", CONFIG, tensors))["attention_bias"] is True
    without = config_of(write_gguf(tmp_path / "other.gguf", CONFIG, {}))
    assert without["attention_bias"] is False


def test_a_value_per_layer_that_never_changes_is_one_value(tmp_path: Path) -> None:
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
def test_rotary_scaling(keys: Mapping[str, Any], expected: RopeConfig, tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        for key, value in keys.items():
            name = f"qwen3.rope.scaling.{key}"
            match value:
                case str():
                    writer.add_string(name, value)
                case float():
                    writer.add_float32(name, value)
                case int():
                    writer.add_uint32(name, value)

    assert (
        RopeConfig.from_json(config_of(write_gguf(tmp_path / "model.gguf", CONFIG, {}, add=add)))
        == expected
    )


def test_the_attention_factor_of_yarn_multiplies_its_own(tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_attn_factors(0.5)

    rope = RopeConfig.from_json(config_of(write_gguf(tmp_path / "model.gguf", CONFIG, {}, add=add)))
    assert rope.attention_factor == pytest.approx(0.5 * (1 + 0.1 * torch.tensor(4.0).log().item()))


def test_part_of_a_head_is_rotated(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "model.gguf", CONFIG, {}, add=lambda w: w.add_rope_dimension_count(4)
    )
    assert RopeConfig.from_json(config_of(path)).partial_rotary_factor == 0.5


def test_divisors_for_short_and_long_contexts(tmp_path: Path) -> None:
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
def test_divisors_that_cannot_be_are_refused(factors: list[float], tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf",
        CONFIG,
        {},
        add=lambda w: w.add_tensor("rope_freqs.weight", torch.tensor(factors).numpy()),
    )
    with pytest.raises(CheckpointError, match="rope_freqs"):
        opened(path)
