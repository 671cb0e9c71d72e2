"""What decoders' configs share."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import field, frozen, make_class

from inferno.configs import (
    FULL,
    SLIDING,
    DecoderConfig,
    RopeConfig,
    WindowedConfig,
    check_experts,
    read_config,
)
from inferno.errors import CheckpointError

FIELDS: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "max_position_embeddings": 256,
}


@frozen(kw_only=True)
class Alternating(WindowedConfig):
    head_dim: int = 24

    def slides(self, layer: int) -> bool:
        return layer % 2 == 0


def test_what_is_left_out_follows_from_the_rest() -> None:
    config = DecoderConfig.from_json(
        {**FIELDS, "num_key_value_heads": None, "rope_theta": 5e5, "of_another": "family"}
    )
    assert (config.num_key_value_heads, config.head_dim, config.rope.rope_theta) == (8, 8, 5e5)
    need = config.attention_spec(0)
    assert (need.num_heads, need.num_kv_heads, need.head_dim, need.scale) == (8, 8, 8, 8**-0.5)
    assert config.cache_specs() == [need] * 4


def test_a_family_has_defaults_of_its_own_and_the_file_wins() -> None:
    assert Alternating.from_json(FIELDS).attention_spec(0).head_dim == 24
    assert Alternating.from_json({**FIELDS, "head_dim": 12}).attention_spec(0).head_dim == 12


def test_a_tied_head_may_be_stored_and_is_not_read() -> None:
    tied, untied = (
        DecoderConfig.from_json({**FIELDS, "tie_word_embeddings": tie}) for tie in (True, False)
    )
    assert (tied.unused_tensors, untied.unused_tensors) == (("lm_head.weight",), ())


@pytest.mark.parametrize(
    ("given", "windows"),
    [
        ({}, [None] * 4),
        ({"sliding_window": 32}, [32, None, 32, None]),
        (
            {"sliding_window": 32, "layer_types": [FULL, FULL, SLIDING, FULL]},
            [None, None, 32, None],
        ),
        ({"sliding_window": None, "layer_types": [SLIDING] * 4}, [None] * 4),
    ],
)
def test_windows(given: dict[str, Any], windows: list[int | None]) -> None:
    config = Alternating.from_json({**FIELDS, **given})
    specs = [config.attention_spec(layer) for layer in range(config.num_hidden_layers)]
    assert [spec.sliding_window for spec in specs] == windows
    assert specs == config.cache_specs()


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
        ({"layer_types": FULL}, "layer_types"),
        ({"intermediate_size": 0}, "intermediate_size"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"vocab_size": 10**12}, "vocab_size"),
        ({"max_position_embeddings": 10**18}, "max_position_embeddings"),
        ({"head_dim": 15}, "rotary dimension is 15 of head_dim 15"),
        ({"partial_rotary_factor": 0.01}, "rotary dimension is 0 of head_dim 24"),
    ],
)
def test_a_bad_field_is_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Alternating.from_json({**FIELDS, **given})


@pytest.mark.parametrize(
    ("rope", "named"),
    [
        ([1], "rope_scaling"),
        ({"full_attention": None}, "rope_scaling"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_theta": 1.0, "rope_type": "yarn"}, "rope_theta"),
        ({"rope_type": "linear", "factor": 0}, "factor"),
        ({"rope_type": "linear", "factor": float("inf")}, "factor"),
        ({"rope_type": "yarn", "beta_fast": 0}, "beta_fast"),
        ({"rope_type": "yarn", "beta_slow": -1}, "beta_slow"),
        (
            {"rope_type": "yarn", "original_max_position_embeddings": -4},
            "original_max_position_embeddings",
        ),
        (
            {"rope_type": "longrope", "original_max_position_embeddings": 1},
            "original_max_position_embeddings",
        ),
        (
            {"rope_type": "llama3", "low_freq_factor": 4.0, "high_freq_factor": 4.0},
            "high_freq_factor",
        ),
        ({"partial_rotary_factor": -1.0}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        (
            {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 3},
            "long_factor has 3 elements",
        ),
        (
            {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 3 + [0.0]},
            "long_factor",
        ),
    ],
)
def test_rotations_that_cannot_be_computed_are_refused(rope: Any, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        DecoderConfig.from_json({**FIELDS, "rope_parameters": rope})


def test_rotations_that_can_be_computed_are_not() -> None:
    longrope = {"rope_type": "longrope", "short_factor": [1] * 4, "long_factor": [2.5] * 4}
    assert (
        DecoderConfig.from_json({**FIELDS, "rope_parameters": longrope}).rope.long_factor
        == (2.5,) * 4
    )
    assert (
        DecoderConfig.from_json(
            {**FIELDS, "partial_rotary_factor": 0.25}
        ).rope.partial_rotary_factor
        == 0.25
    )


def test_a_rotary_base_of_null_is_none_and_a_key_called_rope_is_not_read() -> None:
    assert RopeConfig.from_json({"rope_theta": None}, theta=5e5).rope_theta == 5e5
    assert DecoderConfig.from_json({**FIELDS, "rope": {"rope_theta": 7.0}}).rope == RopeConfig()


@pytest.mark.parametrize(
    "name", ["num_experts", "num_local_experts", "n_routed_experts", "num_nextn_predict_layers"]
)
@pytest.mark.parametrize("number", [10**9, -(10**9)])
def test_what_is_listed_one_by_one_is_bounded(name: str, number: int) -> None:
    listing = make_class("Listing", {name: field(type=int)})
    assert read_config(listing, {name: 10_000}) == listing(10_000)
    with pytest.raises(CheckpointError, match=f"{name} is {number}"):
        read_config(listing, {name: number})


def test_heads_that_do_not_divide_the_hidden_size_must_say_how_wide_they_are() -> None:
    with pytest.raises(CheckpointError, match="num_attention_heads 7"):
        DecoderConfig.from_json({**FIELDS, "num_attention_heads": 7})
    assert (
        DecoderConfig.from_json({**FIELDS, "num_attention_heads": 7, "head_dim": 16}).head_dim == 16
    )


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        ((0, 1), "num_experts"),
        ((4, 0), "num_experts_per_tok"),
        ((4, 5), "5 of 4 experts"),
        ((8, 2, 3, 1), "n_group 3"),
        ((8, 2, 2, 3), "topk_group 3"),
        ((8, 3, 4, 1), "3 of 8 experts"),
    ],
)
def test_experts_that_cannot_be_picked_are_refused(numbers: tuple[int, ...], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        check_experts(*numbers)


def test_experts_that_can_be_picked_are_not() -> None:
    check_experts(8, 4, 4, 2)
    check_experts(1, 1)
