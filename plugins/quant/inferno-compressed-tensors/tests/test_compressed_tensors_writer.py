"""Folders of compressed-tensors, written and read back."""

from __future__ import annotations

from inferno.contracts import WriteOptions
from inferno.testing import WriterTests


class TestPacked(WriterTests):
    writer = "compressed-tensors"
    tolerance = 0.12


class TestWholeRows(WriterTests):
    writer = "compressed-tensors"
    options = WriteOptions(group=-1)
    tolerance = 0.2
