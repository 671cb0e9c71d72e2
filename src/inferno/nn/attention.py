"""Attention over the cache, as models call it.

Suffixes: T packed tokens, H query heads, K key/value heads, C head dim, X heads x head dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from attrs import frozen
from torch import Tensor

from inferno.contracts import Attend, AttentionSpec, Indexed, IndexedAttend, Waves
from inferno.nn.batch import Batch
from inferno.nn.chunks import in_chunks
from inferno.nn.layer import Finalize, Layer


class Attention(Layer):
    """Causal attention over the cache. Declares what it computes; the loader binds a backend to it,
    the runner its tensors and group.

    `layer_id` is the layer's index in its config's `cache_specs()`.
    """

    def __init__(self, layer_id: int, spec: AttentionSpec) -> None:
        super().__init__()
        self.layer_id = layer_id
        self.spec = spec
        self.attend: Attend = unbound
        self.group = 0
        """Index of its cache group in the plan."""
        self.cache: Mapping[str, Tensor] = {}
        """Each (blocks, *shape of one block)."""

    def finalize(self, to: Finalize) -> None:
        self.attend = to.attend(self.layer_id)

    def forward(
        self,
        q_TX: Tensor,
        k_TX: Tensor,
        v_TX: Tensor | None,
        batch: Batch,
        sinks_H: Tensor | None = None,
        waves: Waves | None = None,
        indexed: Indexed | None = None,
    ) -> Tensor:
        """Return (T, H·`spec.output_dim`), from (T, H·C), (T, K·C) and (T, K·V). Latent attention
        has no values; `sinks_H` are the logits of `spec.sinks`, `waves` what is added to scores for
        a part of the keys that is not in `k_TX`. `indexed` is for a layer with an index."""
        spec, batch = self.spec, batch.of_group(self.group)
        if spec.attention_chunk is not None:
            batch = in_chunks(batch, spec.attention_chunk)
        q_THC, k_TKC = (x.view(len(x), -1, spec.head_dim) for x in (q_TX, k_TX))
        v_TKC = (
            k_TKC[..., : spec.latent_dim]
            if v_TX is None
            else v_TX.view(len(v_TX), k_TKC.shape[1], -1)
        )
        given = (sinks_H, waves) if waves is not None else () if sinks_H is None else (sinks_H,)
        if indexed is not None:
            find = cast(IndexedAttend, self.attend)
            return find(
                q_THC, k_TKC, v_TKC, self.cache, batch, sinks_H, waves, indexed=indexed
            ).flatten(1)
        return self.attend(q_THC, k_TKC, v_TKC, self.cache, batch, *given).flatten(1)


@frozen
class ByStep:
    """Two backends that share a cache: one for steps with prompts, one for the others."""

    prompts: Attend
    tokens: Attend
    """For steps in which every sequence has one token, as captured ones."""

    def __call__(
        self,
        q_THC: Tensor,
        k_TKC: Tensor,
        v_TKC: Tensor,
        cache: Mapping[str, Tensor],
        batch: Batch,
        sinks_H: Tensor | None = None,
        waves: Waves | None = None,
        indexed: Indexed | None = None,
    ) -> Tensor:
        attend = self.tokens if is_single(batch) else self.prompts
        if indexed is not None:
            find = cast(IndexedAttend, attend)
            return find(q_THC, k_TKC, v_TKC, cache, batch, sinks_H, waves, indexed=indexed)
        given = (sinks_H,) if waves is None else (sinks_H, waves)
        return attend(q_THC, k_TKC, v_TKC, cache, batch, *given)


def is_single(batch: Batch) -> bool:
    """Return whether every sequence of the step has one token."""
    return batch.query_starts[-1] == len(batch.context_lens)


def unbound(
    q_THC: Tensor,
    k_TKC: Tensor,
    v_TKC: Tensor,
    cache: Mapping[str, Tensor],
    batch: Batch,
    sinks_H: Tensor | None = None,
    waves: Waves | None = None,
) -> Tensor:
    raise AssertionError("a backend is bound to every attention layer before the first step")
