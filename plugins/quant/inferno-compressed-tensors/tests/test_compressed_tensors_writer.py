"""Folders of compressed-tensors, written and read back."""

from __future__ import annotations

from inferno.contracts import WriteOptions
from inferno.testing import TOY_SIZES, WriterTests

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TOY_SIZES}


class TestPacked(WriterTests):
    config = LLAMA
    writer = "compressed-tensors"
    tolerance = 0.12


class TestWholeRows(WriterTests):
    config = LLAMA
    writer = "compressed-tensors"
    options = WriteOptions(group=-1)
    tolerance = 0.2
