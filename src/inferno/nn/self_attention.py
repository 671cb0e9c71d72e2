"""The attention block that most decoders share.

Suffixes: T packed tokens, D hidden, X heads x head dim, H heads, C head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from inferno.contracts import AttentionSpec, Shard
from inferno.nn.attention import Attention
from inferno.nn.batch import Batch
from inferno.nn.constant_keys import (
    ConstantKeys,
    Pairs,
    evening_factors,
    large_pairs,
    usual_sizes,
)
from inferno.nn.cut import Cut
from inferno.nn.linear import Linear, MergedLinear
from inferno.nn.norm import ProjectionNorm, RMSNorm
from inferno.nn.rope import NoRotation, Rotation


class SelfAttention(nn.Module):
    """Self-attention: q_proj, k_proj and v_proj, rotary embedding, attention over the cache,
    o_proj."""

    def __init__(
        self,
        layer_id: int,
        spec: AttentionSpec,
        hidden_size: int,
        *,
        bias: bool = False,
        output_bias: bool = False,
        head_norm: Callable[[], RMSNorm] | None = None,
        projection_norm: Callable[[int], ProjectionNorm] | None = None,
        layernorms: tuple[nn.Module, nn.Module] | None = None,
        fused: bool = False,
        output: str = "o_proj",
        kind: str = "",
    ) -> None:
        """`bias` applies to q, k and v. `head_norm` makes q_norm and k_norm, which normalize each
        head before it is rotated; `projection_norm` makes them for all heads together, of a size;
        `layernorms` are q_layernorm and k_layernorm, called with (T, H, C). With `spec.sinks` there
        is a parameter `sinks`, (H,). `fused`: the checkpoint stores q, k and v as one matrix,
        qkv_proj. `output` is the last projection's name in it. `kind` is the layer's in the
        decoder's `RopeByKind`."""
        super().__init__()
        heads_X, kv_heads_X = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self.head_dim, self.hidden_size = spec.head_dim, hidden_size
        self.sizes, self.fused = [heads_X, kv_heads_X, kv_heads_X], fused
        if fused:
            self.qkv_proj = Linear(hidden_size, sum(self.sizes), bias=bias)
        else:
            self.qkv = MergedLinear(
                hidden_size, bias=bias, q_proj=heads_X, k_proj=kv_heads_X, v_proj=kv_heads_X
            )
        self.kind, self.norms_projections = kind, projection_norm is not None
        self.q_norm: RMSNorm | None
        self.k_norm: RMSNorm | None
        if projection_norm is not None:
            self.q_norm, self.k_norm = projection_norm(heads_X), projection_norm(kv_heads_X)
        else:
            self.q_norm = head_norm() if head_norm else None
            self.k_norm = head_norm() if head_norm else None
        self.q_layernorm = layernorms[0] if layernorms else None
        self.k_layernorm = layernorms[1] if layernorms else None
        self.sinks = nn.Parameter(torch.empty(spec.num_heads)) if spec.sinks else None
        self.attention = Attention(layer_id, spec)
        self.readers: list[RMSNorm] = []
        """Norms of the queries of other layers that read these keys."""
        self.constant_keys: ConstantKeys | None = None
        self.evening: tuple[Tensor, Tensor] | None = None
        """What rotated queries and keys are multiplied by, (H, C) and (K, C)."""
        self.output = output
        self.add_module(output, Linear(heads_X, hidden_size, bias=output_bias))
        self.cuts: Mapping[str, Cut] = {}

    def divide(self, shard: Shard) -> None:
        """Keep some of the heads. Norms with a weight for each head are divided by `keep_heads`."""
        if not shard.attention:
            return
        spec, dim = self.attention.spec, self.head_dim
        heads, kv_heads = shard.heads(spec)
        q, k = ((start * dim, stop * dim) for start, stop in (heads, kv_heads))
        first_k, first_v = self.sizes[0], self.sizes[0] + self.sizes[1]
        if self.fused:
            moved = ((first + k[0], first + k[1]) for first in (first_k, first_v))
            self.qkv_proj.keep_rows(q, *moved)
        else:
            self.qkv.keep_rows(**{n: [q] if n == "q_proj" else [k] for n in self.qkv.names})
        getattr(self, self.output).keep_columns(q, shard)
        for norm, span in ((self.q_layernorm, heads), (self.k_layernorm, kv_heads)):
            if callable(keep := getattr(norm, "keep_heads", None)):
                keep(*span)
        for norm, part in ((self.q_norm, q), (self.k_norm, k)):
            if isinstance(norm, ProjectionNorm):
                norm.keep(part, shard)
        self.cuts = {"sinks": Cut(0, (heads,))}
        self.attention.spec = shard.local(spec)
        self.sizes = [stop - start for start, stop in (q, k, k)]

    def fit_keys(self, pairs: Pairs, inputs_D: Tensor, *, integers: bool) -> bool:
        """Make keys, which are rotated in these pairs, fit for a cache of 8 bits: take large biases
        out and, if it stores integers, divide channels that are larger than others. `inputs_D` is
        how large inputs are. To be called before anything is finalized. Returns whether `forward`
        adds biases to scores, by `Rotation.lines_LN`."""
        if self.q_norm is not None and self.k_norm is not None:
            if integers:
                usual_X = self.k_norm.weight.float() + self.k_norm.offset
                usual_KC = usual_X.abs().view(-1, self.head_dim)  # one row if heads share a norm
                factors_KC = evening_factors(usual_KC, pairs)
                group = len(self.q_norm.weight) // len(usual_X)
                for norm in (self.q_norm, *self.readers):
                    norm.scale(factors_KC.repeat_interleave(group, 0).flatten())
                self.k_norm.scale(1 / factors_KC.flatten())
            return False
        if self.k_layernorm is not None:
            return False
        linear, first = (
            (self.qkv_proj, self.sizes[0]) if self.fused else (self.qkv.linears["k_proj"], 0)
        )
        rows_O = torch.arange(first, first + self.sizes[1], device=inputs_D.device)
        usual_KC = usual_sizes(linear.weight, rows_O, inputs_D).view(-1, self.head_dim)
        factors_KC = evening_factors(usual_KC, pairs)
        if integers and bool((factors_KC > 1).any()):
            spec = self.attention.spec
            factors_HC = factors_KC.repeat_interleave(spec.num_heads // spec.num_kv_heads, 0)
            self.evening = factors_HC, 1 / factors_KC
        return linear.bias is not None and self._take_out(linear, first, usual_KC, pairs)

    def _take_out(self, linear: Linear, first: int, usual_KC: Tensor, pairs: Pairs) -> bool:
        """Take large biases out of the keys, whose projection begins at row `first` of `linear`."""
        assert linear.bias is not None
        spec, bias_O = self.attention.spec, linear.bias.detach().clone()
        bias_KC = bias_O[first : first + self.sizes[1]].view(-1, self.head_dim)
        large_KE = large_pairs(bias_KC, usual_KC, pairs)
        if any_large := bool(large_KE.any()):
            self.constant_keys = ConstantKeys.of(bias_KC, large_KE, pairs, spec.num_heads)
            for channels_KE in pairs.split(bias_KC):
                channels_KE.masked_fill_(large_KE, 0.0)
        if spec.soft_cap is None and not spec.sinks:
            # Where nothing is rotated, a constant adds the same to all scores of a query.
            bias_KC[:, 2 * pairs.count :] = 0.0
        linear.bias = nn.Parameter(bias_O, requires_grad=False)
        return any_large

    def forward(
        self,
        x_TD: Tensor,
        rotate: Rotation | NoRotation | Mapping[str, Rotation | NoRotation],
        batch: Batch,
    ) -> Tensor:
        rotate = rotate[self.kind] if isinstance(rotate, Mapping) else rotate
        q_TX, k_TX, v_TX = (
            self.qkv_proj(x_TD).split(self.sizes, dim=-1) if self.fused else self.qkv(x_TD)
        )
        q_norm, k_norm = self.q_norm, self.k_norm
        if q_norm is not None and k_norm is not None and self.norms_projections:
            q_TX, k_TX, q_norm, k_norm = q_norm(q_TX), k_norm(k_TX), None, None
        q_THC = q_TX.unflatten(-1, (-1, self.head_dim))
        k_THC = k_TX.unflatten(-1, (-1, self.head_dim))
        if self.q_layernorm is not None and self.k_layernorm is not None:
            q_THC, k_THC = self.q_layernorm(q_THC), self.k_layernorm(k_THC)
        q_THC, k_THC = rotate(q_THC, q_norm), rotate(k_THC, k_norm)
        if rotate.query_scale_T11 is not None:
            q_THC = q_THC * rotate.query_scale_T11.to(q_THC.dtype)
        waves = None
        if self.constant_keys is not None:
            assert rotate.lines_LN is not None, "the decoder has asked the rope for them"
            waves = self.constant_keys.waves(q_THC, rotate.lines_LN)
        if self.evening is not None:
            q_THC, k_THC = (
                (x_TXC * factors_XC).to(x_TXC.dtype)
                for x_TXC, factors_XC in zip((q_THC, k_THC), self.evening, strict=True)
            )
        y_TD: Tensor = getattr(self, self.output)(
            self.attention(q_THC.flatten(1), k_THC.flatten(1), v_TX, batch, self.sinks, waves)
        )
        return y_TD
