"""AWQ folders, written and read back."""

from __future__ import annotations

import torch

from inferno.contracts import Seen
from inferno.ops.rounding import nearest
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
    x_NI = torch.randn(500, 64, generator=generator)
    x_NI[:, ::16] *= 30
    seen = Seen(gram_II=x_NI.T @ x_NI, mean_I=x_NI.abs().mean(0), count=500)
    weights = [torch.randn(32, 64, generator=generator) for _ in range(3)]
    encoding = AwqEncoding(32)
    scale_I = encoding.scale([(weight_OI, seen) for weight_OI in weights])
    whole_OI = torch.cat(weights)
    plain, scaled = (
        nearest(values, encoding._grid(values)).values()
        for values in (whole_OI, whole_OI * scale_I)
    )
    errors = [(x_NI @ (w - whole_OI).T).norm() for w in (scaled / scale_I, plain)]
    assert errors[0] < 0.8 * errors[1]
