"""Models that keep a state of each sequence, beside keys and values or instead of them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hosted_families import FamilyTests, HostedTests, assert_same_tokens, family, reference_of
from torch import Tensor

from inferno.contracts import CacheTensor, StateSpec
from inferno.contracts.states import COMPUTE
from inferno.errors import UnsupportedError
from inferno.testing import like_trained, transformers_model
from inferno_transformers import inspection
from inferno_transformers.config import HostedConfig
from inferno_transformers.listed import LEAST, ListedStates, keeps
from inferno_transformers.states import Kept, packed, unpacked
from inferno_transformers.step import running


class TestJamba(HostedTests):
    """Mamba's layers, one of attention between them, experts in every other layer."""

    rerouted = True
    uncaptured = "aten.nonzero.default in JambaExperts.forward"
    config = family(
        "jamba",
        num_hidden_layers=3,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=4,
        mamba_d_state=8,
        mamba_dt_rank=4,
    )


@pytest.mark.slow
class TestOlmoHybrid(HostedTests):
    """Gated delta rules, and attention in one layer of two."""

    config = family(
        "olmo_hybrid",
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
    )


class TestRwkv(HostedTests):
    """Two modules of each layer keep states, which its code has in lists."""

    # Hidden states are not halved here, as in models of up to five layers: a model of transformers
    # that has run writes other matrices than it has read.
    config = family("rwkv", num_hidden_layers=3, context_length=160, max_position_embeddings=160)


def with_tables(model: Any) -> Any:
    """Give a model its own tables again: of random ones, MiniMax's sums grow without end."""
    for name, table in type(model)(model.config).named_buffers():
        model.get_buffer(name).copy_(table)
    return model


class TestMiniMax(FamilyTests):
    """Lightning attention: sums of keys and values that fade, by tables that checkpoints store."""

    rerouted = True
    uncaptured = "aten.nonzero.default in MiniMaxExperts.forward"
    most_of_two = 1.0  # all experts of a layer are one tensor, which each rank has whole
    # Token by token, transformers' code rounds the sums to the compute type after each one.
    trained_error = 4.0
    config = family(
        "minimax",
        head_dim=16,
        layer_types=["linear_attention", "full_attention"],
        num_local_experts=4,
        num_experts_per_tok=2,
        block_size=16,
    )

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls) -> Any:
        return with_tables(reference_of(cls.config))

    @pytest.fixture(scope="class")
    @classmethod
    def trained_model(cls, trained_config: dict[str, Any]) -> Any:
        model = with_tables(transformers_model(trained_config))
        like_trained(model)
        return model


OTHERS: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 8, "time_step_rank": 4},
    "falcon_mamba": {"state_size": 8, "time_step_rank": 4},
    "bamba": {
        "attn_layer_indices": [1],
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 8,
    },
    # Its code takes one token after the other, also to find out what it keeps.
    "rwkv": {"num_hidden_layers": 3, "rescale_every": 2, "max_position_embeddings": 64},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("tokens_of_a_step", [512, 16])
def test_states_give_the_same_tokens(name: str, tokens_of_a_step: int, tmp_path: Path) -> None:
    """Whole or in chunks."""
    config = family(name, **OTHERS[name])
    options = {"max_model_len": 64, "max_num_batched_tokens": tokens_of_a_step}
    assert_same_tokens(config, tmp_path, 2e-4, **options)


def test_a_model_without_attention_has_a_longest_context_all_the_same() -> None:
    config = HostedConfig.from_json({**family("mamba", **OTHERS["mamba"])})
    assert not config.attention and len(config.states) == 2
    [first, _] = config.states.values()
    assert {name: tensor.dtype for name, tensor in first.tensors.items()}["conv0"] == COMPUTE


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        ("bamba", {**OTHERS["bamba"], "time_step_limit": [0.01, 0.1]}, "limits the time steps"),
        ("nemotron_h", {}, "gives a token alone other numbers"),
        ("recurrent_gemma", {}, "keeps a state per sequence"),
    ],
)
def test_states_that_are_not_in_the_cache_are_refused(
    name: str, fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(UnsupportedError, match=why):
        HostedConfig.from_json({**family(name, **fields), "max_position_embeddings": 256})


def test_one_of_modules_alike_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that takes one token after the other would make a plan of many layers slow."""
    from transformers.models.mamba.modeling_mamba import MambaMixer

    ran: list[int] = []
    code = MambaMixer.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        ran.append(self.layer_idx)
        return code(self, *args, **kwargs)

    monkeypatch.setattr(MambaMixer, "forward", forward)
    config = family("mamba", **{**OTHERS["mamba"], "num_hidden_layers": 4})
    assert len(inspection.inspect(json.dumps(config))["states"]) == 4
    assert set(ran) == {0}


def test_a_convolution_reads_what_was_before() -> None:
    x_1DT: Tensor = torch.arange(12.0).view(1, 2, 6)
    begun = Kept()
    assert begun.conv(0) is None
    assert torch.equal(begun.update_conv(x_1DT[..., :2], 0, 3)[..., -2:], x_1DT[..., :2])
    assert torch.equal(begun.update_conv(x_1DT[..., 2:], 0, 3)[..., -6:], x_1DT)
    assert torch.equal(begun.tensors["conv0"], x_1DT[..., -3:])


def test_sums_of_nothing_weigh_nothing() -> None:
    """A sequence that begins beside others has zeros for its states, and an exponent of zero would
    drown a small key."""
    kept = Kept({f"listed{i}": torch.zeros(2, 4) for i in range(5)})
    kept.tensors["listed3"][1] = 1.0
    module = torch.nn.Identity()
    step = SimpleNamespace(kept=lambda: kept)
    with running(step):
        _, before, _, _, exponent = (each[:, :, 0] for each in ListedStates()[:])
    assert torch.equal(exponent, torch.tensor([[LEAST], [0.0]]).expand(2, 4))
    assert before.shape == (2, 1, 4)
    assert not keeps(module, [ListedStates()]), "it does not look back"


def test_states_are_packed_and_copied() -> None:
    tensors = {"conv0": CacheTensor((2, 3), COMPUTE), "state0": CacheTensor((4,), "float32")}
    spec = StateSpec(tensors=tensors)
    given = {"conv0": torch.randn(5, 2, 3).bfloat16(), "state0": torch.randn(5, 4)}
    states_SN = packed(given, spec)
    copies = unpacked(states_SN, spec, torch.bfloat16)
    assert all(torch.equal(copies[name], given[name]) for name in given)
    copies["state0"].zero_()
    assert states_SN[:, -4:].any()
