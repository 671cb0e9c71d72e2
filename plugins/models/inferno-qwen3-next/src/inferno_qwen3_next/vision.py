"""Qwen3.5 with its images: prompts have places for them, and Qwen3-VL's encoder, of which no
layer's features are used.

Reference: transformers/models/qwen3_5 and qwen3_5_moe.
"""

from __future__ import annotations

from inferno.nn import CausalLM, DeepEncoder, SeeingDecoder, grid_inputs
from inferno_qwen3_next.model import Layer, Norm
from inferno_qwen3_next.vision_config import SeeingQwen35Config


class Qwen35ForConditionalGeneration(CausalLM):
    def __init__(self, config: SeeingQwen35Config) -> None:
        layers = (Layer(config, layer_id) for layer_id in range(config.num_hidden_layers))
        inputs = grid_inputs(config)
        decoder = SeeingDecoder.seeing(config, layers, inputs, woven=True, norm=Norm)
        super().__init__(decoder, tied=config.tie_word_embeddings)
        self.visual = DeepEncoder(config.vision)
