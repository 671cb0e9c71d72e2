"""What `inferno explain` says of ranks."""

from __future__ import annotations

import json
import math
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from click.testing import CliRunner

from inferno.cli import cli
from inferno.cli.render import explained
from inferno.cli.shares import rank_rows
from inferno.plan import Options, Plan, resolve
from inferno.plan.rank_use import ExpertUse, WholeUse

pytest.importorskip("inferno_demo")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return resolve("demo", Options(device="cpu", tp=2, max_model_len=256))


def test_a_plan_says_what_each_rank_has_and_what_they_exchange(plan: Plan) -> None:
    text = explained(plan)
    assert re.search(r"ranks +2, started by processes; sizes below are of one", text)
    assert re.search(r"each has +50% of the weights, \d+ query heads over \d+", text)
    assert re.search(r"exchange +9 sums in a step, .* received per token", text)
    assert "Memory of a rank, of " in text


def test_a_plan_says_which_stage_has_which_layers_and_what_is_passed_on() -> None:
    options: dict[str, Any] = {"device": "cpu", "max_model_len": 256, "dtype": "bfloat16"}
    text = explained(resolve("demo", Options(pp=2, **options)))
    assert re.search(r"stage 1 +embedding, layers 0-1 on rank 1: .* of weights, .* of cache", text)
    assert re.search(r"stage 2 +layers 2-3, output head on rank 0: ", text)
    assert re.search(r"pipeline +2 steps in flight, .*; 512 B per token from stage to stage", text)
    assert "exchange" not in text, "no rank sums"
    both = explained(resolve("demo", Options(pp=2, tp=2, **options)))
    assert re.search(r"stage 1 +embedding, layers 0-1 on ranks 2-3: ", both)
    assert re.search(r"exchange +9 sums in a step, .* by each, in all stages", both)


def test_a_plan_of_one_process_says_nothing_of_ranks() -> None:
    plan = resolve("demo", Options(device="cpu", max_model_len=256))
    assert not [*rank_rows(plan, "")] and "Memory of a rank" not in explained(plan)


def test_what_is_whole_is_named_with_the_reason_and_cores_as_ranges(plan: Plan) -> None:
    assert plan.ranks is not None
    shard = evolve(plan.ranks.shard, attention=False, unit=32)
    whole = WholeUse("model.layers.*.self_attn.q_proj", "9 heads", 1024)
    cores = (0, 1, 2, 8), (4,)
    ranks = evolve(plan.ranks, shard=shard, whole=(whole,), cores=cores)
    rows = [(label, text) for label, text, _ in rank_rows(evolve(plan, ranks=ranks), "inferno")]
    assert ("whole", "model.layers.*.self_attn.q_proj, 1.0 KiB on every rank: 9 heads") in rows
    assert ("cores", "rank 0: 0-2 8; rank 1: 4") in rows
    assert any("all heads; inner widths in multiples of 32" in text for _, text in rows)


def test_experts_that_are_dealt_out_are_counted(plan: Plan) -> None:
    assert plan.ranks is not None
    even = ExpertUse("model.layers.*.mlp.experts", (64, 64), 3 << 20)
    uneven = ExpertUse("model.mtp.*.experts", (2, 3), 1 << 20)
    ranks = evolve(plan.ranks, experts=(even, uneven))
    rows = [
        text for label, text, _ in rank_rows(evolve(plan, ranks=ranks), "") if label == "experts"
    ]
    assert rows == [
        "model.layers.*.mlp.experts: each rank has 64 of 128, 3.0 MiB, whole",
        "model.mtp.*.experts: each rank has 2 or 3 of 5, 1.0 MiB, whole",
    ]


# --- a model that fits no laptop ------------------------------------------------------------------

V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "attention_bias": False,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
"""config.json of DeepSeek-V3."""


