"""What decoders' configs share."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import frozen

from inferno.errors import CheckpointError
from inferno.modelconfig import FULL, SLIDING, DecoderConfig, WindowedConfig, check_experts

FIELDS: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 8,
    "max_position_embeddings": 256,
}  # fmt: skip


@frozen(kw_only=True)
class Alternating(WindowedConfig):
    head_dim: int = 24

    def slides(self, layer: int) -> bool:
        return layer % 2 == 0


def test_what_is_left_out_follows_from_the_rest() -> None:
    config = DecoderConfig.from_json({**FIELDS, "num_key_value_heads": None, "rope_theta": 5e5, "of_another": "family"})
    assert (config.num_key_value_heads, config.head_dim, config.rope.rope_theta) == (8, 8, 5e5)
    need = config.attention_need(0)
    assert (need.num_heads, need.num_kv_heads, need.head_dim, need.scale) == (8, 8, 8, 8**-0.5)
    assert config.attention_needs() == [need] * 4


def test_a_family_has_defaults_of_its_own_and_the_file_wins() -> None:
    assert Alternating.from_json(FIELDS).attention_need(0).head_dim == 24
    assert Alternating.from_json({**FIELDS, "head_dim": 12}).attention_need(0).head_dim == 12


def test_a_tied_head_may_be_stored_and_is_not_read() -> None:
    tied, untied = (DecoderConfig.from_json({**FIELDS, "tie_word_embeddings": tie}) for tie in (True, False))
    assert (tied.unused_tensors, untied.unused_tensors) == (("lm_head.weight",), ())


@pytest.mark.parametrize(
    ("given", "windows"),
    [
        ({}, [None] * 4),
        ({"sliding_window": 32}, [32, None, 32, None]),
        ({"sliding_window": 32, "layer_types": [FULL, FULL, SLIDING, FULL]}, [None, None, 32, None]),
        ({"sliding_window": None, "layer_types": [SLIDING] * 4}, [None] * 4),
    ],
)
def test_windows(given: dict[str, Any], windows: list[int | None]) -> None:
    config = Alternating.from_json({**FIELDS, **given})
    assert [need.sliding_window for need in config.attention_needs()] == windows


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"vocab_size": None}, "vocab_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"head_dim": -8}, "head_dim"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "spiral"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"layer_types": [FULL]}, "layer_types"),
        ({"layer_types": [FULL, FULL, FULL, "linear_attention"]}, "linear_attention"),
    ],
)
def test_a_bad_field_is_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Alternating.from_json({**FIELDS, **given})


def test_heads_that_do_not_divide_the_hidden_size_must_say_how_wide_they_are() -> None:
    with pytest.raises(CheckpointError, match="num_attention_heads 7"):
        DecoderConfig.from_json({**FIELDS, "num_attention_heads": 7})
    assert DecoderConfig.from_json({**FIELDS, "num_attention_heads": 7, "head_dim": 16}).head_dim == 16


@pytest.mark.parametrize(
    ("numbers", "named"),
    [((0, 1), "num_experts"), ((4, 0), "num_experts_per_tok"), ((4, 5), "5 of 4 experts"), ((8, 2, 3, 1), "n_group 3"),
     ((8, 2, 2, 3), "topk_group 3"), ((8, 3, 4, 1), "3 of 8 experts")],
)  # fmt: skip
def test_experts_that_cannot_be_picked_are_refused(numbers: tuple[int, ...], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        check_experts(*numbers)


def test_experts_that_can_be_picked_are_not() -> None:
    check_experts(8, 4, 4, 2)
    check_experts(1, 1)
