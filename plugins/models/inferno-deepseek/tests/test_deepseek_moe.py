"""DeepSeekMoE and Ling, beside the text model of DeepSeek-OCR 2, which is the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.models.deepseek_ocr2 import configuration_deepseek_ocr2 as configs
from transformers.models.deepseek_ocr2 import modeling_deepseek_ocr2 as models

from inferno.errors import CheckpointError, UnsupportedError
from inferno.testing import (
    ArchitectureTests,
    SpellingTests,
    TextPartTests,
    joined,
    like_trained,
    randomize,
    renamed,
)
from inferno_deepseek.first_config import DeepseekMoEConfig
from inferno_deepseek.spellings import LING

MOE: dict[str, Any] = {
    "architectures": ["DeepseekForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "moe_intermediate_size": 32,
    "moe_layer_freq": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 4,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10_000,
    "scoring_func": "softmax",
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 160,
}
"""Fields of deepseek-moe-16b-chat's config.json, but for its type, which transformers lacks."""
_SAME = (
    "vocab_size hidden_size intermediate_size moe_intermediate_size num_hidden_layers "
    "num_attention_heads num_key_value_heads n_routed_experts n_shared_experts "
    "num_experts_per_tok max_position_embeddings rms_norm_eps bos_token_id eos_token_id"
).split()


class Reference(nn.Module):
    """transformers' text model of DeepSeek-OCR 2, with a head."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        dense = config["first_k_dense_replace"]
        kinds = ["dense"] * dense + ["sparse"] * (config["num_hidden_layers"] - dense)
        fields = {name: config[name] for name in _SAME}
        read: Any = configs.DeepseekOcr2TextConfig(
            **fields, mlp_layer_types=kinds, routed_scaling_factor=1.0, topk_method="greedy"
        )
        self.model: Any = models.DeepseekOcr2TextModel(read)
        self.lm_head = nn.Linear(read.hidden_size, read.vocab_size, bias=False)
        if config["norm_topk_prob"]:
            for module in self.modules():
                if isinstance(module, models.DeepseekOcr2TextTopkRouter):
                    module.register_forward_hook(_normalized)
        randomize(self)
        self.eval()

    def forward(self, ids: Tensor) -> Any:
        return SimpleNamespace(logits=self.lm_head(self.model(ids, use_cache=False)[0]))

    def get_input_embeddings(self) -> nn.Module:
        embedding: nn.Module = self.model.embed_tokens
        return embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def save_pretrained(self, folder: Path) -> None:
        tensors = {name: tensor.detach() for name, tensor in self.named_parameters()}
        save_file(tensors, folder / "model.safetensors")


def _normalized(module: nn.Module, args: Any, found: Any) -> Any:
    logits, weights, indices = found
    return logits, weights / weights.sum(-1, keepdim=True), indices


class TestDeepseekMoE(ArchitectureTests):
    """deepseek-moe-16b-chat: a layer without experts, then 3 of 8 and a shared one."""

    rerouted = True
    config = MOE

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls) -> nn.Module:
        return Reference(cls.config)


class TestGrouped(TestDeepseekMoE):
    """Of no checkpoint: grouped queries, no layer without experts, one shared expert."""

    config = {**MOE, "first_k_dense_replace": 0, "n_shared_experts": 1, "num_key_value_heads": 2}


class TestLing(SpellingTests):
    """Ling-lite: weights of the picked experts sum to 1, one matrix for queries, keys and values,
    and a head whose columns are normalized."""

    twin: ClassVar[Mapping[str, Any]] = {
        **MOE,
        "first_k_dense_replace": 0,
        "norm_topk_prob": True,
        "num_key_value_heads": 2,
    }
    config: ClassVar[Mapping[str, Any]] = {
        **{k: v for k, v in twin.items() if not k.startswith("n_")},
        "architectures": ["BailingMoeForCausalLM"],
        "model_type": "bailing_moe",
        "norm_head": True,
        "num_experts": 8,
        "num_shared_experts": 2,
        "use_bias": False,
        "use_qkv_bias": False,
    }

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls) -> nn.Module:
        model = Reference(cls.twin)
        like_trained(model)
        return model

    def stored(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        names = {
            "embed_tokens": "word_embeddings",
            "self_attn.o_proj": "attention.dense",
            "self_attn": "attention",
        }
        qkv = ("q_proj", "k_proj", "v_proj")
        return renamed(joined(tensors, qkv, "query_key_value"), names)

    def expected(self, reference: nn.Module) -> None:
        with torch.no_grad():
            head = reference.get_parameter("lm_head.weight")
            head.copy_(head / (head.norm(dim=0, keepdim=True) + 1e-7))


class TestDeepseekOcr2(TextPartTests):
    """DeepSeek-OCR 2, whose images are off."""

    computed_by = "DeepseekForCausalLM"
    config = {
        "model_type": "deepseek_ocr2",
        "text_config": {
            **{name: MOE[name] for name in _SAME},
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "routed_scaling_factor": 1.0,
            "topk_method": "greedy",
        },
        "vision_config": {
            "sam_config": {
                "hidden_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 64,
                "patch_size": 16,
                "output_channels": 16,
                "mlp_dim": 32,
                "global_attn_indexes": [0],
                "downsample_channels": [16, 32],
            },
            "encoder_config": {
                "vocab_size": 8,
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
            },
        },
        "image_token_id": 150,
    }


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"n_shared_experts": 0}, "n_shared_experts"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"scoring_func": "sigmoid"}, "scoring_func"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        DeepseekMoEConfig.from_json({**MOE, **damage})


@pytest.mark.parametrize("name", ["use_bias", "use_qk_norm"])
def test_what_it_does_not_compute_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match=name):
        LING.read({**TestLing.config, name: True})
