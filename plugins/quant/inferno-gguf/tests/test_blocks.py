"""Unpacking is gguf-py's, bit by bit; the weights compute with it; the table of types is ggml's.

Suffixes: O rows, I columns, B bytes of a packed row, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inferno.contracts import QuantScheme
from inferno.errors import CheckpointError
from inferno.nn import Dense
from inferno.testing import QuantSchemeTests, alike, load_catalog, stored_matrix
from inferno_gguf.blocks import Blocks, unpack
from inferno_gguf.ggml import BY_NAME, PACKABLE, PACKED, RECODED, TYPES, UNPACKED

repeatable = settings(deadline=None, derandomize=True, database=None)

HALVES = {
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "q8_0": (0,),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "iq4_nl": (0,),
    "iq4_xs": (0,),
}
"""Where the float16 scales of a block lie: random bytes alone would rarely make them extreme."""
EXTREME = [
    0x0000,
    0x8000,
    0x0001,
    0x8001,
    0x03FF,
    0x0400,
    0x7BFF,
    0xFBFF,
    0x7C00,
    0xFC00,
    0x7E00,
    0x3C00,
]
"""float16: zeros, subnormals, the smallest normal, the largest, infinities, NaN, one."""


def scheme(name: str) -> QuantScheme:
    return load_catalog().named(QuantScheme, name).item


def random_blocks(layout: str, rows: int, blocks: int, seed: int, halves: list[int]) -> Tensor:
    kind = BY_NAME[layout]
    data = np.random.default_rng(seed).integers(
        0, 256, (rows * blocks, kind.nbytes), dtype=np.uint8
    )
    for offset, half in zip(HALVES.get(layout, ()), halves, strict=False):
        data[:: 1 + seed % 3, offset : offset + 2] = np.frombuffer(
            np.uint16(half).tobytes(), np.uint8
        )
    return torch.from_numpy(data.reshape(rows, blocks * kind.nbytes))


def reference(layout: str, data_OB: Tensor) -> Tensor:
    with np.errstate(all="ignore"):
        return torch.from_numpy(
            dequantize(data_OB.numpy(), GGMLQuantizationType(BY_NAME[layout].number))
        )


def assert_same_bits(ours: Tensor, theirs: Tensor) -> None:
    assert ours.dtype == theirs.dtype == torch.float32
    nan = theirs.isnan()
    assert torch.equal(ours.isnan(), nan)
    assert torch.equal(ours[~nan].view(torch.int32), theirs[~nan].view(torch.int32))


def test_the_table_of_types_is_ggmls() -> None:
    for kind in TYPES:
        theirs = GGMLQuantizationType(kind.number)
        assert (theirs.name.lower(), GGML_QUANT_SIZES[theirs]) == (
            kind.name,
            (kind.values, kind.nbytes),
        )
    assert {t.name for t in TYPES if t.dtype is None} == {*PACKED, *RECODED, *UNPACKED}
    missing = {t.name for t in GGMLQuantizationType} - {t.name.upper() for t in TYPES}
    assert missing <= {"Q8_1", "Q8_K", "Q1_0"}, (
        "gguf-py knows types that files may hold and we cannot read"
    )


@alike
@pytest.mark.parametrize("layout", PACKED)
def test_unpacking_is_bit_exact(layout: str) -> None:
    @repeatable
    @given(
        st.integers(1, 7),
        st.integers(1, 3),
        st.integers(0, 2**32 - 1),
        st.lists(st.sampled_from(EXTREME) | st.integers(0, 0xFFFF), min_size=2, max_size=2),
    )
    def run(rows: int, blocks: int, seed: int, halves: list[int]) -> None:
        data_OB = random_blocks(layout, rows, blocks, seed, halves)
        assert_same_bits(unpack(layout, data_OB), reference(layout, data_OB))

    run()


@pytest.mark.parametrize("layout", PACKED)
def test_every_byte_of_a_block_counts(layout: str) -> None:
    """Each byte in turn is inverted: the values change, as the reference's do."""
    [base] = random_blocks(layout, 1, 1, 3, [0x3C00, 0x3800])
    data = base.repeat(len(base) + 1, 1)
    data[:-1].fill_diagonal_(0)
    data[:-1] += torch.diag(~base)
    values = unpack(layout, data)
    assert_same_bits(values, reference(layout, data))
    assert not (values[:-1] == values[-1]).all(1).any()


