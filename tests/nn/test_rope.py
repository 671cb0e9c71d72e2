"""Rotary frequencies are transformers', and what depends on the context is fixed for the longest
that is served."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from inferno.configs import RopeConfig
from inferno.nn import Rope
from inferno.nn.batch import Batch

HEAD_DIM, LONGEST, ORIGINAL = 32, 4096, 512
SHORT, LONG = [1.0 + i / 8 for i in range(HEAD_DIM // 2)], [2.0 + i for i in range(HEAD_DIM // 2)]
LONGROPE: dict[str, Any] = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG}
KINDS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 8.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "yarn": {"rope_type": "yarn", "factor": 8.0},
    "yarn with mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
        "beta_fast": 24.0,
    },
    "yarn, not truncated": {"rope_type": "yarn", "factor": 32.0, "truncate": False},
    "longrope": LONGROPE,
    "longrope, its factor said": {**LONGROPE, "attention_factor": 1.25},
}


def config(kind: str) -> dict[str, Any]:
    return {"rope_theta": 10_000.0, "original_max_position_embeddings": ORIGINAL, **KINDS[kind]}


def turned(rope: Rope, position: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of one token."""
    one = torch.tensor([position])
    batch = Batch(
        token_ids_T=one,
        positions_T=one,
        slots_T=one,
        query_starts=[0, 1],
        query_starts_S1=one,
        context_lens=[position + 1],
        context_lens_S=one,
        blocks_SM=one[None],
        block_size=16,
    )
    rotation = rope(batch)
    return rotation.cos_TE, rotation.sin_TE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("served", [ORIGINAL, LONGEST])
def test_frequencies_are_those_of_transformers(kind: str, served: int) -> None:
    theirs = LlamaConfig(
        hidden_size=2 * HEAD_DIM,
        num_attention_heads=2,
        max_position_embeddings=LONGEST,
        rope_parameters=config(kind),
    )
    expected_E, factor = ROPE_INIT_FUNCTIONS[KINDS[kind]["rope_type"]](
        theirs, torch.device("cpu"), seq_len=served
    )
    rope = Rope(
        HEAD_DIM,
        RopeConfig.from_json({"rope_parameters": config(kind)}),
        max_position_embeddings=LONGEST,
    )
    rope.serve(served)
    torch.testing.assert_close(rope.inv_freq_E, expected_E)
    assert rope.attention_factor == pytest.approx(factor)


def test_longrope_takes_the_short_factors_where_no_longer_context_is_served() -> None:
    rope = Rope(
        HEAD_DIM,
        RopeConfig.from_json({"rope_parameters": config("longrope")}),
        max_position_embeddings=LONGEST,
    )
    long, _ = turned(rope, 100)
    rope.serve(ORIGINAL)
    short, _ = turned(rope, 100)  # tables filled before are not kept
    exponents_E = torch.arange(0, HEAD_DIM, 2) / HEAD_DIM
    for cos_TE, factors in ((short, SHORT), (long, LONG)):
        frequencies_E = 1 / (torch.tensor(factors) * 10_000.0**exponents_E)
        torch.testing.assert_close(
            cos_TE[0] / rope.attention_factor, (100 * frequencies_E).cos(), rtol=1e-4, atol=1e-5
        )
    assert not torch.allclose(short, long)


def test_a_distant_token_turns_as_far_whenever_the_tables_are_filled() -> None:
    scaling = RopeConfig()
    near_first, far_first = (
        Rope(HEAD_DIM, scaling, max_position_embeddings=LONGEST) for _ in range(2)
    )
    turned(near_first, 3)
    for one, other in zip(
        turned(near_first, LONGEST - 1), turned(far_first, LONGEST - 1), strict=True
    ):
        assert torch.equal(one, other)
    frequencies_E = 1 / 10_000.0 ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    torch.testing.assert_close(turned(far_first, 7)[1][0], (7 * frequencies_E).sin())


def test_tables_are_as_long_as_what_is_served() -> None:
    """A model made for a million tokens that serves a thousand has no tables of gigabytes."""
    rope = Rope(HEAD_DIM, RopeConfig(), max_position_embeddings=2**31 - 1)
    rope.serve(64)
    turned(rope, 63)
    assert rope._tables is not None and [len(table_NE) for table_NE in rope._tables] == [64, 64]
