"""Llamas that are published under other classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inferno.errors import CheckpointError, InfernoError, UnsupportedError
from inferno.testing import TINY_TEXT, SpellingTests, Toy, joined, renamed
from inferno_llama import inferno_architectures
from inferno_llama.gguf import BAICHUAN

LLAMA: dict[str, Any] = {
    **{name: value for name, value in TINY_TEXT.items() if name != "head_dim"},
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
QKV = ("q_proj", "k_proj", "v_proj")


def without(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


class _SameNamesTests(SpellingTests):
    def stored(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors


class TestXverse(_SameNamesTests):
    """XVERSE-7B-Chat: Llama's fields and names."""

    twin = LLAMA
    config = {**LLAMA, "architectures": ["XverseForCausalLM"], "model_type": "xverse"}


class TestAquila(_SameNamesTests):
    """AquilaChat2-7B, by the base class that its config names, with its head."""

    twin = LLAMA
    config = {**LLAMA, "architectures": ["AquilaModel"], "model_type": "aquila"}


class TestInternLM(_SameNamesTests):
    """InternLM-Chat-7B: biases on all of attention, by one field."""

    twin = {**LLAMA, "attention_bias": True}
    config = {
        **LLAMA,
        "architectures": ["InternLMForCausalLM"],
        "model_type": "internlm",
        "bias": True,
    }


class TestPangu(_SameNamesTests):
    """openPangu-Embedded-7B: the same field."""

    twin = TestInternLM.twin
    config = {
        **TestInternLM.config,
        "architectures": ["PanguEmbeddedForCausalLM"],
        "model_type": "PanguEmbedded",
    }


