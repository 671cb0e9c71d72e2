from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from inferno import LLM, SamplingParams
from inferno.testing import ArchitectureTests

TINY: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # more than hidden_size / heads, as in Qwen3-0.6B
    "max_position_embeddings": 256,
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


class TestQwen3(ArchitectureTests):
    config = TINY


class TestTied(ArchitectureTests):
    config = {**TINY, "tie_word_embeddings": True}


class TestYarn(ArchitectureTests):
    """As Qwen3's model cards tell one to write it for contexts of 131 072 tokens."""

    config = {
        **TINY,
        "attention_bias": True,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    }


class TestSlidingWindow(ArchitectureTests):
    in_gguf = False  # llama.cpp's qwen3 has no windows
    config = {**TINY, "use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}


class TestReranker(ArchitectureTests):
    """Qwen3-Reranker-0.6B: a tied head, its score the probability of "yes" against "no" behind the
    prompt."""

    config = {
        **TINY,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "use_sliding_window": False,
        "rope_scaling": None,
    }

    def test_the_score_of_yes_against_no(
        self, checkpoint: Path, reference: nn.Module, prompts: list[list[int]]
    ) -> None:
        """Exact also where neither is among the most likely tokens: bias chooses the token,
        logprobs are from before it."""
        with LLM(
            str(checkpoint), dtype="float32", max_model_len=160, max_num_seqs=8, device="cpu"
        ) as llm:
            for prompt in prompts:
                with torch.inference_mode():
                    logits_V = reference(torch.tensor([prompt])).logits[0, -1]
                ids = logits_V.argsort().tolist()
                for yes, no in ((ids[0], ids[1]), (ids[1], ids[0]), (ids[0], ids[-1])):
                    forced = [
                        SamplingParams(
                            temperature=0, max_tokens=1, logprobs=0, logit_bias={token: 1000.0}
                        )
                        for token in (yes, no)
                    ]
                    for_yes, for_no = (
                        answer.outputs[0] for answer in llm.generate([prompt, prompt], forced)
                    )
                    assert (for_yes.token_ids, for_no.token_ids) == ((yes,), (no,))
                    assert (
                        for_yes.cumulative_logprob is not None
                        and for_no.cumulative_logprob is not None
                    )
                    score = 1 / (
                        1 + math.exp(for_no.cumulative_logprob - for_yes.cumulative_logprob)
                    )
                    assert score == pytest.approx(
                        float(logits_V[[yes, no]].softmax(-1)[0]), rel=1e-4
                    )
