from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from inferno.configs import RopeConfig
from inferno.contracts import AttentionSpec
from inferno.errors import CheckpointError
from inferno.nn import Rope, Unloaded
from inferno.testing import (
    ArchitectureTests,
    MTPTests,
    Toy,
    checkpoint_path,
    count_tensors,
    generate,
    gguf_dialect,
    load_toy,
    ragged_prompts,
    torch_only,
    write_gguf,
)
from inferno_deepseek.config import DeepseekV2Config, DeepseekV3Config
from inferno_deepseek.gguf import DEEPSEEK
from inferno_deepseek.model import DeepseekV3ForCausalLM

V2_LITE: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "scoring_func": "softmax",
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "max_position_embeddings": 256,
    "rope_theta": 10_000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 64,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
    },
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
V2: dict[str, Any] = {
    **V2_LITE,
    "q_lora_rank": 32,
    "n_routed_experts": 12,
    "num_experts_per_tok": 6,
    "topk_method": "group_limited_greedy",
    "n_group": 4,
    "topk_group": 3,
    "routed_scaling_factor": 3.0,
}
V3: dict[str, Any] = {
    **V2,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "n_shared_experts": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "num_nextn_predict_layers": 1,
    "rope_scaling": {**V2["rope_scaling"], "mscale": 1.0, "mscale_all_dim": 1.0},
}


def gguf_fields(mscale: float | None) -> dict[str, Any]:
    """What llama.cpp's converter derives: widths of heads, a tenth of `mscale_all_dim`."""
    multiplier = None if mscale is None else mscale / 10
    return {"key_length": 40, "value_length": 24, "yarn_log_multiplier": multiplier}


class TestV2Lite(ArchitectureTests):
    """DeepSeek-V2-Lite: queries without a latent, experts picked greedily."""

    rerouted = True
    config = V2_LITE
    gguf_fields = gguf_fields(0.707)


class TestV2(ArchitectureTests):
    """DeepSeek-V2 and V2.5: queries through a latent, experts picked from the best groups."""

    rerouted = True
    config = V2
    gguf_fields = gguf_fields(0.707)


class TestV3(ArchitectureTests):
    """DeepSeek-V3 and R1: sigmoid scores with a correction, groups worth their two best experts."""

    rerouted = True
    config = V3
    gguf_fields = gguf_fields(1.0)
    gguf_unsaid = frozenset({"num_nextn_predict_layers"})


