"""Text models that transformers has only inside of models that read more than text: with a head,
they are causal language models."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming, WeightTransform
from transformers.modeling_outputs import CausalLMOutput

TEXT_MODELS: Mapping[str, tuple[str, str]] = {
    "cosmos3_edge_text": ("cosmos3_edge", "Cosmos3EdgeTextModel"),
    "ernie4_5_vl_moe_text": ("ernie4_5_vl_moe", "Ernie4_5_VLMoeTextModel"),
    "molmo2_text": ("molmo2", "Molmo2TextModel"),
    "step3p5": ("step3p7", "Step3p7TextModel"),
}
"""Type of a text part -> transformers' module and the class in it. Of each it is known, by a
comparison of logits, that the whole model has a plain matrix above it."""


def text_model(kind: str) -> type[PreTrainedModel]:
    """Return transformers' class of a text part's type."""
    module, name = TEXT_MODELS[kind]
    model: type[PreTrainedModel] = getattr(
        importlib.import_module(f"transformers.models.{module}.modeling_{module}"), name
    )
    return model


_STORED: Mapping[str, Mapping[str, str]] = {
    "molmo2_text": {r"^model\.blocks\.": "model.layers.", r"^model\.ln_f\.": "model.norm."}
}
"""Type of a text part -> what is renamed in it, where transformers declares it only together with
the text part's place in the whole."""

_ELSEWHERE = re.compile(r"language_model|vision(?!_moe)|projector|model\.")
"""What has a name in the whole, or is beside the text part."""


def conversions(kind: str) -> list[WeightTransform]:
    """Return what transformers converts inside of the layers when it loads the whole model, of a
    text part's type; of others nothing."""
    if kind not in TEXT_MODELS:
        return []
    mapping = get_checkpoint_conversion_mapping(TEXT_MODELS[kind][0]) or []
    own = [WeightRenaming(stored, name) for stored, name in _STORED.get(kind, {}).items()]
    return [
        *own,
        *(
            each
            for each in mapping
            if not any(_ELSEWHERE.search(target) for target in each.target_patterns)
        ),
    ]


class HeadedTextModel(PreTrainedModel):
    """A text model under `model`, and a head under `lm_head`; without experts that only images
    have."""

    base_model_prefix = "model"
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _supports_sdpa = _supports_attention_backend = True

    def __init__(self, config: Any, **how: Any) -> None:
        super().__init__(config)
        self.model = text_model(config.model_type)._from_config(config, **how)
        self._is_stateful = self.model._is_stateful
        self._keep_in_fp32_modules_strict = self.model._keep_in_fp32_modules_strict
        self._keys_to_ignore_on_load_unexpected = [
            *(self.model._keys_to_ignore_on_load_unexpected or ()),
            r"\.vision_moe\.",
        ]
        for module in self.model.modules():
            if hasattr(module, "vision_moe"):
                module.vision_moe = None
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        auto: Any = self
        auto.post_init()

    def forward(self, input_ids: Tensor, **inputs: Any) -> CausalLMOutput:
        return CausalLMOutput(logits=self.lm_head(self.model(input_ids=input_ids, **inputs)[0]))