def v3_tensors() -> dict[str, tuple[str, tuple[int, ...]]]:
    """The type and shape of every tensor of DeepSeek-V3, those of its MTP layer included."""
    stored: dict[str, tuple[str, tuple[int, ...]]] = {}
    hidden, vocab = 7168, 129280

    def fp8(name: str, rows: int, columns: int) -> None:
        stored[f"{name}.weight"] = "F8_E4M3", (rows, columns)
        stored[f"{name}.weight_scale_inv"] = "F32", (-(-rows // 128), -(-columns // 128))

    def mlp(path: str, inner: int) -> None:
        fp8(f"{path}.gate_proj", inner, hidden)
        fp8(f"{path}.up_proj", inner, hidden)
        fp8(f"{path}.down_proj", hidden, inner)

    def plain(name: str, *shape: int) -> None:
        stored[f"{name}.weight"] = "BF16", shape

    plain("model.embed_tokens", vocab, hidden)
    plain("model.norm", hidden)
    plain("lm_head", vocab, hidden)
    for i in range(62):
        layer, attention = f"model.layers.{i}", f"model.layers.{i}.self_attn"
        plain(f"{layer}.input_layernorm", hidden)
        plain(f"{layer}.post_attention_layernorm", hidden)
        fp8(f"{attention}.q_a_proj", 1536, hidden)
        plain(f"{attention}.q_a_layernorm", 1536)
        fp8(f"{attention}.q_b_proj", 128 * (128 + 64), 1536)
        fp8(f"{attention}.kv_a_proj_with_mqa", 512 + 64, hidden)
        plain(f"{attention}.kv_a_layernorm", 512)
        fp8(f"{attention}.kv_b_proj", 128 * (128 + 128), 512)
        fp8(f"{attention}.o_proj", hidden, 128 * 128)
        if i < 3:
            mlp(f"{layer}.mlp", 18432)
            continue
        plain(f"{layer}.mlp.gate", 256, hidden)
        stored[f"{layer}.mlp.gate.e_score_correction_bias"] = "F32", (256,)
        mlp(f"{layer}.mlp.shared_experts", 2048)
        for expert in range(256):
            mlp(f"{layer}.mlp.experts.{expert}", 2048)
    plain("model.layers.61.embed_tokens", vocab, hidden)
    plain("model.layers.61.enorm", hidden)
    plain("model.layers.61.hnorm", hidden)
    plain("model.layers.61.eh_proj", hidden, 2 * hidden)
    plain("model.layers.61.shared_head.norm", hidden)
    plain("model.layers.61.shared_head.head", vocab, hidden)
    return stored


def write_headers(folder: Path) -> int:
    """Write a checkpoint whose file has a header and a hole. Returns its size in bytes."""
    sizes = {"BF16": 2, "F32": 4, "F8_E4M3": 1}
    header, end = dict[str, Any](), 0
    for name, (dtype, shape) in v3_tensors().items():
        begin, end = end, end + sizes[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    (folder / "config.json").write_text(json.dumps(V3))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return end


@pytest.mark.slow
def test_ranks_of_a_671b_model_are_explained_from_its_headers(tmp_path: Path) -> None:
    pytest.importorskip("inferno_deepseek")
    pytest.importorskip("inferno_fp8")
    assert write_headers(tmp_path) > 688e9
    options = "--tp 8 --ep --device cpu --memory 960GiB --max-model-len 4096 --dtype bfloat16"
    result = CliRunner().invoke(cli, ["explain", str(tmp_path), *options.split()])
    assert result.exit_code == 0, result.output
    rows = [" ".join(line.split()) for line in result.output.splitlines()]
    text = "\n".join(rows)
    assert "Memory of a rank, of 120.0 GiB" in rows
    # 58 layers of 32 experts of three matrices, a byte and 4 / 128^2 for each element
    assert 58 * 32 * 3 * 7168 * 2048 * (1 + 4 / 128**2) == pytest.approx(76.1 * 2**30, rel=1e-3)
    experts = "experts model.layers.*.mlp.experts: each rank has 32 of 256, 76.1 GiB, whole"
    assert experts in text
    assert re.search(r"^weights 79\.3 GiB", text, re.M)
    assert re.search(r"^ranks 0-7 .* each: 79\.3 GiB of weights", text, re.M)
    assert re.search(r"^each has 13% of the weights, 16 query heads over 1", text, re.M)
    whole = "gate q_a_proj kv_a_proj_with_mqa".split()
    [row] = [row for row in rows if row.startswith("whole ")]
    assert all(name in row for name in whole) and "on every rank: every rank computes them" in row
    assert "copied the cache, whole on every rank: all heads share one latent" in rows
    assert "KV cache" in text and "68.6 KiB per token" in text, "of 61 layers, 576 in bfloat16"
    # of 7 others: the embedding's sum and two of each layer, and their logits in float32
    received = 7 * (123 * 2 * 7168 + 4 * 129280 / 8)
    assert received == pytest.approx(12.2 * 2**20, rel=5e-3)
    assert re.search(r"^exchange 123 sums in a step, 12\.2 MiB received per token", text, re.M)
