"""The GGUF dialect of Phi and Phi-3. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Dialect

_LAYER = "model.layers.{n}"

PHI = Dialect(
    architecture="phi2",
    constants={"model_type": "phi"},
    fields={"rms_norm_eps": None, "layer_norm_eps": "attention.layer_norm_epsilon"},
    modules={
        "output_norm": "model.final_layernorm",
        "blk.{n}.attn_output": f"{_LAYER}.self_attn.dense",
        "blk.{n}.ffn_up": f"{_LAYER}.mlp.fc1",
        "blk.{n}.ffn_down": f"{_LAYER}.mlp.fc2",
    },
)
PHI3 = Dialect(
    architecture="phi3",
    constants={"model_type": "phi3"},
    fields={"sliding_window": "attention.sliding_window"},
    modules={
        "blk.{n}.attn_qkv": f"{_LAYER}.self_attn.qkv_proj",
        "blk.{n}.ffn_up": f"{_LAYER}.mlp.gate_up_proj",
    },
    values={"sliding_window": {0: None}},
    strip_after={"llama": ("<unk>", "<s>", "<|endoftext|>")},
)
