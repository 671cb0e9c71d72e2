"""The GGUF dialects of Mistral and Mixtral, which are Llama's, and of Ministral 3. Imports no
torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from inferno.contracts import Dialect

_EXPERTS = "model.layers.{n}.block_sparse_moe"


def _mistral(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A file with experts is Mixtral."""
    if not fields.get("num_local_experts"):
        return dict(fields)
    named = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    return {**fields, **named}


MISTRAL = Dialect(
    architecture="llama",
    fields={"num_experts": None, "num_local_experts": "expert_count"},
    modules={
        "blk.{n}.ffn_gate_inp": f"{_EXPERTS}.gate",
        "blk.{n}.ffn_gate_exps": f"{_EXPERTS}.experts.{{e}}.w1",
        "blk.{n}.ffn_up_exps": f"{_EXPERTS}.experts.{{e}}.w3",
        "blk.{n}.ffn_down_exps": f"{_EXPERTS}.experts.{{e}}.w2",
    },
    rotary_pairs={
        "blk.{n}.attn_q": "attention.head_count",
        "blk.{n}.attn_k": "attention.head_count_kv",
    },
    constants={"model_type": "mistral", "sliding_window": None},  # dropped by llama.cpp's converter
    config=_mistral,
    # These files cannot be told from Llama's; Llama's plugin, if installed, reads both.
    priority=-10,
)
MIXTRAL = attrs.evolve(MISTRAL, priority=-20)


def _ministral3(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A file that does not scale queries is Mistral Small 3: llama.cpp has one name for both."""
    config = dict(fields)
    beta, mscale = config.pop("query_beta", None), config.pop("yarn_log_multiplier", None)
    rope = {"rope_type": "default", **config.pop("rope_scaling", {})}
    if mscale is not None:  # beside an `mscale` of 1, as llama.cpp computes it
        rope |= {"mscale": 1.0, "mscale_all_dim": mscale}
    config["rope_parameters"] = {**rope, "rope_theta": config["rope_theta"]}
    if not beta:
        return {**config, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    config["rope_parameters"]["llama_4_scaling_beta"] = beta
    return config


def _scales(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = config["rope_parameters"]
    fields = {"query_beta": rope["llama_4_scaling_beta"]}
    mscale = rope.get("mscale_all_dim")
    return fields if mscale is None else {**fields, "yarn_log_multiplier": mscale}


MINISTRAL3 = attrs.evolve(
    MISTRAL,
    architecture="mistral3",
    constants={"model_type": "ministral3", "sliding_window": None},
    fields={
        "query_beta": "attention.temperature_scale",
        "yarn_log_multiplier": "rope.scaling.yarn_log_multiplier",
    },
    modules={},
    config=_ministral3,
    inverse=_scales,
    priority=0,
)
