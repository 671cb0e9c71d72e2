"""The GGUF dialect of MiniMax-M2. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Dialect

_MOE = "model.layers.{n}.block_sparse_moe"

MINIMAX_M2 = Dialect(
    architecture="minimax-m2",
    constants={"model_type": "minimax_m2"},
    fields={
        "intermediate_size": "expert_feed_forward_length",
        "moe_intermediate_size": None,
        "num_experts": None,
        "num_local_experts": "expert_count",
    },
    modules={
        "blk.{n}.ffn_gate_inp": f"{_MOE}.gate",
        "blk.{n}.exp_probs_b.bias": f"{_MOE}.gate.e_score_correction_bias",
        "blk.{n}.ffn_gate_exps": f"{_MOE}.experts.{{e}}.w1",
        "blk.{n}.ffn_up_exps": f"{_MOE}.experts.{{e}}.w3",
        "blk.{n}.ffn_down_exps": f"{_MOE}.experts.{{e}}.w2",
    },
)
