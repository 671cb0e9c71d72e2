"""Models that Qwen2's code computes under other classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from inferno.errors import CheckpointError, InfernoError, UnsupportedError
from inferno.testing import TINY_TEXT, MTPTests, SpellingTests, joined, renamed
from inferno_qwen2.spellings import QWEN

QWEN2: dict[str, Any] = {
    **TINY_TEXT,
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


class TestQwen(SpellingTests):
    """Qwen-7B-Chat: one matrix for queries, keys and values, a width for gate and up together, and
    positions that depend on the prompt's length beyond the trained one."""

    twin = {**QWEN2, "num_key_value_heads": 4, "max_position_embeddings": 200}
    config: ClassVar[Mapping[str, Any]] = {
        **{name: QWEN2[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers")},
        "num_attention_heads": 4,
        "architectures": ["QWenLMHeadModel"],
        "model_type": "qwen",
        "intermediate_size": 192,
        "kv_channels": 16,
        "layer_norm_epsilon": 1e-6,
        "rotary_emb_base": 10000,
        "rotary_pct": 1.0,
        "seq_length": 200,
        "max_position_embeddings": 800,
        "use_dynamic_ntk": True,
        "use_logn_attn": True,
        "no_bias": True,
        "tie_word_embeddings": False,
    }

    def stored(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        names = {
            "model.embed_tokens": "transformer.wte",
            "model.layers": "transformer.h",
            "self_attn.o_proj": "attn.c_proj",
            "self_attn": "attn",
            "mlp.up_proj": "mlp.w1",
            "mlp.gate_proj": "mlp.w2",
            "mlp.down_proj": "mlp.c_proj",
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
            "model.norm": "transformer.ln_f",
        }
        return renamed(joined(tensors, ("q_proj", "k_proj", "v_proj"), "c_attn"), names)


class TestMiMo(SpellingTests):
    """MiMo-7B-RL: layers that predict further tokens are stored beside a Qwen2."""

    twin = QWEN2
    config = {
        **QWEN2,
        "architectures": ["MiMoForCausalLM"],
        "model_type": "mimo",
        "attention_bias": True,
        "num_nextn_predict_layers": 1,
    }

    def stored(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**tensors, "model.mtp_layers.0.input_proj.weight": torch.ones(64, 128)}


@pytest.mark.slow
class TestMiMoMTP(MTPTests):
    """The layer of MiMo that predicts further tokens: the hidden state comes before the
    embedding."""

    twin = {**QWEN2, "num_nextn_predict_layers": 1}
    config = TestMiMo.config

    @classmethod
    def prefixes(cls) -> tuple[str, ...]:
        return ("model.mtp_layers.0.",)

    @classmethod
    def stored(cls, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        own = f"model.layers.{cls.config['num_hidden_layers']}."
        copies = (f"{own}embed_tokens.weight", f"{own}shared_head.head.weight")  # it stores none
        names = {
            own: cls.prefixes()[0],
            "enorm": "token_layernorm",
            "hnorm": "hidden_layernorm",
            "eh_proj": "input_proj",
            "shared_head.norm": "final_layernorm",
        }
        kept = {name: tensor for name, tensor in tensors.items() if name not in copies}
        kept[f"{own}eh_proj.weight"] = kept[f"{own}eh_proj.weight"].roll(QWEN2["hidden_size"], 1)
        return renamed(kept, names)


@pytest.mark.parametrize(
    ("fields", "error", "why"),
    [
        ({"visual": {}}, UnsupportedError, "image encoder"),
        ({"intermediate_size": 7}, CheckpointError, "must be even"),
    ],
)
def test_what_it_does_not_compute_is_refused(
    fields: Mapping[str, Any], error: type[InfernoError], why: str
) -> None:
    with pytest.raises(error) as refused:
        QWEN.read({**TestQwen.config, **fields})
    assert why in f"{refused.value.cause} {refused.value.remedy}"
