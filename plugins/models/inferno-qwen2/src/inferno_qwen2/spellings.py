"""Models that Qwen2's code computes under other classes: Qwen and MiMo. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import Fused, Spelling
from inferno.errors import CheckpointError, UnsupportedError

_LAYER, _STORED = "model.layers.{n}", "transformer.h.{n}"
_ATTENTION, _MLP = f"{_LAYER}.self_attn", f"{_LAYER}.mlp"
_BY_LENGTH = ("use_dynamic_ntk", "use_logn_attn")
"""What changes positions and scores beyond the trained length only."""


def _qwen(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`intermediate_size` is that of gate and up together; contexts end at the trained length,
    from which on positions depend on the prompt's length."""
    if "visual" in fields:
        raise UnsupportedError(
            "Qwen-VL, QWenLMHeadModel with an image encoder, cannot run here",
            "Qwen2-VL and later run.",
        )
    width, trained = fields.get("intermediate_size"), fields.get("seq_length")
    if type(width) is not int or width % 2:
        raise CheckpointError(
            f"config.json: intermediate_size is {width!r}",
            "It must be even: it has gate and up.",
        )
    config = {**fields, "intermediate_size": width // 2, "use_sliding_window": False}
    if trained is not None and any(fields.get(name, True) for name in _BY_LENGTH):
        config["max_position_embeddings"] = trained
    config["num_key_value_heads"] = fields.get("num_attention_heads")
    config["partial_rotary_factor"] = fields.get("rotary_pct", 1.0)
    config["hidden_act"] = "silu"
    config.setdefault("tie_word_embeddings", False)
    return config


QWEN = Spelling(
    name="QWenLMHeadModel",
    model_types=("qwen",),
    fields={
        "layer_norm_epsilon": "rms_norm_eps",
        "kv_channels": "head_dim",
        "rotary_emb_base": "rope_theta",
    },
    config=_qwen,
    modules={
        "transformer.wte": "model.embed_tokens",
        f"{_STORED}.ln_1": f"{_LAYER}.input_layernorm",
        f"{_STORED}.ln_2": f"{_LAYER}.post_attention_layernorm",
        f"{_STORED}.attn.c_proj": f"{_ATTENTION}.o_proj",
        f"{_STORED}.mlp.w2": f"{_MLP}.gate_proj",
        f"{_STORED}.mlp.w1": f"{_MLP}.up_proj",
        f"{_STORED}.mlp.c_proj": f"{_MLP}.down_proj",
        "transformer.ln_f": "model.norm",
    },
    fused={f"{_STORED}.attn.c_attn": Fused({f"{_ATTENTION}.{qkv}_proj": 1 for qkv in "qkv"})},
    unused=(r".*\.inv_freq",),
    checkpoints=("Qwen/Qwen-1_8B-Chat", "Qwen/Qwen-7B-Chat", "Qwen/Qwen-14B", "Qwen/Qwen-72B"),
)
_PREDICTS = "model.mtp_layers.{n}"
MIMO = Spelling(
    name="MiMoForCausalLM",
    model_types=("mimo",),
    drafts=True,
    modules={
        f"{_PREDICTS}.token_layernorm": f"{_PREDICTS}.enorm",
        f"{_PREDICTS}.hidden_layernorm": f"{_PREDICTS}.hnorm",
        f"{_PREDICTS}.input_proj": f"{_PREDICTS}.eh_proj",
        f"{_PREDICTS}.final_layernorm": f"{_PREDICTS}.shared_head.norm",
    },
    checkpoints=("XiaomiMiMo/MiMo-7B-Base", "XiaomiMiMo/MiMo-7B-SFT", "XiaomiMiMo/MiMo-7B-RL"),
)
