"""Models that Granite's code computes under other classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from torch import Tensor

from inferno.errors import CheckpointError, InfernoError, UnsupportedError
from inferno.testing import TINY_TEXT, SpellingTests
from inferno_granite_hybrid.gguf import MINICPM as MINICPM_FILES
from inferno_granite_hybrid.spellings import MINICPM, TELEFLM

SMALL: dict[str, Any] = {
    **{name: value for name, value in TINY_TEXT.items() if name != "head_dim"},
    "rms_norm_eps": 1e-5,
}
GRANITE: dict[str, Any] = {
    **SMALL,
    "architectures": ["GraniteForCausalLM"],
    "model_type": "granite",
    "attention_multiplier": 0.25,
}


class _SameNamesTests(SpellingTests):
    def stored(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors


class TestMiniCPM(_SameNamesTests):
    """MiniCPM-2B: a tied head that its config does not mention."""

    twin = {
        **GRANITE,
        "tie_word_embeddings": True,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 1.4 / 2**0.5,
        "logits_scaling": 4.0,
    }
    config: ClassVar[Mapping[str, Any]] = {
        **SMALL,
        "architectures": ["MiniCPMForCausalLM"],
        "model_type": "minicpm",
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 16,
    }


class TestMiniCPM4(_SameNamesTests):
    """MiniCPM4-8B: an untied head, and the positions of longrope."""

    rope: Mapping[str, Any] = {
        "rope_type": "longrope",
        "short_factor": [1.0 + n / 8 for n in range(8)],
        "long_factor": [1.0 + n / 4 for n in range(8)],
        "original_max_position_embeddings": 256,
    }
    twin = {**TestMiniCPM.twin, "tie_word_embeddings": False, "rope_scaling": rope}
    config = {**TestMiniCPM.config, "tie_word_embeddings": False, "rope_scaling": rope}


class TestTeleFLM(_SameNamesTests):
    """FLM-2-52B-Instruct: factors on embeddings and logits."""

    twin = {
        **GRANITE,
        "tie_word_embeddings": False,
        "embedding_multiplier": 2.0,
        "logits_scaling": 4.0,
    }
    config = {
        **SMALL,
        "architectures": ["TeleFLMForCausalLM"],
        "model_type": "TeleFLM",
        "tie_word_embeddings": False,
        "use_mup": True,
        "input_mult": 2.0,
        "output_mult": 2.0,
        "mup_scale_factor": 8.0,
    }


@pytest.mark.parametrize(
    ("fields", "error", "why"),
    [
        ({"num_experts": 8}, UnsupportedError, "experts"),
        ({"sparse_config": {"topk": 64}}, UnsupportedError, "sparse attention"),
        ({"dim_model_base": 0}, CheckpointError, "dim_model_base"),
        ({"scale_depth": "deep"}, CheckpointError, "scale_depth"),
    ],
)
def test_what_it_does_not_compute_is_refused(
    fields: Mapping[str, Any], error: type[InfernoError], why: str
) -> None:
    with pytest.raises(error) as refused:
        MINICPM.read({**TestMiniCPM.config, **fields})
    assert why in f"{refused.value.cause} {refused.value.remedy}"


def test_factors_are_read_only_where_they_are_used() -> None:
    read = TELEFLM.read({**TestTeleFLM.config, "use_mup": False})
    assert "logits_scaling" not in read and read["attention_multiplier"] == 0.25


def test_gguf_files_without_minicpm_s_factors_have_those_of_minicpm_2b() -> None:
    assert MINICPM_FILES.config is not None
    sizes = {"hidden_size": 2304, "num_hidden_layers": 40, "num_attention_heads": 36}
    assert MINICPM_FILES.config({**sizes, "embedding_multiplier": 10.0}) == {
        **sizes,
        "embedding_multiplier": 10.0,
        "residual_multiplier": 1.4 / math.sqrt(40),
        "logits_scaling": 9.0,
        "attention_multiplier": 0.125,
    }
