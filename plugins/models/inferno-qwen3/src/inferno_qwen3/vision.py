"""Qwen3-VL: a Qwen3 whose prompts have places for images, with its encoder; features of some of the
encoder's layers are added after the first layers.

https://arxiv.org/abs/2511.21631; reference: transformers/models/qwen3_vl.
"""

from __future__ import annotations

from inferno.nn import DeepstackLM
from inferno_qwen3.model import layer
from inferno_qwen3.vision_config import Qwen3VLConfig


class Qwen3VLForConditionalGeneration(DeepstackLM):
    def __init__(self, config: Qwen3VLConfig) -> None:
        super().__init__(config, layer)
