"""Large biases of keys are added to scores: what is stored and what is added make the same scores.

Suffixes: T tokens, H query heads, K key/value heads, C head dim, D hidden, Q queries, N keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inferno.configs import RopeConfig
from inferno.contracts import AttentionNeed, AttentionSpec, CacheDType, Device, Waves
from inferno.nn import Decoder, Dense, Finalize, Linear, RMSNorm, Rope, SelfAttention
from inferno.nn.batch import Batch

TOKENS, HEADS, KV_HEADS, HEAD, HIDDEN = 20, 4, 2, 16, 32
Seen = dict[str, Any]


def batch() -> Batch:
    numbers_T = torch.arange(TOKENS)
    return Batch(
        token_ids_T=numbers_T,
        positions_T=numbers_T,
        slots_T=numbers_T,
        query_starts=[0, TOKENS],
        context_lens=[TOKENS],
        blocks_SM=torch.zeros(1, 1, dtype=torch.int64),
        block_size=TOKENS,
        query_starts_S1=torch.tensor([0, TOKENS], dtype=torch.int32),
        context_lens_S=torch.tensor([TOKENS], dtype=torch.int32),
    )


def to(spec: AttentionSpec, cache_dtype: CacheDType) -> Finalize:
    """Return what a plan with such a cache finalizes with."""
    need = AttentionNeed.of(spec, dtype="float32", device=Device("cpu"), cache_dtype=cache_dtype)
    return Finalize(need=lambda layer_id: need)


class Layers(nn.Module):
    """One attention block, in the place of a decoder's layers."""

    def __init__(
        self, spec: AttentionSpec, fused: bool, norm: Callable[[], RMSNorm] | None = None
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.self_attn = SelfAttention(0, spec, HIDDEN, bias=True, fused=fused, head_norm=norm)
        attention = self.self_attn
        parts: list[Linear] = (
            [attention.qkv_proj] if fused else list(attention.qkv.linears.values())
        )
        total, keys = sum(attention.sizes), slice(HEADS * HEAD, (HEADS + KV_HEADS) * HEAD)
        weight_OD, bias_O = torch.randn(total, HIDDEN), torch.randn(total)
        if norm is None:
            bias_O[keys].view(KV_HEADS, HEAD)[:, [1, 12]] += 300
            bias_O[keys][5] = -200.0  # in one head only
        sizes = [part.weight.shape[0] for part in parts]
        for part, own_OD, own_O in zip(
            parts, weight_OD.split(sizes), bias_O.split(sizes), strict=True
        ):
            part.weight, part.bias = Dense(own_OD), nn.Parameter(own_O, requires_grad=False)
        o_proj: Any = attention.o_proj
        o_proj.weight = Dense(torch.zeros(HIDDEN, HEADS * HEAD))


def scores(
    fused: bool,
    interleaved: bool,
    rotated: float,
    taken: bool,
    norm: Callable[[], RMSNorm] | None = None,
    uneven: float = 1.0,
    **more: Any,
) -> Seen:
    """Return what attention is given, and the scores that follow: (H, Q, N). Channel 3 of keys is
    `uneven` times as large as others."""
    spec = AttentionSpec(num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD, scale=1.0, **more)
    config = RopeConfig(rope_theta=100.0, partial_rotary_factor=rotated)
    rope = Rope(HEAD, config, max_position_embeddings=64, interleaved=interleaved)
    layers, seen = Layers(spec, fused, norm), Seen()
    if norm is not None:
        for each in (layers.self_attn.q_norm, layers.self_attn.k_norm):
            assert each is not None
            each.weight.data[:] = torch.rand(HEAD) + 0.5 - each.offset
            each.weight.data[3] = (uneven if each is layers.self_attn.k_norm else 1.0) - each.offset
    elif uneven != 1.0:
        weight: Any = layers.self_attn.qkv.linears["k_proj"].weight
        weight.data.view(KV_HEADS, HEAD, HIDDEN)[:, 3] *= uneven

    def attend(
        q_THC: Tensor,
        k_TKC: Tensor,
        v_TKC: Tensor,
        cache: Any,
        batch: Batch,
        sinks_H: Tensor | None = None,
        waves: Waves | None = None,
    ) -> Tensor:
        k_THC = k_TKC.double().repeat_interleave(HEADS // KV_HEADS, 1)
        seen.update(k=k_TKC, scores=torch.einsum("qhc,nhc->hqn", q_THC.double(), k_THC))
        if waves is not None:
            lines_KWN = waves.lines_LN[:, :TOKENS].double()[waves.used_KW.long()]
            lines_HWN = lines_KWN.repeat_interleave(HEADS // KV_HEADS, 0)
            seen["scores"] += torch.einsum("qhw,hwn->hqn", waves.amplitudes_THW.double(), lines_HWN)
        return torch.zeros_like(q_THC)

    decoder = Decoder([layers], rope, vocab_size=8, hidden_size=HIDDEN, eps=1e-6)
    decoder.finalize(to(spec, "int8" if taken else "auto"))
    for norm_of_heads in (layers.self_attn.q_norm, layers.self_attn.k_norm):
        if norm_of_heads is not None:
            norm_of_heads.finalize(Finalize())
    layers.self_attn.attention.attend = attend
    x_TD = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(1))
    layers.self_attn(x_TD, rope(batch()), batch())
    return seen


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("more", [{}, {"soft_cap": 30.0}])
@pytest.mark.parametrize("rotated", [1.0, 0.5])
def test_scores_are_those_of_whole_keys(
    fused: bool, interleaved: bool, more: dict[str, Any], rotated: float
) -> None:
    whole = scores(fused, interleaved, rotated, taken=False, **more)
    ours = scores(fused, interleaved, rotated, taken=True, **more)
    difference_HQN = ours["scores"] - whole["scores"]
    if rotated < 1 and not more:  # what is not rotated adds the same to all scores of a query
        difference_HQN = difference_HQN - difference_HQN[..., :1]
    assert difference_HQN.abs().max() <= 1e-5 * whole["scores"].abs().max()


@pytest.mark.parametrize("rotated", [1.0, 0.5])
def test_stored_keys_have_no_large_channels(rotated: float) -> None:
    assert scores(False, False, rotated, taken=False)["k"].abs().amax() > 250
    assert scores(False, False, rotated, taken=True)["k"].abs().amax() < 40


@pytest.mark.parametrize(
    "norm", [None, partial(RMSNorm, HEAD, 1e-6), partial(RMSNorm, HEAD, 1e-6, offset=1.0)]
)
@pytest.mark.parametrize("interleaved", [False, True])
def test_large_channels_are_divided(norm: Callable[[], RMSNorm] | None, interleaved: bool) -> None:
    whole = scores(False, interleaved, 1.0, taken=False, norm=norm, uneven=100.0)
    ours = scores(False, interleaved, 1.0, taken=True, norm=norm, uneven=100.0)
    assert (ours["scores"] - whole["scores"]).abs().max() <= 1e-5 * whole["scores"].abs().max()
    if norm is not None:  # else there are biases
        sizes_C = whole["k"].square().mean((0, 1)).sqrt()
        assert sizes_C.max() > 25 * sizes_C.median()
    sizes_C = ours["k"].square().mean((0, 1)).sqrt()
    assert sizes_C.max() < 10 * sizes_C.median()


def test_small_inputs_make_a_bias_large() -> None:
    """Trained norms give inputs of 0.05 to 0.4, not of 1."""
    spec = AttentionSpec(num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD, scale=1.0)
    layers = Layers(spec, fused=False)
    keys = layers.self_attn.qkv.linears["k_proj"]
    rope = Rope(HEAD, RopeConfig(rope_theta=100.0), max_position_embeddings=64)
    decoder = Decoder([layers], rope, vocab_size=8, hidden_size=HIDDEN, eps=1e-6)
    for size, taken in ((1.0, False), (0.01, True)):
        assert keys.bias is not None
        keys.bias.data[:] = 1.0
        layers.input_layernorm = RMSNorm(HIDDEN, 1e-6)
        layers.input_layernorm.weight.data[:] = size
        decoder.finalize(to(spec, "fp8_e4m3"))
        assert bool((keys.bias == 0).all()) == taken