class TestInternLM2(SpellingTests):
    """InternLM2.5-7B-Chat: queries, key and value of each group in one matrix, dynamic positions
    that change nothing up to the trained length."""

    twin = {**LLAMA, "rope_theta": 1_000_000.0}
    config = {
        **twin,
        "architectures": ["InternLM2ForCausalLM"],
        "model_type": "internlm2",
        "bias": False,
        "rope_scaling": {"type": "dynamic", "factor": 2.0},
    }

    def stored(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        names = {
            "embed_tokens": "tok_embeddings",
            "self_attn.o_proj": "attention.wo",
            "self_attn": "attention",
            "mlp.gate_proj": "feed_forward.w1",
            "mlp.up_proj": "feed_forward.w3",
            "mlp.down_proj": "feed_forward.w2",
            "input_layernorm": "attention_norm",
            "post_attention_layernorm": "ffn_norm",
            "lm_head": "output",
        }
        return renamed(joined(tensors, QKV, "wqkv", groups=2), names)


class TestInternVL2(TestInternLM2):
    """InternVL2-8B, whose text part is an InternLM2: images are off."""

    config = {
        "architectures": ["InternVLChatModel"],
        "model_type": "internvl_chat",
        "llm_config": TestInternLM2.config,
        "vision_config": {"hidden_size": 32},
    }

    def stored(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        text = super().stored(tensors)
        seeing = {"vision_model.embeddings.class_embedding": torch.ones(1, 1, 32)}
        return {**{f"language_model.{name}": tensor for name, tensor in text.items()}, **seeing}

    def test_the_plan_says_what_is_not_loaded(self, toys: tuple[Toy, Toy]) -> None:
        [note] = [note for note in toys[0].plan.notes if note.startswith("text only")]
        assert "images are off" in note and "tensors are unused" in note


class TestExaone(SpellingTests):
    """EXAONE-3.5-2.4B-Instruct: a tied head, Llama 3's positions, other names throughout."""

    twin = {
        **LLAMA,
        "tie_word_embeddings": True,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    }
    config = {
        **without(twin, "num_hidden_layers", "rms_norm_eps", "hidden_act"),
        "architectures": ["ExaoneForCausalLM"],
        "model_type": "exaone",
        "num_layers": 2,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "silu",
    }

    def stored(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        names = {
            "model.embed_tokens": "transformer.wte",
            "model.layers": "transformer.h",
            "self_attn.o_proj": "attn.attention.out_proj",
            "self_attn": "attn.attention",
            "mlp.gate_proj": "mlp.c_fc_0",
            "mlp.up_proj": "mlp.c_fc_1",
            "mlp.down_proj": "mlp.c_proj",
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
            "model.norm": "transformer.ln_f",
        }
        tables = {"transformer.h.0.attn.attention.rotary.inv_freq": torch.ones(8)}
        return {**renamed(tensors, names), **tables}


class TestBaichuan(SpellingTests):
    """Baichuan-7B: queries, keys and values of all heads in one matrix."""

    twin = {**LLAMA, "num_key_value_heads": 4}
    config = {
        **without(twin, "num_key_value_heads"),
        "architectures": ["BaiChuanForCausalLM"],
        "model_type": "baichuan",
    }

    def stored(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return joined(tensors, QKV, "W_pack")


class TestBaichuan2(TestBaichuan):
    """Baichuan2-7B-Chat: the head's rows are normalized, which its vocabulary tells."""

    twin = {**TestBaichuan.twin, "vocab_size": 125_696}
    config = {
        **TestBaichuan.config,
        "architectures": ["BaichuanForCausalLM"],
        "vocab_size": 125_696,
    }

    def expected(self, reference: nn.Module) -> None:
        with torch.no_grad():
            head = reference.get_parameter("lm_head.weight")
            head.copy_(head / head.norm(dim=-1, keepdim=True))


class TestTeleChat2(SpellingTests):
    """TeleChat2-35B: keys and values of each head in one matrix, biases on what goes back to the
    hidden states."""

    twin = {**LLAMA, "attention_bias": True, "mlp_bias": True}
    config = {
        **without(LLAMA, "num_hidden_layers", "num_attention_heads", "intermediate_size"),
        "architectures": ["TeleChat2ForCausalLM"],
        "model_type": "telechat",
        "n_layer": 2,
        "n_head": 4,
        "ffn_hidden_size": 96,
        "layer_norm_epsilon": 1e-5,
        "training_seqlen": 256,
        "base_seqlen": 256,
        "apply_residual_connection_post_layernorm": False,
        "embed_layernorm": False,
    }

    def prepare(self, reference: nn.Module) -> None:
        for name, parameter in reference.named_parameters():
            if name.endswith(".bias") and not name.endswith(("o_proj.bias", "down_proj.bias")):
                parameter.data.zero_()

    def stored(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        names = {
            "model.embed_tokens": "transformer.word_embeddings",
            "model.layers": "transformer.h",
            "self_attn.o_proj": "self_attention.dense",
            "self_attn.q_proj": "self_attention.query",
            "self_attn": "self_attention",
            "model.norm": "transformer.ln_f",
        }
        zero = [name for name in tensors if name.endswith(".bias") and not tensors[name].any()]
        kept = {name: tensor for name, tensor in tensors.items() if name not in zero}
        assert len(zero) == 5 * 2, "queries, keys, values, gate and up of two layers"
        return renamed(joined(kept, ("k_proj", "v_proj"), "key_value", groups=2), names)


class TestTeleChat(TestTeleChat2):
    """TeleChat-7B as published first: trained for twice the length of its base."""

    twin = {**TestTeleChat2.twin, "rope_theta": 10_000.0 * 3 ** (16 / 14)}
    config = {
        **TestTeleChat2.config,
        "architectures": ["TelechatForCausalLM"],
        "base_seqlen": 128,
    }


def read(config: Mapping[str, Any], name: str) -> Any:
    [architecture] = [each for each in inferno_architectures() if each.is_named(name)]
    return architecture.config({**config, "architectures": [name]})


@pytest.mark.parametrize(
    ("name", "fields", "error", "why"),
    [
        ("BaichuanForCausalLM", {"max_position_embeddings": None}, UnsupportedError, "ALiBi"),
        ("InternLM2ForCausalLM", {"num_key_value_heads": 3}, CheckpointError, "must be a multiple"),
        ("TeleChat2ForCausalLM", {}, CheckpointError, "training_seqlen"),
        ("TeleChat2ForCausalLM", {"logn": True}, UnsupportedError, "logn"),
    ],
)
def test_what_it_does_not_compute_is_refused(
    name: str, fields: Mapping[str, Any], error: type[InfernoError], why: str
) -> None:
    with pytest.raises(error) as refused:
        read({**LLAMA, **fields}, name)
    assert why in f"{refused.value.cause} {refused.value.remedy}"


def test_a_gguf_file_of_baichuan_13b_is_refused_for_its_positions() -> None:
    assert BAICHUAN.config is not None
    assert BAICHUAN.config({"num_hidden_layers": 32}) == {"num_hidden_layers": 32}
    with pytest.raises(UnsupportedError, match="ALiBi"):
        BAICHUAN.config({"num_hidden_layers": 40})
