"""The GGUF dialect of Llama. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from inferno.contracts import Dialect
from inferno.errors import UnsupportedError

_ALIBI_LAYERS = 40
_EXPERTS = "model.layers.{n}.block_sparse_moe"


def _llama(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A file with experts is Mixtral: llama.cpp has one name for both."""
    if not fields.get("num_experts"):
        return dict(fields)
    named = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    return {**fields, **named}


def _baichuan(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse the 13B models, whose positions are a bias on the scores. Files do not say so:
    llama.cpp knows these models by their number of layers."""
    if fields["num_hidden_layers"] == _ALIBI_LAYERS:
        raise UnsupportedError(
            "Baichuan of 13B cannot run here: its positions are a bias on the scores (ALiBi)",
            "Baichuan-7B and Baichuan2-7B run.",
        )
    return dict(fields)


_PLAIN = Dialect(
    constants={"model_type": "llama"},
    present={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_down.bias"},
)
_IN_PAIRS = attrs.evolve(
    _PLAIN,
    rotary_pairs={
        "blk.{n}.attn_q": "attention.head_count",
        "blk.{n}.attn_k": "attention.head_count_kv",
    },
)
LLAMA = attrs.evolve(
    _IN_PAIRS,
    architecture="llama",
    modules={
        "blk.{n}.ffn_gate_inp": f"{_EXPERTS}.gate",
        "blk.{n}.ffn_gate_exps": f"{_EXPERTS}.experts.{{e}}.w1",
        "blk.{n}.ffn_up_exps": f"{_EXPERTS}.experts.{{e}}.w3",
        "blk.{n}.ffn_down_exps": f"{_EXPERTS}.experts.{{e}}.w2",
    },
    config=_llama,
    variants=(attrs.evolve(_IN_PAIRS, architecture="xverse"),),
)
INTERNLM2 = attrs.evolve(_IN_PAIRS, architecture="internlm2")
BAICHUAN = attrs.evolve(_IN_PAIRS, architecture="baichuan", config=_baichuan)
EXAONE = attrs.evolve(_PLAIN, architecture="exaone")
PANGU = attrs.evolve(_PLAIN, architecture="pangu-embedded")
"""llama.cpp has a name for each of these classes. Their files are Llama's, some with another order
of rotary pairs."""
