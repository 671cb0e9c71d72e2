"""Dense matrices become the blocks that ggml makes of them: with native quantizers byte by byte,
with torch's to within rounding."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferno.contracts import QUANTIZE, Device, KernelNeed, Refused
from inferno.errors import UnsupportedError
from inferno.testing import ggml_vectors, load_catalog
from inferno_gguf.blocks import unpack
from inferno_gguf.ggml import BY_NAME, PACKABLE
from inferno_gguf.quantize import pack
from inferno_gguf.sizes import packs


@cache
def native() -> Any:
    """A kernel provider's quantizer."""
    need = KernelNeed(op=QUANTIZE, layout="q4_k", dtype="float32", device=Device("cpu"))
    offer = load_catalog().kernel(need)[0]
    if offer is None:
        pytest.skip("no native kernels are installed")
    return offer.item.ops[QUANTIZE]


@pytest.mark.parametrize("case", ggml_vectors.VECTORS)
def test_native_blocks_are_ggmls(case: str) -> None:
    layout, _, weighted = case.partition(" ")
    blocks = pack(
        layout,
        ggml_vectors.matrix(),
        importance=ggml_vectors.importance() if weighted else None,
        quantize=native(),
    )
    assert ggml_vectors.digest(blocks.data) == ggml_vectors.VECTORS[case][0]
    assert ggml_vectors.error_of(unpack(layout, blocks.data), bool(weighted)) == pytest.approx(
        ggml_vectors.VECTORS[case][1], abs=1e-6
    )


@pytest.mark.parametrize("case", ggml_vectors.VECTORS)
def test_torchs_blocks_are_as_good(case: str) -> None:
    layout, _, weighted = case.partition(" ")
    blocks = pack(
        layout, ggml_vectors.matrix(), importance=ggml_vectors.importance() if weighted else None
    )
    error = ggml_vectors.error_of(unpack(layout, blocks.data), bool(weighted))
    assert error <= ggml_vectors.VECTORS[case][1] * 1.002


@pytest.mark.parametrize("layout", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_plain_types_are_gguf_pys(layout: str) -> None:
    """Both ways: gguf-py's quantizers, which equal ggml's."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import quantize

    wanted = quantize(ggml_vectors.matrix().numpy(), GGMLQuantizationType(BY_NAME[layout].number))
    for given_quantize in (None, native()):
        ours = pack(layout, ggml_vectors.matrix(), quantize=given_quantize).data
        assert torch.equal(ours, torch.from_numpy(wanted))


def test_torch_quantizes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pack("q4_k", ggml_vectors.matrix()).data
    monkeypatch.setattr("inferno_gguf.quantize.CHUNK", 1000)
    assert torch.equal(pack("q4_k", ggml_vectors.matrix()).data, whole)


@settings(max_examples=60, deadline=None)
@given(
    layout=st.sampled_from(sorted(PACKABLE)),
    rows=st.integers(1, 5),
    blocks=st.integers(1, 3),
    seed=st.integers(0, 1 << 16),
    scale=st.sampled_from([1e-12, 1e-4, 1.0, 1e3]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    weighted=st.booleans(),
)
def test_any_shape_and_type_is_near_the_matrix(
    layout: str,
    rows: int,
    blocks: int,
    seed: int,
    scale: float,
    dtype: torch.dtype,
    weighted: bool,
) -> None:
    columns = blocks * BY_NAME[layout].values
    random = torch.Generator().manual_seed(seed)
    weight_OI = (torch.randn(rows, columns, generator=random) * scale).to(dtype)
    given_importance = torch.rand(columns, generator=random) + 0.1 if weighted else None
    ours = [
        pack(layout, weight_OI, importance=given_importance, quantize=quantize)
        for quantize in (None, native())
    ]
    planned = packs(layout, (rows, columns), str(dtype).removeprefix("torch."))
    for each in ours:
        assert each.shape == planned.shape and each.layout == planned.layout
        assert each.data.nbytes == planned.nbytes
    errors = [float((unpack(layout, each.data) - weight_OI.float()).norm()) for each in ours]
    # Rounding may choose another of two candidates that are nearly as good.
    assert errors[0] == pytest.approx(errors[1], rel=0.1, abs=1e-6 * scale)
    if scale >= 1e-4 and weight_OI.abs().max() > 0:
        assert errors[1] <= 0.6 * float(weight_OI.float().norm())


@pytest.mark.parametrize("layout", sorted(PACKABLE))
def test_numbers_that_are_not_finite_do_no_harm(layout: str) -> None:
    weight_OI = ggml_vectors.matrix().clone()
    weight_OI[0, 0], weight_OI[1, 300] = torch.nan, torch.inf
    blocks = pack(layout, weight_OI, quantize=native())
    assert unpack(layout, blocks.data[2:]).isfinite().all(), "other rows are not touched"


@pytest.mark.parametrize("layout", sorted(PACKABLE))
def test_rows_that_are_not_whole_blocks_are_refused(layout: str) -> None:
    columns = BY_NAME[layout].values + 8
    with pytest.raises(Refused, match="not divisible"):
        packs(layout, (4, columns), "bfloat16")
    with pytest.raises(UnsupportedError, match="not divisible") as caught:
        pack(layout, torch.zeros(4, columns))
    assert caught.value.remedy


def test_a_fallback_takes_rows_of_32() -> None:
    for layout, others in PACKABLE.items():
        assert bool(others) == (BY_NAME[layout].values == 256)
        for other in others:
            assert packs(other, (4, 288), "bfloat16").layout == other
