"""Mamba-2 (arXiv:2405.21060): a linear recurrence whose state is a matrix per head:

    state <- exp(dt · a) · state + dt · x ⊗ b;  y = state · c

Prompts are computed in chunks, as products of matrices ("state space duality"); single tokens as
above. All is float32.

Suffixes: T packed tokens, D hidden, S sequences, H heads, P width of a head, G groups of heads
that share b and c, R heads of a group, N width of b and c, I = H · P, X convolved channels, C
chunks, L tokens of a chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.contracts import Range, Shard, StateSpec
from inferno.nn.batch import Batch
from inferno.nn.conv import CausalConv
from inferno.nn.cut import Cut
from inferno.nn.delta import decays, in_chunks
from inferno.nn.layer import Finalize, Layer
from inferno.nn.linear import Linear
from inferno.nn.recurrence import in_turn, over_sequences
from inferno.nn.state import State
from inferno.ops import reference as ops

CHUNK = 64
"""Tokens of a chunk: work within one grows with its square."""


def ssd(
    x_THP: Tensor,
    dt_TH: Tensor,
    a_H: Tensor,
    b_TGN: Tensor,
    c_TGN: Tensor,
    state_BHPN: Tensor,
    batch: Batch,
) -> tuple[Tensor, Tensor]:
    """Outputs (T, H, P), float32, and each sequence's state after its last token, (S, H, P, N).

    `dt_TH` are the steps, at least 0, and `a_H` the rates of decay, at most 0. `state_BHPN` are the
    states of the sequences that are no drafts; they begin as zeros. Every sequence has at least one
    token.
    """
    dt_TH = dt_TH.float()
    inputs = (x_THP.float() * dt_TH[..., None], dt_TH * a_H.float(), b_TGN.float(), c_TGN.float())
    return in_turn(_rule, inputs, state_BHPN.float(), batch)


def _rule(
    inputs: Sequence[Tensor], state_SHPN: Tensor, query_starts: Sequence[int]
) -> tuple[Tensor, Tensor]:
    return over_sequences(inputs, state_SHPN, query_starts, step=_step, scan=_scan)


def _step(
    x_SHP: Tensor, g_SH: Tensor, b_SGN: Tensor, c_SGN: Tensor, state_SHPN: Tensor
) -> tuple[Tensor, Tensor]:
    """One token of each sequence; `x_SHP` is multiplied by its dt already."""
    shared = x_SHP.shape[1] // b_SGN.shape[1]
    b_SHN, c_SHN = (x.repeat_interleave(shared, 1) for x in (b_SGN, c_SGN))
    state_SHPN = state_SHPN * g_SH.exp()[..., None, None]
    state_SHPN = state_SHPN.addcmul_(x_SHP[..., None], b_SHN[..., None, :])
    return (c_SHN[..., None, :] @ state_SHPN.mT)[..., 0, :], state_SHPN


def _scan(
    x_THP: Tensor, g_TH: Tensor, b_TGN: Tensor, c_TGN: Tensor, state_1HPN: Tensor
) -> tuple[Tensor, Tensor]:
    """Several tokens of one sequence. What chunks can compute without the state before them, all
    compute at once."""
    length, groups = len(x_THP), b_TGN.shape[1]
    x_CGRLP = per_group(in_chunks(x_THP, CHUNK), groups)
    b_CGLN, c_CGLN = (in_chunks(x, CHUNK) for x in (b_TGN, c_TGN))
    decay_CGRLL, grown_CGRL, left_CGRL = (
        per_group(x, groups) for x in decays(in_chunks(g_TH, CHUNK))
    )
    y_CGRLP = ((c_CGLN @ b_CGLN.mT)[:, :, None] * decay_CGRLL) @ x_CGRLP
    added_CGRPN = (x_CGRLP * left_CGRL[..., None]).mT @ b_CGLN[:, :, None]

    # Each chunk's sum gives way to the state before the chunk: one such tensor is large enough.
    state_GRPN, before_CGRPN = per_group(state_1HPN, groups)[0], added_CGRPN
    for c in range(len(added_CGRPN)):
        after_GRPN = torch.addcmul(added_CGRPN[c], state_GRPN, grown_CGRL[c, ..., -1, None, None])
        before_CGRPN[c] = state_GRPN
        state_GRPN = after_GRPN
    y_CGRLP += (c_CGLN[:, :, None] @ before_CGRPN.mT) * grown_CGRL[..., None]
    y_THP = y_CGRLP.flatten(1, 2).transpose(1, 2).flatten(0, 1)[:length]
    return y_THP, state_GRPN.flatten(0, 1)[None]


def per_group(x_CH: Tensor, groups: int) -> Tensor:
    """(C, H, ...) as (C, G, R, ...)."""
    return x_CH.reshape(len(x_CH), groups, -1, *x_CH.shape[2:])


class Gate(nn.Module):
    """x · silu(gate)"""

    def forward(self, x_TI: Tensor, gate_TI: Tensor) -> Tensor:
        """In the gate's type."""
        return (x_TI.float() * F.silu(gate_TI.float())).to(gate_TI.dtype)


