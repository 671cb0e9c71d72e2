"""The language that models are written in. Only what at least two architectures use."""

from inferno.nn.attention import Attention
from inferno.nn.decoder import CausalLM, Decoder, DecoderLayer
from inferno.nn.embedding import Embedding, LMHead, TiedLMHead
from inferno.nn.linear import Linear, MergedLinear
from inferno.nn.mlp import GatedMLP
from inferno.nn.norm import RMSNorm
from inferno.nn.rope import Rope, Rotation
from inferno.nn.weight import Dense, Unloaded, Weight

__all__ = [
    "Attention", "CausalLM", "Decoder", "DecoderLayer", "Dense", "Embedding", "GatedMLP", "LMHead", "Linear",
    "MergedLinear", "RMSNorm", "Rope", "Rotation", "TiedLMHead", "Unloaded", "Weight",
]  # fmt: skip
