"""A toy of Gemma 4 that sees, for several test files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from inferno.configs import FULL, SLIDING
from inferno.testing import TINY_TEXT, SeeingToy
from inferno_gemma.images import processor4
from inferno_gemma.vision4_config import gemma4

TOKENS = 16
CONFIG: dict[str, Any] = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "text_config": {
        **TINY_TEXT,
        "model_type": "gemma4_text",
        "num_hidden_layers": 4,
        "layer_types": [SLIDING, FULL, SLIDING, FULL],
        "num_kv_shared_layers": 2,
        "global_head_dim": 32,
        "sliding_window": 24,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 160,
    },
    "vision_config": {
        "model_type": "gemma4_vision",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "patch_size": 4,
        "pooling_kernel_size": 2,
        "position_embedding_size": 64,
        "standardize": True,
    },
    "audio_config": None,
    "image_token_id": 150,
    "boi_token_id": 151,
    "eoi_token_id": 152,
    "tie_word_embeddings": False,  # else such a toy says its last token again, whatever it sees
}


class Gemma4Seeing(SeeingToy):
    config = CONFIG

    def opened(self, checkpoint: Any, native: bool = False, **more: Any) -> Any:
        limits = {"max_image_tokens": TOKENS} if "max_image_tokens" not in more else {}
        return super().opened(checkpoint, native, **limits, **more)

    def inputs_of(self, images: Sequence[Any], ids: Sequence[int]) -> dict[str, Any]:
        """As transformers' processor makes them, of which only the numbers of tokens differ."""
        prepare = processor4(gemma4(self.config), {}, TOKENS)
        pixels, places = [], []
        for image in images:
            patches = prepare(image)
            rows, columns = np.indices(patches.grid[1:]).reshape(2, -1)
            missing = TOKENS * 4 - len(patches.values)
            pixels.append(np.pad(patches.values, [(0, missing), (0, 0)]))
            place = np.stack([columns, rows], -1)
            places.append(np.pad(place, [(0, missing), (0, 0)], constant_values=-1))
        types = torch.tensor([[int(each == 150) for each in ids]])
        return {
            "pixel_values": torch.from_numpy(np.stack(pixels)),
            "image_position_ids": torch.from_numpy(np.stack(places)),
            "mm_token_type_ids": types,
        }
