"""Llamas that are published under other classes. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from inferno.contracts import Checkpoint, Fused, Spelling, with_computed_head, with_head
from inferno.errors import CheckpointError, UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

_LAYER = "model.layers.{n}"
_ATTENTION, _MLP = f"{_LAYER}.self_attn", f"{_LAYER}.mlp"
_QUERIES = "query_heads_of_group"
"""Field that only spellings have: query heads for each key/value head."""
_TRAINED_VOCABULARY = 125_696
"""Tokens of Baichuan 2, which normalizes the head's rows; Baichuan has 64 000."""


def _per_group(fields: Mapping[str, Any]) -> dict[str, Any]:
    """InternLM2 stores queries, key and value of one key/value head after the other."""
    heads, groups = fields.get("num_attention_heads"), fields.get("num_key_value_heads")
    groups = heads if groups is None else groups
    if type(heads) is not int or type(groups) is not int or groups < 1 or heads % groups:
        raise CheckpointError(
            f"config.json: num_attention_heads is {heads!r}, num_key_value_heads {groups!r}",
            "The first must be a multiple of the second.",
        )
    return {**fields, "num_key_value_heads": groups, _QUERIES: heads // groups}


def _baichuan(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The 13B models, whose configs lack the longest context, have no rotary positions."""
    if fields.get("max_position_embeddings") is None or fields.get("hidden_size") == 5120:
        raise UnsupportedError(
            "BaichuanForCausalLM of 13B cannot run here: its positions are a bias on the scores "
            "(ALiBi)",
            "Baichuan-7B and Baichuan2-7B run.",
        )
    return {**fields, "num_key_value_heads": fields.get("num_attention_heads")}


def _telechat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Positions turn more slowly if contexts are longer than those that the base was made for; up
    to the trained length, by one factor."""
    trained, base = fields.get("training_seqlen"), fields.get("base_seqlen")
    heads, width = fields.get("num_attention_heads"), fields.get("hidden_size")
    numbers = (trained, base, heads, width)
    if any(type(number) is not int or number < 1 for number in numbers):
        raise CheckpointError(
            f"config.json: training_seqlen is {trained!r}, base_seqlen {base!r}, n_head {heads!r}, "
            f"hidden_size {width!r}",
            "Each must be a whole number of at least 1: they say how positions turn.",
        )
    assert isinstance(trained, int) and isinstance(base, int)
    assert isinstance(heads, int) and isinstance(width, int)
    factor = max(2 ** math.ceil(math.log2(trained / base) + 1) - 1, 1)
    turned = width // heads
    return {
        **fields,
        "rope_theta": 10_000.0 * factor ** (turned / max(turned - 2, 1)),
        "max_position_embeddings": trained,
        "num_key_value_heads": fields.get("num_key_value_heads") or heads,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "output_bias": True,
        "down_bias": True,
    }


def _paddle(fields: Mapping[str, Any]) -> dict[str, Any]:
    """One field is for the biases of attention and MLP."""
    biased = fields.get("use_bias") or False
    return {**fields, "attention_bias": biased, "mlp_bias": biased}


def _qkv(groups: str = "", queries: str = "num_attention_heads") -> Fused:
    keys: int | str = 1 if groups else "num_key_value_heads"
    shares = {f"{_ATTENTION}.q_proj": queries}
    return Fused({**shares, **{f"{_ATTENTION}.{kv}_proj": keys for kv in "kv"}}, groups)


PLAIN = ("XverseForCausalLM", "AquilaForCausalLM", "AquilaModel")
"""Classes whose fields and tensors have Llama's names."""
BIASED = Spelling(
    name="InternLMForCausalLM",
    aliases=("PanguEmbeddedForCausalLM",),
    fields={"bias": "attention_bias"},
    checkpoints=(
        "internlm/internlm-chat-7b",
        "internlm/internlm-chat-20b",
        "FreedomIntelligence/openPangu-Embedded-7B-V1.1",
    ),
)
INTERNLM2 = Spelling(
    name="InternLM2ForCausalLM",
    model_types=("internlm2",),
    fields={"bias": "attention_bias"},
    config=_per_group,
    modules={
        "model.tok_embeddings": "model.embed_tokens",
        f"{_LAYER}.attention_norm": f"{_LAYER}.input_layernorm",
        f"{_LAYER}.ffn_norm": f"{_LAYER}.post_attention_layernorm",
        f"{_LAYER}.attention.wo": f"{_ATTENTION}.o_proj",
        f"{_LAYER}.feed_forward.w1": f"{_MLP}.gate_proj",
        f"{_LAYER}.feed_forward.w3": f"{_MLP}.up_proj",
        f"{_LAYER}.feed_forward.w2": f"{_MLP}.down_proj",
        "output": "lm_head",
    },
    fused={f"{_LAYER}.attention.wqkv": _qkv("num_key_value_heads", _QUERIES)},
    unused=(r".*\.inv_freq",),
    checkpoints=(
        "internlm/internlm2-chat-7b",
        "internlm/internlm2-chat-20b",
        "internlm/internlm2_5-7b-chat",
        "internlm/internlm2_5-7b-chat-1m",
    ),
)
EXAONE = Spelling(
    name="ExaoneForCausalLM",
    model_types=("exaone",),
    fields={
        "num_layers": "num_hidden_layers",
        "layer_norm_epsilon": "rms_norm_eps",
        "activation_function": "hidden_act",
    },
    modules={
        "transformer.wte": "model.embed_tokens",
        "transformer.h.{n}.ln_1": f"{_LAYER}.input_layernorm",
        "transformer.h.{n}.ln_2": f"{_LAYER}.post_attention_layernorm",
        **{
            f"transformer.h.{{n}}.attn.attention.{qkv}_proj": f"{_ATTENTION}.{qkv}_proj"
            for qkv in "qkv"
        },
        "transformer.h.{n}.attn.attention.out_proj": f"{_ATTENTION}.o_proj",
        "transformer.h.{n}.mlp.c_fc_0": f"{_MLP}.gate_proj",
        "transformer.h.{n}.mlp.c_fc_1": f"{_MLP}.up_proj",
        "transformer.h.{n}.mlp.c_proj": f"{_MLP}.down_proj",
        "transformer.ln_f": "model.norm",
    },
    unused=(r".*\.inv_freq",),
    checkpoints=(
        "LGAI-EXAONE/EXAONE-3.0-7.8B-Instruct",
        "LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct",
        "LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct",
        "LGAI-EXAONE/EXAONE-3.5-32B-Instruct",
        "LGAI-EXAONE/EXAONE-Deep-7.8B",
        "LGAI-EXAONE/EXAONE-Deep-32B",
    ),
)
BAICHUAN = Spelling(
    name="BaichuanForCausalLM",
    model_types=("baichuan",),
    config=_baichuan,
    fused={f"{_ATTENTION}.W_pack": _qkv()},
    unused=(r".*\.inv_freq",),
    checkpoints=(
        "baichuan-inc/Baichuan-7B",
        "baichuan-inc/Baichuan2-7B-Base",
        "baichuan-inc/Baichuan2-7B-Chat",
    ),
)
TELECHAT = Spelling(
    name="TeleChat2ForCausalLM",
    aliases=("TeleChatForCausalLM",),
    model_types=("telechat",),
    fields={
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "ffn_hidden_size": "intermediate_size",
        "layer_norm_epsilon": "rms_norm_eps",
    },
    fixed={
        "embed_layernorm": False,
        "logn": False,
        "apply_residual_connection_post_layernorm": False,
    },
    config=_telechat,
    modules={
        "transformer.word_embeddings": "model.embed_tokens",
        **{
            f"transformer.h.{{n}}.{norm}": f"{_LAYER}.{norm}"
            for norm in ("input_layernorm", "post_attention_layernorm")
        },
        "transformer.h.{n}.self_attention.query": f"{_ATTENTION}.q_proj",
        "transformer.h.{n}.self_attention.dense": f"{_ATTENTION}.o_proj",
        **{
            f"transformer.h.{{n}}.mlp.{part}_proj": f"{_MLP}.{part}_proj"
            for part in ("gate", "up", "down")
        },
        "transformer.ln_f": "model.norm",
    },
    fused={
        "transformer.h.{n}.self_attention.key_value": Fused(
            {f"{_ATTENTION}.k_proj": 1, f"{_ATTENTION}.v_proj": 1}, "num_key_value_heads"
        )
    },
    unused=(r".*\.inv_freq",),
    checkpoints=(
        "Tele-AI/TeleChat2-3B",
        "Tele-AI/TeleChat2-7B",
        "Tele-AI/TeleChat2-35B",
        "Tele-AI/TeleChat2-115B",
    ),
)
PADDLE = Spelling(
    name="PaddleOCRTextModel",
    model_types=("paddleocr_vl_text",),
    config=_paddle,
    checkpoints=("PaddlePaddle/PaddleOCR-VL",),
)
"""The text part of PaddleOCR-VL: ERNIE 4.5's fields, but Llama's order of rotary pairs."""


def with_normal_head(checkpoint: Checkpoint) -> Checkpoint:
    """View a Baichuan 2, whose own code divides each of the head's rows by its length. Raises
    CheckpointError if it stores no plain head."""
    view = with_head(checkpoint)
    if (view.config.get("vocab_size") or 0) < _TRAINED_VOCABULARY:
        return view
    return with_computed_head(view, _normal_rows, "whose rows Baichuan 2 normalizes")


def _normal_rows(head_VD: Tensor) -> Tensor:
    from torch.nn.functional import normalize

    return normalize(head_VD, dim=-1)
