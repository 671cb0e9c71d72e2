"""The text part of a checkpoint: which config, which tensors, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from inferno.contracts import TensorInfo, TextAssets, TextPart, encoder_of, text_config, text_part
from inferno.errors import CheckpointError


class Stored:
    """A checkpoint of vectors, each of which holds its place in the list of names."""

    def __init__(self, names: list[str], **config: Any) -> None:
        self.config: Mapping[str, Any] = config
        self.names = names
        self.tensors = {name: TensorInfo("float32", (1,), 4) for name in names}

    def text(self) -> TextAssets:
        return TextAssets()

    def read(self, name: str) -> torch.Tensor:
        return torch.tensor([float(self.names.index(name))])

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("decoder", "head", "tower"),
    [
        ("language_model.model", "language_model.lm_head", "vision_tower"),
        ("model.language_model", "lm_head", "model.vision_tower"),
        ("model.text_model", "lm_head", "model.vision_model"),
        ("model.transformer", "lm_head", "model.vision_backbone"),
        ("thinker.model", "thinker.lm_head", "thinker.visual"),
        ("model", "lm_head", "visual"),
    ],
)
def test_the_language_model_is_found_wherever_it_is_stored(
    decoder: str, head: str, tower: str
) -> None:
    inside = ["embed_tokens.weight", "layers.0.mlp.up_proj.weight", "norm.weight"]
    names = [*(f"{decoder}.{name}" for name in inside), f"{head}.weight", f"{tower}.conv.weight"]
    part = text_part(Stored(names, text_config={"model_type": "llama"}))
    assert list(part.tensors) == [*(f"model.{name}" for name in inside), "lm_head.weight"]
    assert [int(part.read(name)) for name in part.tensors] == [0, 1, 2, 3]
    assert list(part.left_out) == [f"{tower}.conv.weight"]
    assert part.config["tie_word_embeddings"] is False


def test_a_decoder_may_be_stored_under_no_name_beside_an_encoder() -> None:
    """As in Cosmos 3; a decoder without an encoder that is stored so has its head under a name."""
    inside = ["embed_tokens.weight", "layers.0.mlp.up_proj.weight", "norm.weight"]
    part = text_part(Stored([*inside, "lm_head.weight", "blocks.0.norm.weight"], text_config={}))
    assert list(part.tensors) == [*(f"model.{name}" for name in inside), "lm_head.weight"]
    assert list(part.left_out) == ["blocks.0.norm.weight"]
    with pytest.raises(CheckpointError, match="no language model where one is expected"):
        text_part(Stored(inside[:2], text_config={}))


def test_a_head_that_is_not_stored_is_tied() -> None:
    part = text_part(Stored(["model.language_model.embed_tokens.weight"], text_config={}))
    assert part.config["tie_word_embeddings"] is True


def test_fields_of_the_whole_count_where_the_part_has_none() -> None:
    config = {
        "dtype": "bfloat16",
        "eos_token_id": 7,
        "quantization_config": {"quant_method": "fp8"},
        "hidden_size": 9,
        "text_config": {"model_type": "qwen3", "dtype": None, "eos_token_id": 8},
    }
    assert text_config(config) == {
        "dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8"},
        "model_type": "qwen3",
        "eos_token_id": 8,
    }


def test_the_part_may_be_nested_twice_or_not_at_all() -> None:
    thinker = {"text_config": {"model_type": "inner"}, "vision_config": {}, "audio_config": {}}
    assert text_config({"thinker_config": thinker}) == {"model_type": "inner"}
    assert encoder_of({"thinker_config": thinker}) == "an image and an audio encoder"
    assert encoder_of({"vision_config": {}, "audio_config": None}) == "an image encoder"
    flat = {"model_type": "lens", "hidden_size": 8, "vision_config": {"depth": 1}}
    assert text_config(flat) == {"model_type": "lens_text", "hidden_size": 8}
    assert text_config({"model_type": "llama", "hidden_size": 8}) is None
    assert text_config({"text_config": "llama"}) is None


def test_a_checkpoint_without_a_language_model_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="no language model where one is expected"):
        TextPart(Stored(["vision_tower.conv.weight"], text_config={}))
