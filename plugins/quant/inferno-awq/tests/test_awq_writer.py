"""AWQ folders, written and read back."""

from __future__ import annotations

import torch

from inferno.contracts import Seen
from inferno.nn import nearest
from inferno.testing import TOY_SIZES, WriterTests
from inferno_awq.encoding import AwqEncoding

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TOY_SIZES}


class TestAwq(WriterTests):
    config = LLAMA
    writer = "awq-int4"
    tolerance = 0.12


def test_the_scales_that_are_found_lower_the_error_of_products() -> None:
    """Of matrices whose inputs have a few large columns."""
    generator = torch.Generator().manual_seed(0)
    x_NI = torch.randn(500, 64, generator=generator) * torch.logspace(-1, 1.5, 64)
    seen = Seen(gram_II=x_NI.T @ x_NI, mean_I=x_NI.abs().mean(0), count=500)
    tensors = {
        "input_layernorm.weight": torch.rand(64, generator=generator) + 0.5,
        **{
            f"self_attn.{name}_proj.weight": torch.randn(32, 64, generator=generator)
            for name in "qkv"
        },
    }
    encoding = AwqEncoding(32)
    paths = [f"self_attn.{name}_proj" for name in "qkv"]
    changed = encoding.scaled(tensors, dict.fromkeys(paths, seen))
    assert changed.keys() == tensors.keys()
    scale_I = tensors["input_layernorm.weight"] / changed["input_layernorm.weight"]
    for path in paths:
        name = f"{path}.weight"
        assert torch.allclose(changed[name], tensors[name] * scale_I, rtol=1e-5)
        plain, scaled = (
            nearest(weight, encoding._grid(weight)).values()
            for weight in (tensors[name], changed[name])
        )
        errors = [(x_NI @ (w - tensors[name]).T).norm() for w in (scaled / scale_I, plain)]
        assert errors[0] < 0.9 * errors[1]


def test_layers_with_other_names_keep_their_scales() -> None:
    assert AwqEncoding(32).scaled({"norm.weight": torch.ones(64)}, {}) == {}
