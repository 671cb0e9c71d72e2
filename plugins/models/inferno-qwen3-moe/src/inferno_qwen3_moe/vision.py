"""Qwen3-VL's mixtures of experts: prompts have places for images, and features of some of the
encoder's layers are added after the first layers.

https://arxiv.org/abs/2511.21631; reference: transformers/models/qwen3_vl_moe.
"""

from __future__ import annotations

from inferno.nn import CausalLM, DeepEncoder, SeeingDecoder, deepstack
from inferno_qwen3_moe.model import layer
from inferno_qwen3_moe.vision_config import Qwen3VLMoeConfig


class Qwen3VLMoeForConditionalGeneration(CausalLM):
    def __init__(self, config: Qwen3VLMoeConfig) -> None:
        inputs, kinds = deepstack(config)
        layers = (layer(config, layer_id, kind) for layer_id, kind in enumerate(kinds))
        decoder = SeeingDecoder.seeing(config, layers, inputs, woven=True)
        super().__init__(decoder, tied=config.tie_word_embeddings)
        self.visual = DeepEncoder(config.vision)