class TestKimiK2(ArchitectureTests):
    """Kimi K2: V3 with one group of experts and another stretch of the rotary embedding."""

    rerouted = True
    config = {
        **V3,
        "n_routed_experts": 10,
        "n_group": 1,
        "topk_group": 1,
        "num_nextn_predict_layers": 0,
        "rope_theta": 50_000.0,
        "rope_scaling": {**V3["rope_scaling"], "factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0},
    }
    gguf_fields = gguf_fields(1.0)


class TestMoonlight(ArchitectureTests):
    """Moonlight-16B-A3B: V3 without a latent of queries, its context not stretched, another
    epsilon."""

    rerouted = True
    config = {
        **TestKimiK2.config,
        "q_lora_rank": None,
        "n_shared_experts": 2,
        "rope_scaling": None,
        "rms_norm_eps": 1e-5,
    }
    gguf_fields = gguf_fields(None)


class TestHalves(ArchitectureTests):
    """DeepSeek-V3 as transformers may write it: `rope_interleave` false, a tied head."""

    in_gguf = False  # llama.cpp rotates neighbouring pairs
    rerouted = True
    config = {**V3, "rope_interleave": False, "tie_word_embeddings": True}


class TestMTP(MTPTests):
    """Multi-token prediction as published with DeepSeek-V3 and R1: one layer, which continues with
    its own output."""

    config = V3


class TestThreeMTPLayers(MTPTests):
    """Three multi-token-prediction layers, one for each draft, with a tied head and without a
    latent of queries."""

    config = {
        **V3,
        "num_nextn_predict_layers": 3,
        "q_lora_rank": None,
        "tie_word_embeddings": True,
        "rope_scaling": None,
    }


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    """A V3 checkpoint's."""
    with torch.device("meta"):
        model = DeepseekV3ForCausalLM(DeepseekV3Config.from_json(V3))
    draw = torch.Generator().manual_seed(0)
    weights = {}
    for path, module in model.named_modules():
        shapes = {name: param.shape for name, param in module.named_parameters(recurse=False)}
        if isinstance(getattr(module, "weight", None), Unloaded):
            shapes["weight"] = module.weight.shape
        for name, shape in shapes.items():
            noise = torch.randn(shape, generator=draw)
            weights[f"{checkpoint_path(path)}.{name}"] = (
                1 + 0.2 * noise if len(shape) == 1 else noise * shape[-1] ** -0.5
            )
    return weights


def load(path: Path) -> Toy:
    return load_toy(path, torch_only())


def saved(path: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Path:
    path.mkdir(exist_ok=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors"
    )
    (path / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    return path


def test_absorbed_weights_compute_what_unfolding_every_key_and_value_does(
    tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    """The prompt in chunks and decode steps against the definition, in float64."""
    toy = load(saved(tmp_path / "toy", tensors, V3))
    seen: list[tuple[Tensor, Tensor]] = []
    attention = toy.model.get_submodule("model.layers.1.self_attn")
    attention.register_forward_hook(
        lambda module, given, y_TD: seen.append((given[0].clone(), y_TD.clone()))
    )
    chunked = Toy(attrs.evolve(toy.plan, max_num_batched_tokens=50), toy.model)
    generate(chunked, [list(range(70))], 20)
    x_TD, y_TD = (torch.cat(rows) for rows in zip(*seen, strict=True))
    assert len(x_TD) == 89 and len(seen) == 21
    prefix = "model.layers.1.self_attn."
    layer = {
        name.removeprefix(prefix): tensor.double()
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    torch.testing.assert_close(y_TD.double(), unfolded(x_TD.double(), layer), rtol=1e-4, atol=1e-5)


def unfolded(x_TD: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """A layer's attention over a sequence, as the paper defines it."""
    H, N, R, L = (
        V3[name]
        for name in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank")
    )

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weights[f"{name}.weight"]

    # In float32, as published code has them: the angles of far tokens depend on it.
    turns_TR = Rope(
        R, RopeConfig.from_json(V3), max_position_embeddings=256, interleaved=True
    ).inv_freq_E.float()
    turn_TE = torch.polar(
        torch.ones(()).double(), (torch.arange(len(x_TD))[:, None] * turns_TR).double()
    )

    def rotate(x_THR: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x_THR.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turn_TE[:, None]).flatten(-2)

    q_TX = norm(x_TD @ weights["q_a_proj.weight"].T, "q_a_layernorm") @ weights["q_b_proj.weight"].T
    q_THN, q_THR = q_TX.view(len(x_TD), H, N + R).split([N, R], -1)
    latent_TL, k_TR = (x_TD @ weights["kv_a_proj_with_mqa.weight"].T).split([L, R], -1)
    kv_THX = (norm(latent_TL, "kv_a_layernorm") @ weights["kv_b_proj.weight"].T).view(
        len(x_TD), H, -1
    )
    k_THC = torch.cat([kv_THX[..., :N], rotate(k_TR[:, None]).expand(-1, H, -1)], -1)
    scores_HTT = torch.einsum("thc,shc->hts", torch.cat([q_THN, rotate(q_THR)], -1), k_THC)
    scores_HTT *= (N + R) ** -0.5 * (0.1 * math.log(40) + 1) ** 2
    hidden_TT = torch.ones(len(x_TD), len(x_TD)).triu(1).bool()
    weights_HTT = scores_HTT.masked_fill(hidden_TT, -math.inf).softmax(-1)
    return (
        torch.einsum("hts,shv->thv", weights_HTT, kv_THX[..., N:]).flatten(1)
        @ weights["o_proj.weight"].T
    )


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_gguf_files_with_split_heads_give_the_same_tokens(
    kind: str, tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    """As llama.cpp converts since April 2025: `attn_k_b`, transposed, and `attn_v_b`, each a stack
    of heads. (The tests above write `attn_kv_b`, as before.)"""
    latent, nope, rotated = V3["kv_lora_rank"], V3["qk_nope_head_dim"], V3["qk_rope_head_dim"]
    widths = {
        "key_length": latent + rotated,
        "value_length": latent,
        "key_length_mla": nope + rotated,
        "value_length_mla": V3["v_head_dim"],
    }
    dialect = gguf_dialect(torch_only(), "DeepseekV3ForCausalLM")
    assert dialect is not None
    values = write_gguf(
        tmp_path / "toy.gguf",
        dialect,
        {**V3, **gguf_fields(1.0), **widths},
        tensors,
        kind,
        joined={"model.layers.{n}.self_attn.kv_b_proj": (nope, V3["v_head_dim"])},
    )
    prompts = ragged_prompts(V3["vocab_size"])
    ours, theirs = (
        generate(load(path), prompts, 16)
        for path in (tmp_path / "toy.gguf", saved(tmp_path / "twin", values, V3))
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.logits_NV, other.logits_NV, rtol=1e-4, atol=1e-4)
        assert one.token_ids == other.token_ids


def test_multi_token_prediction_layers_are_left_alone(
    tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    """Without `--speculative mtp`. The first conversions of Kimi K2 store rotary tables."""
    extra = {
        "model.layers.2.eh_proj.weight": torch.ones(9, 9),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
    }
    path = saved(tmp_path / "more", {**tensors, **extra}, V3)
    assert count_tensors(path) == len(tensors) + 2
    config = {**V3, "num_nextn_predict_layers": 0}
    path = saved(tmp_path / "none", {**tensors, **extra}, config)
    with pytest.raises(CheckpointError, match="eh_proj"):
        count_tensors(path)


def test_a_token_costs_one_latent_and_one_rotated_key() -> None:
    scale = (0.1 * math.log(40) + 1) ** 2 * 40**-0.5
    need = AttentionSpec(num_heads=4, num_kv_heads=1, head_dim=72, latent_dim=64, scale=scale)
    assert DeepseekV3Config.from_json(V3).cache_specs() == [need, need]


def fields_of_a_file(config: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Without what files do not store, or the first did not."""
    unsaid = ("qk_nope_head_dim", "v_head_dim", "scoring_func", "topk_method", "n_group")
    known = {name: value for name, value in config.items() if name not in unsaid}
    return {**known, "key_length": 40, "value_length": 24, **more}


def test_gguf_files_that_name_no_scoring_mean_softmax() -> None:
    """The first of DeepSeek-V2; heads are `attention.key_length` wide in them."""
    assert DEEPSEEK.config is not None
    old = DEEPSEEK.config(fields_of_a_file(V2, n_group=4, routed_scaling_factor=0.0))
    read = DeepseekV2Config.from_json(old)
    assert (old["scoring_func"], read.qk_nope_head_dim, read.num_groups) == ("softmax", 32, 4)
    assert (read.v_head_dim, read.routed_scaling_factor) == (24, 1.0)
    lengths = {"key_length": 72, "value_length": 64, "key_length_mla": 40, "value_length_mla": 24}
    assert DEEPSEEK.config({**fields_of_a_file(V2, n_group=4), **lengths}) == {
        **old,
        "routed_scaling_factor": 3.0,
    }


def test_gguf_files_with_sigmoid_scores_are_v3s() -> None:
    assert DEEPSEEK.config is not None
    fields = fields_of_a_file(V3, scoring_func="sigmoid", n_group=4, yarn_log_multiplier=0.1)
    read = DEEPSEEK.config(fields)
    assert read["architectures"] == ["DeepseekV3ForCausalLM"]
    assert DeepseekV3Config.from_json(read) == DeepseekV3Config.from_json(V3)


def test_gguf_files_that_scale_queries_by_position_are_refused() -> None:
    assert DEEPSEEK.config is not None
    with pytest.raises(CheckpointError, match="temperature_scale is 0.1"):
        DEEPSEEK.config(fields_of_a_file(V3, temperature_scale=0.1))


@pytest.mark.parametrize("damage", [{"topk_method": "noaux_tc"}, {"norm_topk_prob": True}])
def test_a_config_of_v2_that_would_be_computed_wrongly_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=next(iter(damage))):
        DeepseekV2Config.from_json({**V2, **damage})


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"kv_lora_rank": None}, "kv_lora_rank"),
        ({"n_routed_experts": "8"}, "n_routed_experts"),
        ({"n_shared_experts": 0}, "n_shared_experts"),
        ({"n_group": 5}, "n_group"),
        ({"topk_group": 5}, "topk_group"),
        ({"num_experts_per_tok": 10}, "num_experts_per_tok"),
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"topk_method": "greedy"}, "topk_method"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(damage: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        DeepseekV3Config.from_json({**V3, **damage})
