"""Models with recurrent states from their folder to their tokens: `LLM`, the engine's process, the
prefix cache and the plan."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from inferno import LLM, AsyncLLM, SamplingParams
from inferno.plan import Options, Plan, resolve
from inferno.testing import transformers_model
from inferno.testing.alike import alike

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
}
MAMBA: dict[str, Any] = {
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "expand": 2,
    "head_dim": 16,
    "hidden_size": 64,
    "n_groups": 2,
    "num_heads": 8,
    "num_hidden_layers": 2,
    "state_size": 32,
    "vocab_size": 160,
}
GRANITE: dict[str, Any] = {
    **SIZES,
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "layer_types": ["mamba", "attention", "mamba"],
    "mamba_d_head": 16,
    "mamba_d_state": 32,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 8,
    "num_experts_per_tok": 0,
    "num_hidden_layers": 3,
    "num_local_experts": 0,
    "position_embedding_type": "nope",
    "shared_intermediate_size": 64,
    "tie_word_embeddings": True,
}
QWEN: dict[str, Any] = {
    **SIZES,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "full_attention_interval": 2,
    "head_dim": 32,
    "linear_key_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 64,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "shared_expert_intermediate_size": 32,
}
FAMILIES = {"granite": GRANITE, "mamba2": MAMBA, "qwen3-next": QWEN}

SHORT, LONG = [5, 6, 7], [(7 * i + 3) % 160 for i in range(150)]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
OPTIONS: dict[str, Any] = {"dtype": "float32", "device": "cpu", "max_num_seqs": 4}


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A checkpoint of random weights, and transformers' model of them."""
    config, path = FAMILIES[request.param], tmp_path_factory.mktemp("toy")
    reference: Any = transformers_model(config)
    reference.save_pretrained(path)
    (path / "config.json").write_text(json.dumps(config))
    return path, reference


def assert_greedy(reference: Any, prompt: list[int], token_ids: tuple[int, ...]) -> None:
    """Each token is transformers' best after the tokens before it, up to rounding: the order of
    sums, which follows the number of threads, decides between equals."""
    assert len(token_ids) == GREEDY.max_tokens
    with torch.inference_mode():
        logits_LV = reference(torch.tensor([[*prompt, *token_ids]])).logits[0].float()
    logits_NV = logits_LV[len(prompt) - 1 : -1]
    chosen_N = logits_NV.gather(-1, torch.tensor(token_ids)[:, None])[:, 0]
    lost_N = logits_NV.amax(-1) - chosen_N
    assert lost_N.max() <= 1e-3 * logits_NV.std(), lost_N


def test_a_folder_gives_the_reference_s_tokens_and_again_from_a_snapshot(made: Any) -> None:
    path, reference = made
    llm = LLM(str(path), **OPTIONS)
    first = llm.generate([SHORT, LONG], GREEDY)
    for prompt, answer in zip((SHORT, LONG), first, strict=True):
        assert_greedy(reference, prompt, answer.outputs[0].token_ids)
    assert [answer.num_cached_tokens for answer in first] == [0, 0]
    [again] = llm.generate(LONG, GREEDY)
    assert again.num_cached_tokens >= 128
    assert_greedy(reference, LONG, again.outputs[0].token_ids)


def test_a_step_is_recorded_and_trying_to_leaves_the_states_alone(made: Any) -> None:
    """The first decode step is tried before it is computed: a state that advanced then would change
    every later token."""
    pytest.importorskip("inferno_cpu._native", reason="the native kernels are not compiled here")
    path, _ = made
    llm = LLM(str(path), **{**OPTIONS, "dtype": "bfloat16", "cache_policy": "none"})
    runner: Any = llm._engine._runner  # type: ignore[attr-defined]
    tried = llm.generate([SHORT, LONG], GREEDY)
    assert {count for count, _ in runner.replays.shapes} >= {2}
    runner.replays = None
    computed = llm.generate([SHORT, LONG], GREEDY)
    assert [a.outputs[0].token_ids for a in tried] == [a.outputs[0].token_ids for a in computed]


@pytest.mark.slow
@alike
def test_the_engine_process_gives_the_same_tokens(made: Any) -> None:
    path, reference = made

    async def body() -> None:
        async with AsyncLLM(str(path), **OPTIONS) as llm:
            answers = await asyncio.gather(*(llm.generate(p, GREEDY) for p in (SHORT, LONG)))
        for prompt, answer in zip((SHORT, LONG), answers, strict=True):
            assert_greedy(reference, prompt, answer.outputs[0].token_ids)

    asyncio.run(asyncio.wait_for(body(), 120))


# --- the plan of published sizes ------------------------------------------------------------------

MAMBA_2_7B = {
    **MAMBA,
    "head_dim": 64,
    "hidden_size": 2560,
    "n_groups": 1,
    "num_heads": 80,
    "num_hidden_layers": 64,
    "state_size": 128,
    "tie_word_embeddings": True,
    "vocab_size": 50288,
}
GRANITE_MICRO = {
    **GRANITE,
    "hidden_size": 2048,
    "layer_types": ["attention" if layer in (5, 15, 25, 35) else "mamba" for layer in range(40)],
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_heads": 64,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "shared_intermediate_size": 8192,
    "vocab_size": 100352,
}
"""Granite-4.0-H-Micro."""


def planned(config: dict[str, Any], path: Path, **options: Any) -> Plan:
    """The plan of a checkpoint with headers and nothing behind them."""
    fields = {k: v for k, v in config.items() if k not in ("model_type", "architectures")}
    auto: Any = transformers
    with torch.device("meta"):
        model = auto.AutoModelForCausalLM.from_config(
            auto.AutoConfig.for_model(config["model_type"], **fields)
        )
    header, end = {}, 0
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight":
            begin, end = end, end + 2 * tensor.numel()
            header[name] = {
                "dtype": "BF16",
                "shape": list(tensor.shape),
                "data_offsets": [begin, end],
            }
    text = json.dumps(header).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(file.tell() + end)
    (path / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    return resolve(str(path), Options(device="cpu", dtype="bfloat16", **options))


def test_states_alone_bound_the_number_of_requests_and_not_their_length(tmp_path: Path) -> None:
    plan = planned(MAMBA_2_7B, tmp_path, memory="9GiB", max_num_seqs=8)
    full, states = plan.groups
    each = 64 * (3 * (5120 + 2 * 128) * 2 + 80 * 64 * 128 * 4)
    assert (full.layers, full.unit_bytes) == ((), 0)
    assert (states.kind, states.unit_bytes, states.num_slots) == ("state", each, 9)
    assert plan.kv_bytes == states.nbytes == (9 + states.num_snapshots) * each
    assert plan.kv_bytes_per_token == 0 and plan.max_model_len == 262_144
    assert plan.kv_tokens == 8 * 262_144, "a longer context takes no more memory"


def test_states_and_attention_share_the_memory(tmp_path: Path) -> None:
    plan = planned(GRANITE_MICRO, tmp_path, memory="12GiB", max_num_seqs=8)
    full, states = plan.groups
    assert full.layers == (5, 15, 25, 35) and len(states.layers) == 36
    assert states.unit_bytes == 36 * (3 * (4096 + 2 * 128) * 2 + 64 * 64 * 128 * 4)
    assert plan.kv_bytes_per_token == 4 * 2 * 8 * 64 * 2
    assert plan.kv_bytes == full.nbytes + states.nbytes
    assert sum(item.nbytes for item in plan.memory) <= plan.memory_limit
    weights = next(item.nbytes for item in plan.memory if item.name == "weights")
    assert 6.0e9 < weights < 6.8e9, "3.2 billion parameters"
