"""The building blocks of models: only those that at least two architectures use."""

from inferno.nn.attention import Attention, ByStep
from inferno.nn.audio import WhisperLayer, WhisperTower, sines
from inferno.nn.channel_delta import channel_gated_delta
from inferno.nn.chunks import in_chunks
from inferno.nn.conv import CausalConv, causal_conv
from inferno.nn.cut import Cut
from inferno.nn.decoder import (
    CausalLM,
    Decoder,
    DecoderLayer,
    ParallelDecoderLayer,
    PostNormDecoderLayer,
    SandwichDecoderLayer,
)
from inferno.nn.delta import gated_delta
from inferno.nn.embedding import Embedding, LMHead, TiedLMHead
from inferno.nn.fp8 import Fp8Blocks
from inferno.nn.latent import LATENT_EPS, LatentAttention
from inferno.nn.layer import Divisible, Finalize, Layer, Stack, divide, finalize
from inferno.nn.linear import Linear, MergedLinear
from inferno.nn.media import (
    AudioEncoder,
    DeepstackLayer,
    ImageEncoder,
    ImageInputs,
    MediaEncoder,
    MRope,
    SeeingDecoder,
    grid_inputs,
    grid_positions,
)
from inferno.nn.mlp import Activation, FusedGatedMLP, GatedMLP
from inferno.nn.moe import Experts, MixtureOfExperts, Router, Routing, sum_once
from inferno.nn.mtp import MTPLayer, MTPLayers
from inferno.nn.norm import LayerNorm, ProjectionNorm, RMSNorm
from inferno.nn.packed import (
    IntGroups,
    Permuted,
    Wrapper,
    column_order,
    packed_nibbles,
    packed_words,
    stacked_inside,
    unpacked_words,
)
from inferno.nn.pipeline import WHOLE, Absent, Edges, Staged, keep_layers, present
from inferno.nn.rope import NoRope, NoRotation, QueryScalingRope, Rope, RopeByKind, Rotation
from inferno.nn.self_attention import SelfAttention
from inferno.nn.siglip import SiglipTower
from inferno.nn.spans import SpanAttention
from inferno.nn.ssm import Mamba2Mixer, ssd
from inferno.nn.state import State
from inferno.nn.table import TableGroups
from inferno.nn.token_types import TokenTypes
from inferno.nn.vision import (
    DeepEncoder,
    DeepstackLM,
    PatchEmbed,
    VisionAttention,
    VisionMLP,
    patch_angles,
    patch_places,
    turned,
)
from inferno.nn.w8a8 import W8A8
from inferno.nn.weight import Dense, Unloaded, Weight

__all__ = [
    "W8A8",
    "WHOLE",
    "Absent",
    "Activation",
    "Attention",
    "AudioEncoder",
    "ByStep",
    "CausalConv",
    "CausalLM",
    "Cut",
    "Decoder",
    "DecoderLayer",
    "DeepEncoder",
    "DeepstackLM",
    "DeepstackLayer",
    "Dense",
    "Divisible",
    "Edges",
    "Embedding",
    "Experts",
    "Finalize",
    "Fp8Blocks",
    "FusedGatedMLP",
    "GatedMLP",
    "ImageEncoder",
    "IntGroups",
    "LMHead",
    "LATENT_EPS",
    "LatentAttention",
    "Layer",
    "LayerNorm",
    "Linear",
    "MRope",
    "MTPLayer",
    "MTPLayers",
    "MediaEncoder",
    "Mamba2Mixer",
    "MergedLinear",
    "MixtureOfExperts",
    "NoRope",
    "NoRotation",
    "ParallelDecoderLayer",
    "PatchEmbed",
    "Permuted",
    "PostNormDecoderLayer",
    "ProjectionNorm",
    "RMSNorm",
    "Rope",
    "QueryScalingRope",
    "RopeByKind",
    "Rotation",
    "Router",
    "Routing",
    "SandwichDecoderLayer",
    "SeeingDecoder",
    "ImageInputs",
    "SelfAttention",
    "SiglipTower",
    "Stack",
    "SpanAttention",
    "Staged",
    "State",
    "TableGroups",
    "TiedLMHead",
    "TokenTypes",
    "Unloaded",
    "VisionAttention",
    "VisionMLP",
    "Weight",
    "Wrapper",
    "causal_conv",
    "column_order",
    "divide",
    "finalize",
    "channel_gated_delta",
    "gated_delta",
    "grid_inputs",
    "grid_positions",
    "in_chunks",
    "keep_layers",
    "packed_nibbles",
    "packed_words",
    "patch_angles",
    "patch_places",
    "present",
    "sines",
    "ssd",
    "stacked_inside",
    "sum_once",
    "turned",
    "unpacked_words",
    "WhisperLayer",
    "WhisperTower",
]