LOST = {"q2_k": 0.35, "q3_k": 0.2}
"""Relative errors of the types of fewer than four bits."""


class BlockTests(QuantSchemeTests):
    shapes = ((6, 512), (7, 256))

    @pytest.fixture(autouse=True)
    def several_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The last one short."""
        for module in ("blocks", "quantize", "recoded", "unpacked"):
            monkeypatch.setattr(f"inferno_gguf.{module}.CHUNK", 1100)

    def parts(self, rows: int, columns: int, seed: int) -> dict[str, Tensor]:
        """Those of many random blocks that are neither infinite nor huge."""
        count = rows * columns // BY_NAME[self.scheme].values
        blocks = random_blocks(self.scheme, 32 * count, 1, seed, [])
        if self.scheme in RECODED:
            blocks[:, 0] = 0  # two bits of a scale remain: its products are exact in float16
        chosen = blocks[(reference(self.scheme, blocks).abs() < 100).all(1)][:count]
        return {self.scheme: chosen.reshape(rows, -1)}

    def dense(self, parts: Mapping[str, Tensor]) -> Tensor:
        return reference(self.scheme, parts[self.scheme])


globals().update(
    {
        f"Test_{name}": type(
            f"Test_{name}", (BlockTests,), {"scheme": name, "lost": LOST.get(name, 0.15)}
        )
        for name in (*PACKED, *RECODED, *UNPACKED)
    }
)


def test_other_layouts_do_not_stack() -> None:
    one, other = (
        Blocks(name, random_blocks(name, 2, 1, 0, []), torch.float32) for name in ("q4_k", "q6_k")
    )
    assert one.concatenate([other]) is None


@pytest.mark.parametrize("shape", [(3, 143), (2, 3, 144), (144,)])
def test_bytes_that_are_no_rows_of_blocks_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(CheckpointError, match="q4_k"):
        Blocks("q4_k", torch.zeros(shape, dtype=torch.uint8), torch.float32)


@pytest.mark.parametrize("layout", UNPACKED)
def test_other_types_are_unpacked_at_load(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferno_gguf.unpacked.CHUNK", 600)
    data_OB = random_blocks(layout, 5, 2, 3, [])
    parts = {layout: data_OB}
    weight = scheme(layout).load(stored_matrix(parts, {}), parts, dtype="bfloat16")
    assert isinstance(weight, Dense)
    expected = reference(layout, data_OB).bfloat16()
    assert torch.equal(weight.data.nan_to_num(7.0), expected.nan_to_num(7.0))


def test_iq4_xs_becomes_iq4_nl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only scales are rounded, to float16; in float32 nothing is."""
    monkeypatch.setattr("inferno_gguf.recoded.CHUNK", 600)
    data_OB = random_blocks("iq4_xs", 5, 2, 3, [0x2155])
    parts, exact = {"iq4_xs": data_OB}, reference("iq4_xs", data_OB)
    stored = stored_matrix(parts, {})
    weight = scheme("iq4_xs").load(stored, parts, dtype="bfloat16")
    assert isinstance(weight, Blocks) and weight.layout == "iq4_nl"
    storage = scheme("iq4_xs").holds(stored, "bfloat16")
    assert (storage.layout, storage.nbytes) == ("iq4_nl", weight.data.nbytes)
    values = unpack("iq4_nl", weight.data)
    assert torch.allclose(values, exact, rtol=2**-11, atol=0) and exact.abs().max() > 0
    assert scheme("iq4_xs").holds(stored, "float32").layout == ""
    dense = scheme("iq4_xs").load(stored, parts, dtype="float32")
    assert isinstance(dense, Dense) and torch.equal(dense.data, exact)


def test_iq4_xs_with_scales_beyond_float16_is_unpacked() -> None:
    data_OB = random_blocks("iq4_xs", 2, 1, 3, [])
    data_OB[:, :2] = torch.tensor([0xFF, 0x7B], dtype=torch.uint8)  # 65504
    parts = {"iq4_xs": data_OB}
    weight = scheme("iq4_xs").load(stored_matrix(parts, {}), parts, dtype="bfloat16")
    assert isinstance(weight, Dense)
    assert torch.equal(weight.data, reference("iq4_xs", data_OB).bfloat16())


def test_types_that_cannot_pack_say_so() -> None:
    assert all(
        scheme(name).pack is None for name in (*PACKED, *RECODED, *UNPACKED) if name not in PACKABLE
    )
