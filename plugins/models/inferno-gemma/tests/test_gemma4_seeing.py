"""Gemma 4 with images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gemma4_toy import CONFIG, TOKENS, Gemma4Seeing
from torch import Tensor

from inferno.errors import CheckpointError
from inferno.testing import EncoderFileTests, ImageTests
from inferno_gemma.images import processor4
from inferno_gemma.vision4_config import SpanningGemma4Config, gemma4

pytest.importorskip("PIL")


class TestGemma4Seeing(Gemma4Seeing, ImageTests):
    """Gemma 4 E2B with its images: inputs per layer of padding, keys and values that are shared."""


class TestGemma4Spanning(TestGemma4Seeing):
    """Gemma 4 26B-A4B with its images: tokens of an image attend to each other in layers with a
    window; keys of full layers are values; experts; products of the encoder are clipped."""

    config = {
        **CONFIG,
        "text_config": {
            **CONFIG["text_config"],
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "use_bidirectional_attention": "vision",
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
        },
        "vision_config": {**CONFIG["vision_config"], "use_clipped_linears": True},
    }


class TestFiles(Gemma4Seeing, EncoderFileTests):
    """Gemma 4 E2B in two GGUF files, of the text model and of the encoder, which has one of sound
    too."""

    text = "gemma4"
    gguf_fields = {
        "inner_sizes": 96,
        "kv_heads": 2,
        "sliding_window_pattern": [True, False] * 2,
        "global_head_dim": 32,
        "rope_width": 32,
        "local_rope_width": 16,
        "rope_local_base_freq": 10_000.0,
        "rope_theta": 1_000_000.0,
    }
    tokens = {150: "<|image|>", 151: "<|image>", 152: "<image|>"}
    unread = frozenset({"a.patch_embd.weight"})
    looks = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3}

    def keys(self, vision: Any) -> Mapping[str, Any]:
        return {
            "vision.projector_type": "gemma4v",
            "audio.projector_type": "gemma4a",
            "vision.projector.scale_factor": vision.pooling_kernel_size,
        }

    def stored(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        if not name.startswith(("vision_tower.", "embed_vision.")):
            return
        path = name.replace("vision_tower.encoder.", "vision_model.model.")
        path = path.replace(".linear.weight", ".weight")
        module, _, part = path.rpartition(".")
        if part == "position_embedding_table":
            yield "v.position_embd.weight", tensor
        elif module == "vision_tower.patch_embedder.input_proj":
            yield "v.patch_embd.weight", tensor.view(-1, 4, 4, 3).permute(0, 3, 1, 2)
            yield "a.patch_embd.weight", torch.ones(3)
        elif part in ("std_bias", "std_scale"):
            yield f"v.{part}", tensor
        elif module.startswith("embed_vision."):
            yield f"mm.input_projection.{part}", tensor
        elif tensor.ndim:
            yield path, tensor
        else:
            layer, group, product = module.split(".")[3:6]
            short = {"o_proj": "out"}.get(product, product.removesuffix("_proj"))
            kind = "attn" if group == "self_attn" else "ffn"
            yield f"v.blk.{layer}.{kind}_{short}.{part}", tensor[None]


class TestFilesOfMixture(TestFiles):
    """Gemma 4 26B-A4B in two GGUF files."""

    config = TestGemma4Spanning.config
    span = TOKENS
    gguf_fields = {**TestFiles.gguf_fields, "kv_heads": [2, 1, 2, 1]}


def test_images_are_prepared_as_by_transformers() -> None:
    from PIL import Image
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    vision = {**CONFIG["vision_config"], "patch_size": 16, "pooling_kernel_size": 3}
    prepare = processor4(gemma4({**CONFIG, "vision_config": vision}), {"max_soft_tokens": 70}, 4096)
    drawn = np.random.default_rng(0).integers(0, 256, (90, 170, 3), np.uint8)
    image = Image.fromarray(drawn)
    theirs = Gemma4ImageProcessorPil(max_soft_tokens=70)(images=[image], return_tensors="np")
    ours = prepare(image)
    count = int(theirs["num_soft_tokens_per_image"][0])
    assert gemma4({**CONFIG, "vision_config": vision}).image_tokens(ours.grid) == count
    np.testing.assert_array_equal(ours.values, theirs["pixel_values"][0][: len(ours.values)])


def test_an_image_is_between_two_tokens() -> None:
    config = gemma4(CONFIG)
    assert not isinstance(config, SpanningGemma4Config)
    assert config.image_layout((1, 4, 6)) == [151, *[None] * 6, 152]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"vision_config": None}, "vision_config is missing"),
        ({"vision_config": {**CONFIG["vision_config"], "head_dim": 6}}, "head_dim 6"),
        ({"vision_config": {**CONFIG["vision_config"], "patch_size": 0}}, "patch_size"),
        ({"vision_config": {**CONFIG["vision_config"], "hidden_activation": "relu"}}, "activation"),
        ({"eoi_token_id": 160}, "eoi_token_id is 160"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(
    damage: Mapping[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        gemma4({**CONFIG, **damage})
