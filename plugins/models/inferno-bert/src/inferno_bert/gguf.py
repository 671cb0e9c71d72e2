"""The GGUF dialects of encoders. Imports no torch.

llama.cpp's converter writes XLM-R and RoBERTa as BERT: their positions without the rows before the
first token's. Heads for labels are in files of the same names, which `cls.output` tells apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from inferno.configs import FULL, SLIDING
from inferno.contracts import Dialect, Recast, RowSplit

_NORM = {"layer_norm_eps": "attention.layer_norm_epsilon"}
_HEAD = {"cls": "score.dense", "cls.output": "score.out_proj"}
_HEAD_MARK = "cls.output.weight"
_SHARED = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
}


_LAYER = "encoder.layer.{n}"
_ATTENTION = f"{_LAYER}.attention"

BERT = Dialect(
    architecture="bert",
    constants={"model_type": "bert", "hidden_act": "gelu"},
    fields=_NORM,
    modules={
        **_SHARED,
        "position_embd": "embeddings.position_embeddings",
        "blk.{n}.attn_q": f"{_ATTENTION}.self.query",
        "blk.{n}.attn_k": f"{_ATTENTION}.self.key",
        "blk.{n}.attn_v": f"{_ATTENTION}.self.value",
        "blk.{n}.attn_output": f"{_ATTENTION}.output.dense",
        "blk.{n}.attn_output_norm": f"{_ATTENTION}.output.LayerNorm",
        "blk.{n}.ffn_up": f"{_LAYER}.intermediate.dense",
        "blk.{n}.ffn_down": f"{_LAYER}.output.dense",
        "blk.{n}.layer_output_norm": f"{_LAYER}.output.LayerNorm",
    },
    rows={
        "blk.{n}.attn_qkv": RowSplit(
            {f"{_ATTENTION}.self.{name}": 1 for name in ("query", "key", "value")}
        )
    },
)
BERT_HEAD = attrs.evolve(
    BERT,
    modules={**BERT.modules, **_HEAD},
    mark=_HEAD_MARK,
)

_QKV = tuple(f"layers.{{n}}.self_attn.{name}_proj" for name in ("q", "k", "v"))


def _unfused(config: Mapping[str, Any]) -> Recast | None:
    """Return the model with queries, keys and values apart, as files' rows are read."""
    if not config.get("fused_qkv"):
        return None
    return Recast(
        config={**config, "fused_qkv": False},
        splits={"layers.{n}.self_attn.qkv_proj": _QKV},
    )


NOMIC = Dialect(
    architecture="nomic-bert",
    constants={"model_type": "nomic_bert", "hidden_act": "silu"},
    fields=_NORM,
    modules={
        **_SHARED,
        "blk.{n}.attn_output": "layers.{n}.self_attn.o_proj",
        "blk.{n}.attn_output_norm": "layers.{n}.post_attention_layernorm",
        "blk.{n}.ffn_up": "layers.{n}.mlp.up_proj",
        "blk.{n}.ffn_gate": "layers.{n}.mlp.gate_proj",
        "blk.{n}.ffn_down": "layers.{n}.mlp.down_proj",
        "blk.{n}.layer_output_norm": "layers.{n}.post_mlp_layernorm",
    },
    rows={"blk.{n}.attn_qkv": RowSplit(dict.fromkeys(_QKV, 1))},
    recast=_unfused,
)


def _modern(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Name the rotary bases of both kinds of layers, and the pattern of layers with a window. Files
    without a window have full attention in every layer."""
    config = {name: value for name, value in fields.items() if name != "window_pattern"}
    full = config.pop("rope_theta")
    config["global_rope_theta"] = full
    config.setdefault("local_rope_theta", full)
    pattern = fields.get("window_pattern", 3) if "local_attention" in fields else 1
    if isinstance(pattern, list):  # one flag for each layer
        config["layer_types"] = [SLIDING if slides else FULL for slides in pattern]
    else:
        config["global_attn_every_n_layers"] = pattern
    return config


def _window_pattern(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return which layers have a window: a number for the usual order, else one flag for each."""
    layers, every = config["num_hidden_layers"], config["global_attn_every_n_layers"]
    types = [SLIDING if i % every else FULL for i in range(layers)]
    kinds = list(config.get("layer_types") or types)
    return {"window_pattern": every if kinds == types else [kind == SLIDING for kind in kinds]}


MODERN = Dialect(
    architecture="modern-bert",
    constants={"model_type": "modernbert"},
    fields={
        "norm_eps": "attention.layer_norm_epsilon",
        "local_attention": "attention.sliding_window",
        "window_pattern": "attention.sliding_window_pattern",
        "local_rope_theta": "rope.freq_base_swa",
        "hidden_activation": "hidden_activation",
    },
    modules={
        "token_embd": "embeddings.tok_embeddings",
        "token_embd_norm": "embeddings.norm",
        "blk.{n}.attn_norm": "layers.{n}.attn_norm",
        "blk.{n}.attn_qkv": "layers.{n}.attn.Wqkv",
        "blk.{n}.attn_output": "layers.{n}.attn.Wo",
        "blk.{n}.ffn_norm": "layers.{n}.mlp_norm",
        "blk.{n}.ffn_up": "layers.{n}.mlp.Wi",
        "blk.{n}.ffn_down": "layers.{n}.mlp.Wo",
        "output_norm": "final_norm",
    },
    present={
        "norm_bias": "output_norm.bias",
        "attention_bias": "blk.{n}.attn_output.bias",
        "mlp_bias": "blk.{n}.ffn_up.bias",
    },
    config=_modern,
    inverse=_window_pattern,
)


def _modern_head(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Files that do not say what the head reads are of gte-reranker-modernbert-base, as in
    llama.cpp."""
    return {"classifier_pooling": "mean", **_modern(fields)}


MODERN_HEAD = attrs.evolve(
    MODERN,
    fields={**MODERN.fields, "classifier_pooling": "classifier.pooling_type"},
    values={"classifier_pooling": {1: "mean", 2: "cls"}},
    modules={**MODERN.modules, **_HEAD, "cls.norm": "score.norm"},
    present={**MODERN.present, "classifier_bias": "cls.bias"},
    config=_modern_head,
    mark=_HEAD_MARK,
)
