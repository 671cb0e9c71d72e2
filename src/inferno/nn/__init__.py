"""The building blocks of models: only those that at least two architectures use."""

from inferno.nn.attention import Attention
from inferno.nn.decoder import (
    CausalLM,
    Decoder,
    DecoderLayer,
    ParallelDecoderLayer,
    SandwichDecoderLayer,
)
from inferno.nn.embedding import Embedding, LMHead, TiedLMHead
from inferno.nn.layer import Finalize, Layer, Stack, finalize
from inferno.nn.linear import Linear, MergedLinear
from inferno.nn.mlp import Activation, FusedGatedMLP, GatedMLP
from inferno.nn.moe import Experts, MixtureOfExperts, Router, Routing
from inferno.nn.norm import LayerNorm, RMSNorm
from inferno.nn.rope import Rope, Rotation
from inferno.nn.self_attention import SelfAttention
from inferno.nn.state import State
from inferno.nn.weight import Dense, Unloaded, Weight

__all__ = [
    "Activation",
    "Attention",
    "CausalLM",
    "Decoder",
    "DecoderLayer",
    "Dense",
    "Embedding",
    "Experts",
    "Finalize",
    "FusedGatedMLP",
    "GatedMLP",
    "LMHead",
    "Layer",
    "LayerNorm",
    "Linear",
    "MergedLinear",
    "MixtureOfExperts",
    "ParallelDecoderLayer",
    "RMSNorm",
    "Rope",
    "Rotation",
    "Router",
    "Routing",
    "SandwichDecoderLayer",
    "SelfAttention",
    "Stack",
    "State",
    "TiedLMHead",
    "Unloaded",
    "Weight",
    "finalize",
]
