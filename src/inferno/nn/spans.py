"""Attention in which the positions of an image attend to all of it.

A step has all positions of an image that are not cached. Each of them but the last is computed once
more, as the only token of a sequence that ends with the image: any backend can do that, since keys
are rotated before they are stored, and a query does not say where it is. Where a window is shorter
than what came before, it is longer by as many tokens as the image has after the position.

Suffixes: T packed tokens, N tokens of an image, S sequences, M blocks, H query heads, X heads x
head dim.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import attrs
import numpy as np
import torch
from attrs import evolve
from torch import Tensor

from inferno.contracts import Attend, AttentionNeed, AttentionSpec, Indexed, Waves
from inferno.nn.attention import Attention
from inferno.nn.batch import Batch
from inferno.nn.layer import Attends, Finalize
from inferno.nn.media import ImageInputs

View = tuple[int | None, Tensor, Batch]
"""The window, the tokens in T, and a step in which each is a sequence of one token."""


class SpanAttention(Attention):
    """`Attention` of a decoder that sees images (`contracts.ImageSpanConfig`)."""

    def __init__(self, layer_id: int, spec: AttentionSpec, inputs: ImageInputs) -> None:
        super().__init__(layer_id, spec)
        self._inputs = [inputs]  # in a list: it is the decoder's, not a module of this one
        self._attends: Attends | None = None
        self._need: AttentionNeed | None = None
        self._built: dict[int | None, Attend] = {}

    def finalize(self, to: Finalize) -> None:
        super().finalize(to)
        self._attends, self._need = to.attend, to.need(self.layer_id)

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
        assert indexed is None, "no decoder that sees images has an index"
        y_TX = super().forward(q_TX, k_TX, v_TX, batch, sinks_H, waves)
        [inputs] = self._inputs
        if inputs.spans is None:
            return y_TX
        assert v_TX is not None and waves is None, "values are apart, and heads are normalized"
        step, spec = batch.of_group(self.group), self.spec
        key = SpanAttention, spec.sliding_window
        if key not in step.scratch:  # shared by all layers with this window
            step.scratch[key] = list(views(inputs.spans, step, spec.sliding_window))
        for window, tokens_N, view in step.scratch[key]:
            q, k, v = (
                x_TX[tokens_N].unflatten(1, (-1, spec.head_dim)) for x_TX in (q_TX, k_TX, v_TX)
            )
            given = () if sinks_H is None else (sinks_H,)
            y = self._attend(window)(q, k, v, self.cache, view, *given)
            y_TX = y_TX.index_copy(0, tokens_N, y.flatten(1))
        return y_TX

    def _attend(self, window: int | None) -> Attend:
        if window not in self._built:
            assert self._attends is not None and self._need is not None, "a plan has chosen it"
            need = evolve(self._need, sliding_window=window)
            self._built[window] = self._attends(self.layer_id, need)
        return self._built[window]


def views(spans: Tensor, step: Batch, window: int | None) -> Iterator[View]:
    """Return the tokens of images by the window that they need. `spans` has rows of three numbers:
    the index in T, the position, and the end of the image."""
    index_N, place_N, end_N = spans.numpy()
    sequence_T = np.repeat(np.arange(len(step.context_lens)), np.diff(step.query_starts))
    groups = defaultdict[int | None, list[int]](list)
    for n, (place, end) in enumerate(zip(place_N.tolist(), end_N.tolist(), strict=True)):
        if place + 1 < end:  # the last has seen all of it
            whole = window is None or place < window
            groups[None if whole else window + end - 1 - place].append(n)
    device = step.positions_T.device
    for needed, members in groups.items():
        tokens_N = torch.from_numpy(index_N[members]).to(device)
        ends_N = torch.from_numpy(end_N[members])
        rows_N = torch.from_numpy(sequence_T[index_N[members]]).to(device)
        yield (
            needed,
            tokens_N,
            attrs.evolve(
                step,
                token_ids_T=step.token_ids_T[tokens_N],
                positions_T=(ends_N - 1).to(device, step.positions_T.dtype),
                slots_T=step.slots_T[tokens_N],
                query_starts=range(len(members) + 1),
                context_lens=ends_N.tolist(),
                blocks_SM=step.blocks_SM[rows_N],
                query_starts_S1=torch.arange(len(members) + 1, dtype=torch.int32, device=device),
                context_lens_S=ends_N.to(device, torch.int32),
                state_slots_S=None,
                scratch={},
                groups=(),
            ),
        )
