"""Rotary position embedding (arXiv:2104.09864) and its extensions to contexts longer than in
training.

Suffixes: T tokens, H heads, C head dim, R rotated dims (<= C), E rotated pairs (R / 2), L lines
(cosines, then sines), N positions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from attrs import evolve, frozen
from torch import Tensor, nn

from inferno.configs import DecoderConfig, RopeConfig
from inferno.nn.batch import Batch
from inferno.nn.layer import Finalize, Layer
from inferno.nn.norm import RMSNorm
from inferno.ops import reference as ops
from inferno.ops.reference import Ops


class Rope(Layer):
    """Rotates the first R dims of each head by its token's position. Pairs are (i, i + R/2) or, if
    interleaved, (2 i, 2 i + 1).

    The frequencies are fixed before the first step. `dynamic` and `longrope` depend on the
    context's length; they are fixed for the longest context served (`serve`), so that a cached key
    never changes.
    """

    by_index: ClassVar[bool] = True
    """Whether a token turns by its index in its sequence."""
    inv_freq_E: Tensor

    def __init__(
        self,
        head_dim: int,
        scaling: RopeConfig,
        *,
        max_position_embeddings: int,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        self.interleaved = interleaved
        whole = scaling.rope_type == "proportional"
        self.rotated = head_dim if whole else int(head_dim * scaling.partial_rotary_factor)
        self.scaling = scaling
        self.ops = ops.TORCH
        self.wants_lines = False
        """Whether a layer reads `Rotation.lines_LN`. Set before the first step."""
        self.register_buffer("inv_freq_E", torch.empty(0), persistent=False)
        self._max_positions = max_position_embeddings
        self.serve(max_position_embeddings)

    def finalize(self, to: Finalize) -> None:
        self.ops = to.ops
        if to.max_model_len is not None:
            self.serve(to.max_model_len)

    def serve(self, max_model_len: int) -> None:
        """Fix the frequencies for contexts of at most `max_model_len` tokens."""
        with torch.device("cpu"):  # computed even while the model is built on meta
            frequencies_E, self.attention_factor = _frequencies(
                self.rotated, self.scaling, self._max_positions, max_model_len
            )
        self._longest = max_model_len
        self.inv_freq_E = (
            frequencies_E if self.inv_freq_E.is_meta else frequencies_E.to(self.inv_freq_E.device)
        )
        self._tables: tuple[Tensor, Tensor] | None = None
        self._lines_LN: Tensor | None = None
        self._filled = 0

    def forward(self, batch: Batch) -> Rotation:
        """Return the rotation of a step's tokens: looked up once, applied in every layer."""
        last = max(batch.context_lens) - 1
        cos_NE, sin_NE = self._tables if last < self._filled and self._tables else self._fill(last)
        gather = self.ops.gather
        cos_TE, sin_TE = gather(cos_NE, batch.positions_T), gather(sin_NE, batch.positions_T)
        return Rotation(cos_TE, sin_TE, self.ops, self.interleaved, self._lines_LN)

    def _fill(self, last: int) -> tuple[Tensor, Tensor]:
        """Fill the tables of cos and sin beyond `last` and return them. Rows not filled yet are
        untouched pages, which cost no memory."""
        if self._tables is None:
            size = (max(self._longest, last + 1), len(self.inv_freq_E))
            self._tables = (self.inv_freq_E.new_empty(size), self.inv_freq_E.new_empty(size))
            if self.wants_lines:
                whole = -(-size[0] // _LINE_MULTIPLE) * _LINE_MULTIPLE
                self._lines_LN = self.inv_freq_E.new_empty(2 * size[1], whole)
        stop = min(max(2 * self._filled, last + 1, _FIRST_POSITIONS), len(self._tables[0]))
        positions = torch.arange(self._filled, stop, device=self.inv_freq_E.device)
        angle_NE = positions[:, None].float() * self.inv_freq_E
        for table_NE, turned_NE in zip(self._tables, (angle_NE.cos(), angle_NE.sin()), strict=True):
            table_NE[self._filled : stop] = turned_NE * self.attention_factor
        if self._lines_LN is not None:
            for half_EN, table_NE in zip(self._lines_LN.chunk(2), self._tables, strict=True):
                half_EN[:, self._filled : stop] = table_NE[self._filled : stop].T
        self._filled = stop
        return self._tables


_FIRST_POSITIONS = 1024
_LINE_MULTIPLE = 16
"""Positions of a line, as `contracts.Waves` has them."""


@frozen(eq=False)
class Rotation:
    """Rotates the heads of a step's tokens by their positions, after normalizing them if there is a
    norm."""

    cos_TE: Tensor
    sin_TE: Tensor
    ops: Ops
    interleaved: bool = False
    lines_LN: Tensor | None = None
    """`Waves.lines_LN` of the pairs, if `Rope.wants_lines`."""
    query_scale_T11: Tensor | None = None
    """Factor on the queries, which are rotated as keys are."""

    def __call__(self, x_THC: Tensor, norm: RMSNorm | None = None) -> Tensor:
        weight_C, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        if self.interleaved:
            return self.ops.norm_rope(x_THC, weight_C, eps, self.cos_TE, self.sin_TE, True)
        return self.ops.norm_rope(x_THC, weight_C, eps, self.cos_TE, self.sin_TE)


class QueryScalingRope(Rope):
    """A `Rope` that has queries multiplied by a factor that grows with their position in steps:
    1 + beta · ln(1 + floor(position / length)), so that attention stays sharp over long contexts
    (https://ai.meta.com/blog/llama-4-multimodal-intelligence/). `beta` is `llama_4_scaling_beta`,
    `length` the original context."""

    def __init__(self, head_dim: int, scaling: RopeConfig, *, max_position_embeddings: int) -> None:
        super().__init__(head_dim, scaling, max_position_embeddings=max_position_embeddings)
        self.beta = scaling.llama_4_scaling_beta
        self.length = scaling.original_max_position_embeddings or max_position_embeddings

    def serve(self, max_model_len: int) -> None:
        super().serve(max_model_len)
        self._scales_N1: Tensor | None = None
        """The factors, filled with the other tables; None where all are 1."""

    def forward(self, batch: Batch) -> Rotation:
        rotation = super().forward(batch)
        if self._scales_N1 is None:
            return rotation
        scale_T1 = self.ops.gather(self._scales_N1, batch.positions_T)
        return evolve(rotation, query_scale_T11=scale_T1[:, None])

    def _fill(self, last: int) -> tuple[Tensor, Tensor]:
        tables = super()._fill(last)
        if self._longest > self.length:
            if self._scales_N1 is None:
                self._scales_N1 = self.inv_freq_E.new_empty(len(tables[0]), 1)
            positions_N = torch.arange(self._filled, device=self.inv_freq_E.device)
            steps_N = torch.floor(positions_N / self.length)
            self._scales_N1[: self._filled, 0] = 1 + self.beta * torch.log1p(steps_N)
        return tables


class NoRotation:
    """In the place of a `Rotation`: heads stay where they are."""

    lines_LN = None
    query_scale_T11: Tensor | None = None
    """As a `Rotation` has it."""

    def __call__(self, x_THC: Tensor, norm: RMSNorm | None = None) -> Tensor:
        return x_THC if norm is None else norm(x_THC)


class NoRope(nn.Module):
    """In the place of a `Rope`: layers know nothing of positions."""

    def forward(self, batch: Batch) -> NoRotation:
        return NoRotation()


class RopeByKind(nn.Module):
    """A rotary embedding, or none, for each kind of layer: a layer's `SelfAttention` has its
    kind."""

    def __init__(self, ropes: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.kinds = nn.ModuleDict(dict(ropes))

    @classmethod
    def of(cls, config: DecoderConfig, ropes: Mapping[str, RopeConfig | None]) -> RopeByKind:
        """Build it for a config's heads and context; None: nothing is rotated."""
        positions = config.max_position_embeddings
        return cls(
            {
                kind: NoRope()
                if rope is None
                else Rope(config.head_dim, rope, max_position_embeddings=positions)
                for kind, rope in ropes.items()
            }
        )

    def forward(self, batch: Batch) -> Mapping[str, Rotation | NoRotation]:
        return {kind: rope(batch) for kind, rope in self.kinds.items()}


def fill_tables(model: nn.Module, batch: Batch) -> None:
    """Compute what a captured step cannot: the tables of every `Rope`, for the batch's contexts."""
    for module in model.modules():
        if isinstance(module, Rope):
            module(batch)


def _frequencies(
    rotated: int, scaling: RopeConfig, max_position_embeddings: int, max_model_len: int
) -> tuple[Tensor, float]:
    """Return the inverse frequencies of the E pairs, and the factor on cos and sin, by the rules of
    transformers' `modeling_rope_utils`."""
    exponents_E = torch.arange(0, rotated, 2, dtype=torch.int64).float() / rotated
    plain_E = 1.0 / scaling.rope_theta**exponents_E
    match scaling.rope_type:
        case "linear":
            return plain_E / scaling.factor, 1.0
        case "proportional":
            turned = int(scaling.partial_rotary_factor * rotated // 2)
            return plain_E / scaling.factor * (torch.arange(len(plain_E)) < turned), 1.0
        case "llama3":
            return _llama3(plain_E, scaling, max_position_embeddings), 1.0
        case "yarn":
            return _yarn(exponents_E, scaling, rotated, max_position_embeddings)
        case "longrope":
            return _longrope(exponents_E, scaling, max_position_embeddings, max_model_len)
        case _:  # "dynamic" is plain up to max_position_embeddings, and no context here is longer
            return plain_E, 1.0


def _llama3(plain_E: Tensor, scaling: RopeConfig, max_positions: int) -> Tensor:
    """Divide low frequencies by `factor`, keep high ones, and interpolate in between."""
    original = scaling.original_max_position_embeddings or max_positions
    wavelength_E = 2 * math.pi / plain_E
    smooth_E = (original / wavelength_E - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    smooth_E = smooth_E.clamp(0, 1)
    return (1 - smooth_E) * plain_E / scaling.factor + smooth_E * plain_E


def _yarn(
    exponents_E: Tensor, scaling: RopeConfig, rotated: int, max_positions: int
) -> tuple[Tensor, float]:
    original = scaling.original_max_position_embeddings or max_positions
    factor = scaling.factor

    def mscale(scale: float, m: float = 1.0) -> float:
        return 1.0 if scale <= 1 else 0.1 * m * math.log(scale) + 1.0

    attention = scaling.attention_factor
    if attention is None:
        attention = (
            mscale(factor, scaling.mscale) / mscale(factor, scaling.mscale_all_dim)
            if scaling.mscale and scaling.mscale_all_dim
            else mscale(factor)
        )

    def pair(rotations: float) -> float:
        """Return the (fractional) index of the pair that makes `rotations` full turns within the
        original context."""
        return (
            rotated
            * math.log(original / (rotations * 2 * math.pi))
            / (2 * math.log(scaling.rope_theta))
        )

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    ramp_E = ((torch.arange(len(exponents_E)).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    plain_E = 1.0 / scaling.rope_theta**exponents_E
    return plain_E / factor * ramp_E + plain_E * (1 - ramp_E), attention


def _longrope(
    exponents_E: Tensor, scaling: RopeConfig, max_positions: int, max_model_len: int
) -> tuple[Tensor, float]:
    original = scaling.original_max_position_embeddings or max_positions
    is_long = scaling.outgrown(max_positions, max_model_len) is not None
    factor_E = torch.tensor(scaling.long_factor if is_long else scaling.short_factor)
    attention = scaling.attention_factor
    if attention is None:
        ratio = scaling.factor if scaling.factor != 1.0 else max_positions / original
        attention = math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
    return 1.0 / (factor_E * scaling.rope_theta**exponents_E), attention
