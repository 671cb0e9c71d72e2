"""A tiny Qwen2-Audio with a tokenizer of bytes. It stores no chat template, and hears two
seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tests.fake_engine import byte_backend

from inferno.testing import TINY_TEXT, like_trained, randomize

TOKENS = ("<|audio_bos|>", "<|audio_eos|>", "<|AUDIO|>", "<|im_start|>", "<|im_end|>")
START, END, AUDIO, TURN, TURN_END = range(257, 262)
CONFIG: dict[str, Any] = {
    "text_config": {
        "model_type": "qwen2",
        **TINY_TEXT,
        "vocab_size": 262,
        "max_position_embeddings": 2048,
        "eos_token_id": TURN_END,
        "bos_token_id": None,
    },
    "audio_config": {
        "model_type": "qwen2_audio_encoder",
        "num_mel_bins": 16,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "d_model": 32,
        "max_source_positions": 100,
    },
    "audio_token_index": AUDIO,
}


def write_hearing_model(folder: Path) -> None:
    """Write the checkpoint."""
    import transformers

    auto: Any = transformers
    config = auto.AutoConfig.for_model("qwen2_audio", **json.loads(json.dumps(CONFIG)))
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = auto.AutoModelForMultimodalLM.from_config(config, dtype=torch.float32)
    randomize(model)
    like_trained(model)
    model.eval().save_pretrained(folder)
    backend = byte_backend()
    backend.add_special_tokens(list(TOKENS))
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    settings = {"feature_size": 16, "sampling_rate": 16_000, "hop_length": 160, "n_fft": 400}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
