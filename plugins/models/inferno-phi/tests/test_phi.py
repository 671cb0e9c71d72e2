from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from inferno.errors import CheckpointError
from inferno.testing import (
    ArchitectureTests,
    Catalog,
    Toy,
    generate,
    gguf_dialect,
    load_toy,
    plan_of,
    ragged_prompts,
    write_gguf,
)
from inferno_phi.config import Phi3Config, PhiConfig

PHI: dict[str, Any] = {
    "architectures": ["PhiForCausalLM"],
    "model_type": "phi",
    "vocab_size": 160,
    "hidden_size": 64,
    # four times hidden_size, as in all of them: llama.cpp's converter takes that for granted
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu_new",
    "partial_rotary_factor": 0.4,
    "tie_word_embeddings": False,
}
PHI_3: dict[str, Any] = {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "original_max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "pad_token_id": None,
}


def longrope(pairs: int, kind: str = "longrope") -> dict[str, Any]:
    short = [1.0 + 0.05 * i for i in range(pairs)]
    return {"type": kind, "short_factor": short, "long_factor": [3.0 * f for f in short]}


class TestPhi2(ArchitectureTests):
    """Phi-2: attention and MLP side by side, 0.4 of each head rotated, a bias on everything, the
    head included."""

    config = PHI

    def test_a_file_of_the_first_checkpoints_gives_the_same_tokens(
        self, toy: Toy, checkpoint: Path, catalog: Catalog, prompts: list[list[int]], tmp_path: Path
    ) -> None:
        """GGUF files made before transformers knew Phi-2 have q, k and v in one matrix."""
        if (dialect := gguf_dialect(catalog, "PhiForCausalLM")) is None:
            pytest.skip("no plugin reads GGUF files")
        tensors = load_file(checkpoint / "model.safetensors")
        fused = {"blk.{n}.attn_qkv"}
        write_gguf(tmp_path / "toy.gguf", dialect, self.config, tensors, "F16", fused=fused)
        fused_toy = load_toy(tmp_path / "toy.gguf", catalog)
        for ours, theirs in zip(
            generate(fused_toy, prompts, 8), generate(toy, prompts, 8), strict=True
        ):
            assert ours.token_ids == theirs.token_ids
            torch.testing.assert_close(ours.logits_NV, theirs.logits_NV, rtol=1e-3, atol=1e-3)


class TestPhi15(ArchitectureTests):
    """Phi-1 and 1.5: half of each head rotated, as where config.json does not say; with grouped
    queries and normed heads, which the architecture has and no published checkpoint."""

    in_gguf = False  # llama.cpp's phi2 has no norms of heads
    config = {
        **{name: value for name, value in PHI.items() if name != "partial_rotary_factor"},
        "num_key_value_heads": 2,
        "qk_layernorm": True,
    }


class TestPhi3Mini4k(ArchitectureTests):
    """Phi-3-mini-4k: a sliding window, shorter than the longest prompt."""

    config = {**PHI_3, "sliding_window": 12}


class TestPhi3Mini128kServedShort(ArchitectureTests):
    """Phi-3-mini-128k and 3.5-mini, served no longer than their first context: the short factors,
    with the factor on the attention that belongs to the whole context."""

    config = {**PHI_3, "max_position_embeddings": 2048, "rope_scaling": longrope(8)}


class LongPromptsTests(ArchitectureTests):
    """Beyond the original context from the first token on: transformers changes a sequence's
    factors when it gets there."""

    @pytest.fixture(scope="class")
    @classmethod
    def prompts(cls, toy: Toy) -> list[list[int]]:
        return ragged_prompts(toy.plan.vocab_size, (33, 40, 48, 49, 70))


class TestPhi35Mini(LongPromptsTests):
    """Phi-3.5-mini and Phi-3-medium-128k, served longer than their first context: the long
    factors."""

    config = {
        **PHI_3,
        "original_max_position_embeddings": 32,
        "num_key_value_heads": 2,
        "rope_scaling": longrope(8),
    }

    def test_the_plan_says_that_short_prompts_take_the_long_factors(self, checkpoint: Path) -> None:
        assert "--max-model-len 32 uses the short" in "".join(plan_of(checkpoint).notes)
        assert "long factors" not in "".join(plan_of(checkpoint, max_model_len=32).notes)


class TestPhi4(ArchitectureTests):
    """Phi-4: no window, no scaling, few key/value heads."""

    config = {**PHI_3, "num_key_value_heads": 1, "rope_theta": 250_000.0, "attention_bias": False}


class TestPhi4Mini(LongPromptsTests):
    """Phi-4-mini: a tied head, three quarters of each head rotated, longrope."""

    config = {
        **PHI_3,
        "num_key_value_heads": 2,
        "original_max_position_embeddings": 32,
        "partial_rotary_factor": 0.75,
        "rope_scaling": longrope(6),
        "sliding_window": 262_144,
        "tie_word_embeddings": True,
    }


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
    ],
)
def test_a_bad_config_of_phi_is_an_error_that_names_the_field(
    damage: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        PhiConfig.from_json({**PHI, **damage})


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"lm_head_bias": True}, "lm_head_bias"),
        ({"sliding_window": -1}, "sliding_window"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8}}, "long_factor"),
        ({"rope_scaling": longrope(8), "partial_rotary_factor": 0.75}, "short_factor"),
        ({"rope_scaling": "longrope"}, "rope_scaling"),
    ],
)
def test_a_bad_config_of_phi_3_is_an_error_that_names_the_field(
    damage: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        Phi3Config.from_json({**PHI_3, **damage})


def test_the_first_spelling_of_longrope_means_the_same() -> None:
    """Phi-3-mini-128k was published with "su", which transformers 5 no longer reads."""
    su, later = (
        Phi3Config.from_json({**PHI_3, "rope_scaling": longrope(8, kind)})
        for kind in ("su", "longrope")
    )
    assert su == later


def test_the_original_context_stands_beside_the_scaling() -> None:
    """As published; transformers writes it into the scaling too, and goes by the one beside it."""
    scaling = {**longrope(8), "original_max_position_embeddings": 8}
    assert (
        Phi3Config.from_json(
            {**PHI_3, "rope_scaling": scaling}
        ).rope.original_max_position_embeddings
        == 256
    )
    silent = {**PHI_3, "original_max_position_embeddings": None, "rope_scaling": longrope(8)}
    assert Phi3Config.from_json(silent).rope.original_max_position_embeddings == 4096