class GatedGroupNorm(Layer):
    """x · silu(gate), each of equally wide groups divided by its root mean square, times a weight;
    or, with `gate_last`, x divided and weighted, then multiplied by silu(gate). Ranks that share a
    group sum the squares of theirs."""

    def __init__(self, size: int, groups: int, eps: float, *, gate_last: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.groups, self.eps, self.gate_last = groups, eps, gate_last
        self.width, self.ops = size // groups, ops.TORCH
        self.cuts: Mapping[str, Cut] = {}
        self.shared: tuple[int, int] | None = None
        """How many groups all ranks have, and which of them this one has a part of."""

    def keep(self, part: Range, groups: Range) -> None:
        """Normalize these elements, of these groups."""
        self.cuts = {"weight": Cut.rows(part)}
        if part[1] - part[0] < (groups[1] - groups[0]) * self.width:
            self.shared = self.groups, groups[0]
        self.groups = groups[1] - groups[0]

    def finalize(self, to: Finalize) -> None:
        self.ops = to.ops

    def forward(self, x_TI: Tensor, gate_TI: Tensor) -> Tensor:
        """In the gate's type."""
        gate, y_TI = F.silu(gate_TI.float()), x_TI.float()
        y_TI = y_TI if self.gate_last else y_TI * gate
        if self.shared is None:
            y_TGX = y_TI.view(len(y_TI), self.groups, -1)
            y_TI = F.rms_norm(y_TGX, y_TGX.shape[-1:], None, self.eps).flatten(1)
        else:
            groups, columns = self.shared
            squares_TG = y_TI.new_zeros(len(y_TI), groups)
            squares_TG[:, columns] = y_TI.square().sum(-1)
            squares_T1 = self.ops.all_reduce(squares_TG)[:, columns, None]
            y_TI = y_TI * torch.rsqrt(squares_T1 / self.width + self.eps)
        y_TI = y_TI * self.weight
        return (y_TI * gate if self.gate_last else y_TI).to(gate_TI.dtype)


class Mamba2Mixer(Layer):
    """Projection, short convolution, recurrence, gated norm, projection: a Mamba-2 layer, under
    the names that checkpoints have."""

    keep_fp32 = ("dt_bias", "A_log", "D")

    def __init__(
        self,
        layer_id: int,
        spec: StateSpec,
        hidden_size: int,
        *,
        eps: float,
        bias: bool = False,
        output_bias: bool | None = None,
        conv_bias: bool = True,
        time_step_limit: tuple[float, float] = (0.0, float("inf")),
        norm: Literal["gate first", "gate last"] | None = "gate first",
        scales: Sequence[float] = (),
    ) -> None:
        """`spec` keeps `conv`, (taps - 1, channels), and `state`, (heads, width of a head, state
        size): the layer's other sizes follow. dt is kept within `time_step_limit`. `output_bias` is
        the last projection's, by default as the first's. `norm` is that of the output, before or
        after the gate. `scales` are factors on the first projection's results: gate, x, b, c, dt.
        """
        super().__init__()
        heads, width, self.state_size = spec.tensors["state"].shape
        before, channels = spec.tensors["conv"].shape
        inner = heads * width
        groups = (channels - inner) // (2 * self.state_size)
        self.width, self.limit = width, time_step_limit
        self.sizes = [inner, channels, heads]
        self.inner_sizes = [inner, groups * self.state_size, groups * self.state_size]
        self.in_proj = Linear(hidden_size, sum(self.sizes), bias=bias)
        self.conv1d = CausalConv(channels, before + 1, bias=conv_bias)
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.empty(heads)) for _ in range(3))
        gate_last = norm == "gate last"
        self.norm = GatedGroupNorm(inner, groups, eps, gate_last=gate_last) if norm else Gate()
        biased = bias if output_bias is None else output_bias
        self.out_proj = Linear(inner, hidden_size, bias=biased)
        self.scales = tuple(scales) if any(scale != 1.0 for scale in scales) else ()
        self.state = State(layer_id, spec)
        self.cuts: Mapping[str, Cut] = {}

    def divide(self, shard: Shard) -> None:
        """Keep some of the heads, and what their groups share."""
        if not shard.states:
            return
        heads, groups = shard.heads(self.state.spec)
        inner, shared, _ = self.inner_sizes
        inner_span, shared_span = (
            (first * width, stop * width)
            for (first, stop), width in ((heads, self.width), (groups, self.state_size))
        )
        starts = (0, inner, 2 * inner, 2 * inner + shared, 2 * (inner + shared))
        parts = (inner_span, inner_span, shared_span, shared_span, heads)
        rows = [(at + i, at + j) for at, (i, j) in zip(starts, parts, strict=True)]
        self.in_proj.keep_rows(*rows)
        self.conv1d.keep(*((i - inner, j - inner) for i, j in rows[1:4]))
        self.cuts = dict.fromkeys(self.keep_fp32, Cut.rows(heads))
        if isinstance(self.norm, GatedGroupNorm):
            self.norm.keep(inner_span, groups)
        self.out_proj.keep_columns(inner_span, shard)
        self.state.spec = shard.local(self.state.spec)
        inner, *shared_sizes = self.inner_sizes = [j - i for i, j in rows[1:4]]
        self.sizes = [inner, inner + sum(shared_sizes), heads[1] - heads[0]]

    def forward(self, x_TD: Tensor, rotation: Any, batch: Batch) -> Tensor:
        """As a decoder layer calls its attention. Nothing is rotated."""
        past = self.state.load(batch)
        projected_TX = self.in_proj(x_TD)
        if self.scales:
            parts = projected_TX.split([self.sizes[0], *self.inner_sizes, self.sizes[2]], -1)
            scaled = [part * scale for part, scale in zip(parts, self.scales, strict=True)]
            projected_TX = torch.cat(scaled, -1)
        gate_TI, xbc_TX, dt_TH = torch.split(projected_TX, self.sizes, -1)
        xbc_TX, conv_SPX = self.conv1d(xbc_TX, past["conv"], batch)
        x_TI, b_TX, c_TX = torch.split(F.silu(xbc_TX), self.inner_sizes, -1)
        x_THP = x_TI.reshape(len(x_TI), -1, self.width)
        b_TGN, c_TGN = (x.reshape(len(x), -1, self.state_size) for x in (b_TX, c_TX))
        dt_TH = F.softplus(dt_TH.float() + self.dt_bias).clamp(*self.limit)
        y_THP, state_SHPN = ssd(x_THP, dt_TH, -self.A_log.exp(), b_TGN, c_TGN, past["state"], batch)
        self.state.store(batch, conv=conv_SPX, state=state_SHPN)
        y_THP = torch.addcmul(y_THP, x_THP.float(), self.D[:, None])
        y_TD: Tensor = self.out_proj(self.norm(y_THP.flatten(1), gate_TI))
        return y_TD
