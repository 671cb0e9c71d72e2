"""Text models that transformers has only inside of models that read more than text: with a head,
they are causal language models."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightTransform
from transformers.modeling_outputs import CausalLMOutput

TEXT_MODELS: Mapping[str, tuple[str, str]] = {"step3p5": ("step3p7", "Step3p7TextModel")}
"""Type of a text part -> transformers' module and the class in it. Of each it is known, by a
comparison of logits, that the whole model has a plain matrix above it."""


def text_model(kind: str) -> type[PreTrainedModel]:
    """Return transformers' class of a text part's type."""
    module, name = TEXT_MODELS[kind]
    model: type[PreTrainedModel] = getattr(
        importlib.import_module(f"transformers.models.{module}.modeling_{module}"), name
    )
    return model


def conversions(kind: str) -> list[WeightTransform]:
    """Return what transformers converts inside of the layers when it loads the whole model, of a
    text part's type; of others nothing."""
    if kind not in TEXT_MODELS:
        return []
    mapping = get_checkpoint_conversion_mapping(TEXT_MODELS[kind][0]) or []
    elsewhere = ("language_model", "vision", "projector", "model.")
    return [
        each
        for each in mapping
        if not any(part in target for target in each.target_patterns for part in elsewhere)
    ]


class HeadedTextModel(PreTrainedModel):
    """A text model under `model`, and a head under `lm_head`."""

    base_model_prefix = "model"
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _supports_sdpa = _supports_attention_backend = True

    def __init__(self, config: Any, **how: Any) -> None:
        super().__init__(config)
        self.model = text_model(config.model_type)._from_config(config, **how)
        self._is_stateful = self.model._is_stateful
        self._keep_in_fp32_modules_strict = self.model._keep_in_fp32_modules_strict
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        auto: Any = self
        auto.post_init()

    def forward(self, input_ids: Tensor, **inputs: Any) -> CausalLMOutput:
        return CausalLMOutput(logits=self.lm_head(self.model(input_ids=input_ids, **inputs)[0]))
