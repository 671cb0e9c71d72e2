"""The text part of models that also read images or sound: what every plugin must do that computes
one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from inferno.catalog import Catalog, load_catalog
from inferno.testing.reference import transformers_model
from inferno.testing.tiny import generate, load_toy, ragged_prompts
from inferno.testing.trained_weights import like_trained

TINY_TEXT: Mapping[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
"""Fields of a toy `text_config`."""
_VISION: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "depth": 1,
    "num_attention_heads": 2,
    "num_heads": 2,
    "image_size": 32,
    "patch_size": 16,
}
_FAR = 1e-3
"""Standard deviations of the logits by which one may differ from transformers'."""


class TextPartTests:
    """Set `config` to a toy `config.json` of a whole model, with its `text_config`; sizes of a
    small encoder are filled in, but those that it has as None. Prompts have token ids below 140:
    images' must be above. The reference is transformers' whole model, given text only, with weights
    like trained ones."""

    config: ClassVar[Mapping[str, Any]]
    computed_by: ClassVar[str]
    """The architecture that computes the text part."""
    plain_embedding: ClassVar[bool] = True
    """Whether weights can be made like trained ones: not where a layer sums several embeddings."""

    @pytest.fixture(scope="class")
    @classmethod
    def catalog(cls) -> Catalog:
        return load_catalog()

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls) -> nn.Module:
        encoders = {
            name: {k: v for k, v in {**_VISION, **cls.config[name]}.items() if v is not None}
            for name in ("vision_config", "audio_config")
            if name in cls.config
        }
        model = transformers_model({**cls.config, **encoders}, "AutoModelForImageTextToText")
        if cls.plain_embedding:
            like_trained(model)
        return model

    @pytest.fixture(scope="class")
    @classmethod
    def checkpoint(cls, reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("whole")
        reference.save_pretrained(path)
        return path

    def test_text_gives_the_tokens_of_the_whole_model(
        self, reference: nn.Module, checkpoint: Path, catalog: Catalog
    ) -> None:
        toy = load_toy(checkpoint, catalog)
        prompts = ragged_prompts(140)
        for prompt, outcome in zip(prompts, generate(toy, prompts, 8), strict=True):
            ids = torch.tensor([[*prompt, *outcome.token_ids]])
            with torch.inference_mode():
                theirs_LV = reference(input_ids=ids, use_cache=False).logits[0].float()
            theirs_NV = theirs_LV[len(prompt) - 1 : -1]
            far = (outcome.logits_NV - theirs_NV).abs().max() / theirs_NV.std()
            assert far < _FAR, f"after {len(prompt)} tokens"

    def test_the_plan_says_what_is_not_loaded(self, checkpoint: Path, catalog: Catalog) -> None:
        plan = load_toy(checkpoint, catalog).plan
        [architecture] = [each.name for each in plan.chosen if each.kind == "architecture"]
        assert architecture == self.computed_by
        [note] = [note for note in plan.notes if note.startswith("text only")]
        assert "images are off" in note and "tensors are unused" in note
