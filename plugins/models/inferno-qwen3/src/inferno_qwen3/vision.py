"""Qwen3-VL: a Qwen3 whose prompts have places for images, with its encoder; features of some of the
encoder's layers are added after the first layers.

https://arxiv.org/abs/2511.21631; reference: transformers/models/qwen3_vl.
"""

from __future__ import annotations

from inferno.nn import CausalLM, DeepEncoder, SeeingDecoder, deepstack
from inferno_qwen3.model import layer
from inferno_qwen3.vision_config import Qwen3VLConfig


class Qwen3VLForConditionalGeneration(CausalLM):
    def __init__(self, config: Qwen3VLConfig) -> None:
        inputs, kinds = deepstack(config)
        layers = (layer(config, layer_id, kind) for layer_id, kind in enumerate(kinds))
        decoder = SeeingDecoder.seeing(config, layers, inputs, woven=True)
        super().__init__(decoder, tied=config.tie_word_embeddings)
        self.visual = DeepEncoder(config.vision)
