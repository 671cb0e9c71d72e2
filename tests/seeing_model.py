"""A tiny model that sees images, with a tokenizer of bytes and a chat template as Qwen2.5-VL has
it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tests.fake_engine import byte_backend

from inferno.testing import TINY_TEXT, like_trained, randomize

TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|im_start|>", "<|im_end|>")
START, END, IMAGE, TURN, TURN_END = range(257, 262)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "text_config": {
        **TINY_TEXT,
        "vocab_size": 262,
        "max_position_embeddings": 2048,
        "eos_token_id": TURN_END,
        "bos_token_id": None,
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4},
    },
    "vision_config": {
        "depth": 2,
        "hidden_size": 32,
        "out_hidden_size": 64,
        "num_heads": 2,
        "intermediate_size": 48,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    },
    "image_token_id": IMAGE,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}


def write_seeing_model(folder: Path) -> Any:
    """Write the checkpoint. Returns transformers' model."""
    import transformers

    auto: Any = transformers
    fields = {k: v for k, v in json.loads(json.dumps(CONFIG)).items() if k != "model_type"}
    config = auto.AutoConfig.for_model("qwen2_5_vl", **fields)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = auto.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    randomize(model)
    like_trained(model)
    model.eval().save_pretrained(folder)
    backend = byte_backend()
    backend.add_special_tokens(list(TOKENS))
    backend.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "preprocessor_config.json").write_text(json.dumps({"max_pixels": 28 * 28 * 100}))
    return model
