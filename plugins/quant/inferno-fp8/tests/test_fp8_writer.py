"""FP8 folders, written and read back."""

from __future__ import annotations

import torch

from inferno.contracts import WriteOptions
from inferno.testing import TOY_SIZES, WriterTests
from inferno_fp8.encoding import Fp8Encoding

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TOY_SIZES}


class TestFp8(WriterTests):
    config = LLAMA
    writer = "fp8"
    options = WriteOptions()
    tolerance = 0.05


def test_blocks_at_the_edges_and_zeros() -> None:
    weight_OI = torch.randn(200, 300, generator=torch.Generator().manual_seed(0))
    weight_OI[:128, :128] = 0
    encoding = Fp8Encoding()
    parts = encoding.encode("m", weight_OI, None)
    for part, info in dict(encoding.parts("m", (200, 300))).items():  # type: ignore[arg-type]
        assert (str(parts[part].dtype), tuple(parts[part].shape)) == (
            f"torch.{info.dtype}",
            info.shape,
        )
    scales = parts["weight_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
    values = parts["weight"].float() * scales[:200, :300]
    assert (values[:128, :128] == 0).all()
    assert (values - weight_OI).norm() / weight_OI.norm() < 0.04
