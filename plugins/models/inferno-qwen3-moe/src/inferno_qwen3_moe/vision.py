"""Qwen3-VL's mixtures of experts: prompts have places for images, and features of some of the
encoder's layers are added after the first layers.

https://arxiv.org/abs/2511.21631; reference: transformers/models/qwen3_vl_moe.
"""

from __future__ import annotations

from inferno.nn import DeepstackLM
from inferno_qwen3_moe.model import layer
from inferno_qwen3_moe.vision_config import Qwen3VLMoeConfig


class Qwen3VLMoeForConditionalGeneration(DeepstackLM):
    def __init__(self, config: Qwen3VLMoeConfig) -> None:
        super().__init__(config, layer)
