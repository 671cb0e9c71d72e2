"""Gemma 4 with images and audio: the encoder of images, and a decoder that is given embeddings of
some positions.

Reference: transformers/models/gemma4.

Suffixes: P patches of an image, row by row, W numbers of a patch, D the encoder's hidden size,
H heads, K key/value heads, C head dim, E a quarter of it, M tokens of the image, O the decoder's
hidden size, T tokens of a step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.configs import SLIDING
from inferno.contracts import AttentionSpec, AudioModelConfig, Grid, ImageSpanConfig
from inferno.nn import (
    Attention,
    AudioEncoder,
    Finalize,
    ImageEncoder,
    ImageInputs,
    Layer,
    Linear,
    RMSNorm,
    SpanAttention,
    turned,
)
from inferno.ops import reference as ops
from inferno_gemma.audio4 import Hearing
from inferno_gemma.clipped import Clipped, Projector
from inferno_gemma.gemma4 import Gemma4ForCausalLM
from inferno_gemma.sharing import SharingDecoder, gelu_mul
from inferno_gemma.vision4_config import (
    HearingGemma4Config,
    SeeingGemma4Config,
    VisionConfig,
)


class SeeingDecoder(SharingDecoder):
    """A decoder that is given the embeddings of positions of images and audio. To it and its
    layers' inputs the tokens at these are padding, wherever they are."""

    def __init__(
        self,
        *args: Any,
        images: ImageInputs,
        media_tokens: Sequence[int],
        padding: int,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self.images, self.media_tokens, self.padding = images, media_tokens, padding

    def embed(self, token_ids_T: Tensor) -> Tensor:
        x_TD: Tensor = self.images(super().embed(self._padded(token_ids_T)))
        return x_TD

    def inputs(self, x_TD: Tensor, token_ids_T: Tensor) -> Tensor | None:
        return super().inputs(x_TD, self._padded(token_ids_T))

    def _padded(self, token_ids_T: Tensor) -> Tensor:
        for token in self.media_tokens:
            token_ids_T = token_ids_T.masked_fill(token_ids_T == token, self.padding)
        return token_ids_T


class Gemma4ForConditionalGeneration(Gemma4ForCausalLM):
    spanning: ClassVar[Collection[str]] = (SLIDING,)
    """Kinds of layers in which positions of an image attend to all of it, if they do so at all."""

    def __init__(self, config: SeeingGemma4Config) -> None:
        inputs, tokens = ImageInputs(config.hidden_size), [config.image_token_id]
        if isinstance(config, AudioModelConfig):
            tokens.append(config.audio_token_id)

        def attention(layer_id: int, spec: AttentionSpec) -> Attention:
            spans = config.layer_types[layer_id] in self.spanning
            if spans and isinstance(config, ImageSpanConfig):
                return SpanAttention(layer_id, spec, inputs)
            return Attention(layer_id, spec)

        decoder = partial(
            SeeingDecoder.of,
            images=inputs,
            media_tokens=tokens,
            padding=config.pad_token_id,
        )
        super().__init__(config, attention=attention, decoder=decoder)
        self.add_encoders(config)

    def add_encoders(self, config: SeeingGemma4Config) -> None:
        self.encoder: ImageEncoder = Encoder(config.vision, config.hidden_size)
        if isinstance(config, HearingGemma4Config):
            self.hearing: AudioEncoder = Hearing(config.hearing, config.hidden_size)


class Encoder(ImageEncoder):
    """Layers of attention over the whole image, and what makes a token of some patches."""

    def __init__(self, config: VisionConfig, out: int) -> None:
        super().__init__()
        self.vision_tower = VisionTower(config)
        self.embed_vision = Projector(config.hidden_size, config.rms_norm_eps, out)

    def forward(self, pixels_PW: Tensor, grid: Grid) -> Tensor:
        """Return the embeddings of the image's tokens, (M, O), row by row."""
        embeddings_MO: Tensor = self.embed_vision(self.vision_tower(pixels_PW, grid))
        return embeddings_MO


class VisionTower(Layer):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config, width = config, config.hidden_size
        self.patch_embedder = PatchEmbedder(config)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(
            VisionLayer(config) for _ in range(config.num_hidden_layers)
        )
        if config.standardize:
            self.keep_fp32 = ("std_bias", "std_scale")
            self.std_bias = nn.Parameter(torch.empty(width))
            self.std_scale = nn.Parameter(torch.empty(width))

    def forward(self, pixels_PW: Tensor, grid: Grid) -> Tensor:
        config, (_, rows, columns) = self.config, grid
        places_2P = torch.from_numpy(places(grid)).to(pixels_PW.device)
        x_PD = self.patch_embedder(pixels_PW, places_2P)
        turns = [angles(place_P, config) for place_P in places_2P]
        blocks: nn.ModuleList = self.encoder.layers  # type: ignore[assignment]
        for layer in blocks:
            x_PD = layer(x_PD, turns)
        x_DRR = x_PD.float().T.unflatten(1, (rows, columns))
        x_MD = F.avg_pool2d(x_DRR, config.pooling_kernel_size).flatten(1).T
        x_MD = x_MD.to(x_PD.dtype).float() * config.hidden_size**0.5
        if config.standardize:
            x_MD = (x_MD - self.std_bias) * self.std_scale
        y_MD: Tensor = x_MD.to(x_PD.dtype)
        return y_MD


class PatchEmbedder(nn.Module):
    """A product with the numbers of each patch, and what is added for its column and row."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.input_proj = Linear(3 * config.patch_size**2, config.hidden_size)
        shape = 2, config.position_embedding_size, config.hidden_size
        self.position_embedding_table = nn.Parameter(torch.empty(shape))

    def forward(self, pixels_PW: Tensor, places_2P: Tensor) -> Tensor:
        table = self.position_embedding_table
        x_PD: Tensor = self.input_proj((2 * (pixels_PW - 0.5)).to(table.dtype))
        return x_PD + (table[0][places_2P[0]] + table[1][places_2P[1]])


class VisionLayer(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn, self.mlp = VisionAttention(config), VisionMLP(config)
        self.input_layernorm = RMSNorm(size, eps)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.pre_feedforward_layernorm = RMSNorm(size, eps)
        self.post_feedforward_layernorm = RMSNorm(size, eps)

    def forward(self, x_PD: Tensor, turns: list[tuple[Tensor, Tensor]]) -> Tensor:
        h_PD = self.self_attn(self.input_layernorm(x_PD), turns)
        x_PD = x_PD + self.post_attention_layernorm(h_PD)
        h_PD = self.mlp(self.pre_feedforward_layernorm(x_PD))
        y_PD: Tensor = x_PD + self.post_feedforward_layernorm(h_PD)
        return y_PD


class VisionAttention(Layer):
    """Attention among all patches, in both directions. Half of a head turns by the patch's column,
    half by its row."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        size, dim, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
        heads_X, kv_heads_X = config.num_attention_heads * dim, config.num_key_value_heads * dim
        self.dim, self.eps, self.ops = dim, eps, ops.TORCH
        self.q_proj = Clipped(config, size, heads_X)
        self.k_proj = Clipped(config, size, kv_heads_X)
        self.v_proj = Clipped(config, size, kv_heads_X)
        self.o_proj = Clipped(config, heads_X, size)
        self.q_norm, self.k_norm = RMSNorm(dim, eps), RMSNorm(dim, eps)
        self.ones_C = torch.empty(0)

    def finalize(self, to: Finalize) -> None:
        self.ops, self.ones_C = to.ops, torch.ones_like(self.k_norm.weight)

    def forward(self, x_PD: Tensor, turns: list[tuple[Tensor, Tensor]]) -> Tensor:
        q_PHC, k_PKC, v_PKC = (
            product(x_PD).unflatten(1, (-1, self.dim))
            for product in (self.q_proj, self.k_proj, self.v_proj)
        )
        q_PHC, k_PKC = turned_by(self.q_norm(q_PHC), turns), turned_by(self.k_norm(k_PKC), turns)
        v_PKC = self.ops.rms_norm(v_PKC.contiguous(), self.ones_C, self.eps)
        q, k, v = (each.transpose(0, 1)[None] for each in (q_PHC, k_PKC, v_PKC))
        grouped = q.shape[1] != k.shape[1]
        y_HPC = F.scaled_dot_product_attention(q, k, v, scale=1.0, enable_gqa=grouped)[0]
        y_PD: Tensor = self.o_proj(y_HPC.transpose(0, 1).flatten(1))
        return y_PD


class VisionMLP(Layer):
    """A gated MLP that no rank divides."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self.gate_proj, self.up_proj = Clipped(config, size, inner), Clipped(config, size, inner)
        self.down_proj = Clipped(config, inner, size)

    def forward(self, x_PD: Tensor) -> Tensor:
        y_PD: Tensor = self.down_proj(gelu_mul(self.gate_proj(x_PD), self.up_proj(x_PD)))
        return y_PD


def places(grid: Grid) -> Any:
    """Return each patch's column and row, (2, P), int64."""
    rows, columns = np.indices(grid[1:]).reshape(2, -1)
    return np.stack([columns, rows])


def angles(place_P: Tensor, config: VisionConfig) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the angles of each patch's pairs along one axis, (P, E)."""
    half = config.head_dim // 2
    exponents_E = torch.arange(0, half, 2, device=place_P.device).float() / half
    angle_PE = place_P[:, None].float() / config.rope_theta**exponents_E
    return angle_PE.cos(), angle_PE.sin()


def turned_by(x_PHC: Tensor, turns: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Rotate each half of the heads by its axis."""
    halves = zip(x_PHC.chunk(2, dim=-1), turns, strict=True)
    return torch.cat([turned(half, turn) for half, turn in halves], dim=-1)
