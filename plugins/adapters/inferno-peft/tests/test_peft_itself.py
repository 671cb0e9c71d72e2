"""Adapters that PEFT writes are answered as PEFT answers with them, where it is installed. Passed
with PEFT 0.21.2, transformers 5.23.0 and torch 2.13.0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inferno import LLM, SamplingParams
from inferno.testing import TOY_MOE_SIZES, TOY_SIZES, reference_logits, transformers_model

peft: Any = pytest.importorskip("peft", reason="PEFT is not installed")

LLAMA = {**TOY_SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
TIED = {**LLAMA, "tie_word_embeddings": True}
MOE = {**TOY_MOE_SIZES, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANKS = {"q_proj": 2, r"layers\.1\.mlp\.down_proj": 6, "^model.layers.0.self_attn.k_proj": 3}
ALPHAS = {"v_proj": 3, r".*layers\.0\.mlp.*": 5, "_proj": 77}
EXPERTS = {
    "target_modules": ["q_proj"],
    "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
}
PROMPTS = [[5 * i % 150 + 10 for i in range(length)] for length in (9, 3)]
BOTH, MERGED, UNMERGED = {"merged", "unmerged"}, {"merged"}, {"unmerged"}


def random_adapter(model: nn.Module, folder: Path, **config: Any) -> dict[str, list[Tensor]]:
    """Write a random adapter beside a model. Returns the log-probabilities after each prompt of the
    model with it, unmerged and merged."""
    adapted: Any = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, **config)).eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            if "lora_" in name:  # in place, as some share memory
                value.copy_(torch.randn(value.shape, generator=draw) * 0.25)
    adapted.save_pretrained(folder)
    unmerged = last_logprobs(adapted)
    return {"unmerged": unmerged, "merged": last_logprobs(adapted.merge_and_unload())}


def last_logprobs(model: nn.Module) -> list[Tensor]:
    return [reference_logits(model, prompt)[-1].log_softmax(-1) for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("config", "lora", "equal"),
    [
        (LLAMA, {"target_modules": "all-linear"}, BOTH),
        (LLAMA, {"target_modules": LINEAR, "use_rslora": True}, BOTH),
        (LLAMA, {"target_modules": LINEAR, "rank_pattern": RANKS, "alpha_pattern": ALPHAS}, BOTH),
        (LLAMA, {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}, BOTH),
        (TIED, {"target_modules": ["q_proj", "embed_tokens"]}, MERGED),
        # Merged, PEFT 0.21 adds the pair twice to the one matrix.
        (TIED, {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}, UNMERGED),
        (MOE, EXPERTS, BOTH),
        (MOE, {**EXPERTS, "use_rslora": True, "rank_pattern": {"experts.down_proj": 2}}, BOTH),
        (MOE, {"target_modules": ["q_proj", "gate_proj", "up_proj", "down_proj"]}, BOTH),
    ],
    ids=[
        *("all linear", "rslora", "patterns", "embedding and head", "tied", "tied pairs"),
        *("experts", "experts with patterns", "experts' linear layers"),
    ],
)
def test_answers_are_those_of_peft(
    tmp_path: Path, config: dict[str, Any], lora: dict[str, Any], equal: set[str]
) -> None:
    pytest.importorskip(f"inferno_{config['model_type']}")
    model, adapter = transformers_model(config), tmp_path / "adapter"
    saved: Any = model
    saved.save_pretrained(tmp_path / "model")
    base = last_logprobs(model)
    theirs = random_adapter(model, adapter, **lora)
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=20, ignore_eos=True)
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 4}
    with LLM(str(tmp_path / "model"), loras={"it": str(adapter)}, **options) as llm:
        outputs = llm.generate(PROMPTS, params, lora="it")
    for i, output in enumerate(outputs):
        assert output.outputs[0].logprobs is not None
        [by_id] = output.outputs[0].logprobs
        ids = torch.tensor([*by_id])
        ours = torch.tensor([each.logprob for each in by_id.values()])
        for name in equal:
            torch.testing.assert_close(ours, theirs[name][i][ids], rtol=0, atol=1e-4)
        assert (ours - base[i][ids]).abs().max() > 0.1
