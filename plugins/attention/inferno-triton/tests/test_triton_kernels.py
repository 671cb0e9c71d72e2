"""The kernels beside attention: interpreted on the CPU against torch's definitions and exact
products, and compiled and run where there is a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from triton_matrices import exact, random_blocks
from triton_on_cpu import H200, on_cpu, provider

from inferno.contracts import Device, IntLayout, KernelNeed, KernelProvider, TableLayout
from inferno.errors import CheckpointError
from inferno.nn import W8A8, Dense, Fp8Blocks, IntGroups, TableGroups, Weight
from inferno.nn.w8a8 import rounded_tokens
from inferno.ops import reference
from inferno.testing import Catalog, KernelProviderTests, alike
from inferno_triton import adapters, kernels, linear, ops, w8a8
from inferno_triton.ggml import FORMS
from inferno_triton.tiles import CHIPS


class Products(KernelProviderTests):
    """Plain matrices, integers with zero points, and blocks with steps and two planes. Values are
    rounded for many tokens, and not for few: a result may differ by a bfloat16's last bit."""

    provider = "triton"
    linear_tolerance = 1.5

    def weights(self, rows: int, columns: int, dtype: torch.dtype) -> Iterable[Weight]:
        yield Dense(torch.randn(rows, columns).to(dtype))
        if dtype == torch.float16:
            yield random_ints(IntLayout(bits=4, group=64), rows, columns, dtype)
        else:
            yield random_blocks("q6_k", rows, columns, dtype)


@pytest.mark.slow  # triton's interpreter
class TestInterpreted(Products):
    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> KernelProvider:
        return provider(catalog.named(KernelProvider, cls.provider).item)

    @pytest.fixture(autouse=True)
    def interpreter(self) -> Iterator[None]:
        with on_cpu():
            yield


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
class TestCompiled(KernelProviderTests):
    provider = "triton"
    device = "cuda"
    linear_tolerance = Products.linear_tolerance


def random_ints(layout: IntLayout, rows: int, columns: int, dtype: torch.dtype) -> IntGroups:
    generator = torch.Generator().manual_seed(rows + columns)
    shape, grid = (rows, columns * layout.bits // 8), (rows, columns // layout.group)
    data = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    scales = torch.rand(grid, generator=generator).half() / 16
    zeros = torch.randint(0, 1 << layout.bits, grid, generator=generator).half()
    return IntGroups(data, scales, None if layout.symmetric else zeros, layout.bits, dtype)


MATRICES = [
    *FORMS,
    IntLayout(bits=4, group=128, symmetric=True),
    IntLayout(bits=8, group=32),
    IntLayout(bits=8, group=64, symmetric=True),
    TableLayout(table="nf4", group=64),
]


@alike
@pytest.mark.parametrize("layout", MATRICES, ids=lambda each: getattr(each, "name", each))
def test_packed_products(layout: str | IntLayout | TableLayout) -> None:
    """Few and many tokens, and by the unpacked matrix; columns that are not whole blocks of the
    planes. Rows have the exact values; products are within half a bfloat16's last bit of every
    value, and twice that for the rounding of the result."""
    rows, columns = 20, 512
    if not isinstance(layout, str) or FORMS[layout].values < 256:
        columns -= 128
    if isinstance(layout, IntLayout):
        weight: Weight = random_ints(layout, rows, columns, torch.bfloat16)
    elif isinstance(layout, TableLayout):
        data = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
        scales = torch.rand(rows, columns // layout.group)
        weight = TableGroups(data, scales, layout.table, torch.bfloat16)
    else:
        weight = random_blocks(layout, rows, columns, torch.bfloat16)
    exact_OI = exact(weight)  # type: ignore[arg-type]
    ids_T = torch.tensor([3, 19, 0, 3])
    with on_cpu():
        ours = linear.stack(weight)
        assert ours is not None
        assert torch.equal(ours.rows(ids_T), exact_OI[ids_T].bfloat16())
        assert ours.matmul(torch.empty(0, columns, dtype=torch.bfloat16)).shape == (0, rows)
        for tokens in (1, 3, 18, 65):
            x_TI = torch.randn(tokens, columns, generator=torch.Generator().manual_seed(tokens))
            x_TI = x_TI.bfloat16()
            found_TO, wanted_TO = ours.matmul(x_TI).double(), x_TI.double() @ exact_OI.T
            magnitude_TO = x_TI.double().abs() @ exact_OI.abs().T
            assert ((found_TO - wanted_TO).abs() <= magnitude_TO * 2**-9 * 1.5).all(), tokens
            assert_float32(ours, x_TI)


def assert_float32(weight: Weight, x_TI: torch.Tensor) -> None:
    """Products for heads are not rounded to x's type; rounded, they are those for layers."""
    y_TO, rounded_TO = weight.matmul_float32(x_TI), weight.matmul(x_TI)
    assert y_TO.dtype == torch.float32 and (y_TO != rounded_TO).any()
    torch.testing.assert_close(y_TO.to(x_TI.dtype), rounded_TO, equal_nan=True)


@pytest.mark.parametrize("chip", ["sm_86", "sm_90"])
@pytest.mark.parametrize("block", [(1, 320), (64, 128)], ids=["rows", "blocks"])
def test_products_of_8_bit_floats(block: tuple[int, int], chip: str) -> None:
    """Few tokens by the exact values, on chips with and without FP8; many, with it, by activations
    rounded to 8 bits: within half a step of each."""
    rows, columns = 96, 320
    generator = torch.Generator().manual_seed(0)
    data_OI = (torch.randn(rows, columns, generator=generator) * 40).to(torch.float8_e4m3fn)
    grid = (-(-rows // block[0]), -(-columns // block[1]))
    scales = torch.rand(grid, generator=generator) / 40 + 1e-4
    weight = Fp8Blocks(data_OI, scales, block, torch.bfloat16)
    across = scales.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)
    exact_OI = data_OI.double() * across[:, :columns]
    starts_E1 = torch.tensor([0, 5, 5, 9], dtype=torch.int32)
    with on_cpu(CHIPS[chip]):
        ours = linear.stack(weight)
        assert ours is not None
        assert ours.matmul(torch.empty(0, columns, dtype=torch.bfloat16)).shape == (0, rows)
        for tokens in (3, 70):
            x_TI = torch.randn(tokens, columns, generator=generator).bfloat16()
            found_TO, wanted_TO = ours.matmul(x_TI).double(), x_TI.double() @ exact_OI.T
            magnitude_TO = x_TI.double().abs() @ exact_OI.abs().T
            rounded = tokens > 64 and CHIPS[chip].fp8
            bound = 2**-4 if rounded else 2**-8 if tokens > 64 else 2**-9
            assert ((found_TO - wanted_TO).abs() <= magnitude_TO * bound).all()
            assert_float32(ours, x_TI)
        if block[0] == 1:
            found_NO = ours.grouped(x_TI[:9], starts_E1).double()
            parts = zip(x_TI[:9].double().split([5, 0, 4]), exact_OI.chunk(3), strict=True)
            wanted_NO = torch.cat([part @ matrix.T for part, matrix in parts])
            torch.testing.assert_close(found_NO, wanted_NO, rtol=2**-7, atol=0.05)


@alike
@pytest.mark.parametrize("zeros", [False, True])
def test_products_with_rounded_activations(zeros: bool) -> None:
    """Activations are rounded as the definition does it, to the last bit; sums are exact. Tokens of
    zeros, and one that is not finite; columns whose last tile is not full."""
    rows, columns = 96, 320
    generator = torch.Generator().manual_seed(0)
    codes_OI = torch.randint(0, 256, (rows, columns), dtype=torch.uint8, generator=generator)
    scales_O1 = torch.rand(rows, 1, generator=generator) / 100
    zeros_O1 = torch.randint(100, 150, (rows, 1), generator=generator).float() if zeros else None
    weight = W8A8(codes_OI, scales_O1, zeros_O1, torch.bfloat16)
    ids_T, bias_O = torch.tensor([3, 95, 3]), torch.randn(rows, generator=generator).bfloat16()
    starts_E1 = torch.tensor([0, 5, 5, 9], dtype=torch.int32)
    with on_cpu():
        ours = linear.stack(weight)
        assert ours is not None
        assert torch.equal(ours.rows(ids_T), weight.rows(ids_T))
        assert ours.matmul(torch.empty(0, columns, dtype=torch.bfloat16)).shape == (0, rows)
        for tokens in (3, 70):
            x_TI = torch.randn(tokens, 2 * columns, generator=generator).bfloat16()[:, columns:]
            x_TI[1], x_TI[2, 5] = 0, torch.nan if tokens == 3 else 1e-38
            q_TI, scales_T, sums_T = w8a8.quantized(x_TI)
            wanted_TI, wanted_T1 = rounded_tokens(x_TI)
            assert torch.equal(q_TI, wanted_TI.to(torch.int8))
            torch.testing.assert_close(scales_T, wanted_T1[:, 0], rtol=0, atol=0, equal_nan=True)
            assert sums_T.tolist() == wanted_TI.sum(1).tolist()
            integers_OI = codes_OI.double() - (128 if zeros_O1 is None else zeros_O1)
            exact_TO = wanted_TI.double() @ integers_OI.T * wanted_T1 * scales_O1[:, 0] + bias_O
            found_TO = ours.matmul(x_TI, bias_O)
            torch.testing.assert_close(found_TO, exact_TO.bfloat16(), equal_nan=True)
            assert_float32(ours, x_TI)
        found_NO = ours.grouped(x_TI[:9], starts_E1, bias_O)
        torch.testing.assert_close(found_NO, weight.grouped(x_TI[:9], starts_E1, bias_O))


def test_a_float8_that_is_not_a_number_is_an_error() -> None:
    data_OI = torch.zeros(2, 128).to(torch.float8_e4m3fn)
    data_OI.view(torch.uint8)[1, 5] = 0xFF
    with pytest.raises(CheckpointError, match="contains NaN"):
        linear.stack(Fp8Blocks(data_OI, torch.ones(2, 1), (1, 128), torch.bfloat16))


def test_a_scale_of_every_size_is_exact() -> None:
    """MXFP4's smallest power of two is subnormal; others of each kind have their own bits."""
    weight = random_blocks("mxfp4", 8, 256, torch.float32)
    weight.data.view(8, 8, 17)[..., 0] = torch.arange(0, 254, 4, dtype=torch.uint8)[:64].view(8, 8)
    with on_cpu():
        ours = linear.stack(weight)
        assert ours is not None
        assert torch.equal(ours.rows(torch.arange(8)), weight.values())


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotations_of_pairs_that_are_neighbours(interleaved: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x_THC, weight_C = torch.randn(3, 5, 80, generator=generator), torch.randn(80)
    angle_TE = torch.randn(3, 32, generator=generator)
    arguments = (x_THC, weight_C, 1e-6, angle_TE.cos(), angle_TE.sin(), interleaved)
    with on_cpu():
        output = ops.norm_rope(*arguments)
    torch.testing.assert_close(output, reference.norm_rope(*arguments))


def test_the_best_token_of_a_row_of_several_blocks() -> None:
    logits_TV = torch.randn(4, 9001, generator=torch.Generator().manual_seed(0))
    logits_TV[0, [4100, 8999]] = 9.0  # the lower id, in another lane
    logits_TV[1, 5] = torch.nan
    logits_TV[2, 7], logits_TV[3] = torch.inf, -torch.inf
    with on_cpu():
        assert ops.argmax(logits_TV).tolist() == [4100, -1, -1, -1]


@alike
@pytest.mark.parametrize(
    ("tokens", "dtype"), [(0, torch.float32), (21, torch.float32), (70, torch.bfloat16)]
)
def test_adapters_of_many_slots(tokens: int, dtype: torch.dtype) -> None:
    """More than a tile has tokens, as experts have; a tile of one slot; ranks of several blocks and
    of a part of one."""
    generator = torch.Generator().manual_seed(tokens)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    slots_T = torch.randint(-1, 18, (tokens,), generator=generator)
    slots_T[20:60] = 5
    x_TI, y_TO, down_SRI = random(tokens, 70), random(tokens, 65 + 9), random(18, 70 + 5, 70)
    ups = [random(18, 70, 65), random(18, 5, 9)]
    with on_cpu():
        h_TR = adapters.shrink(x_TI, down_SRI, slots_T)
        found_TO = adapters.expand(y_TO.clone(), h_TR, ups, slots_T)
    assert h_TR.dtype == torch.float32 and found_TO.dtype == dtype
    own_T, none_T1 = slots_T.clamp(min=0), (slots_T < 0)[:, None]
    wanted_TR = torch.einsum("tri,ti->tr", down_SRI.double()[own_T], x_TI.double())
    wanted_TR.masked_fill_(none_T1, 0)
    torch.testing.assert_close(h_TR.double(), wanted_TR, rtol=1e-5, atol=1e-4)
    parts = zip(wanted_TR.split([70, 5], 1), ups, strict=True)
    deltas = [torch.einsum("tn,tno->to", h, up.double()[own_T]) for h, up in parts]
    wanted_TO = y_TO.double() + torch.cat(deltas, 1)
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    atol = tolerance * float(wanted_TO.abs().max()) if tokens else 0.0
    torch.testing.assert_close(found_TO.double(), wanted_TO, rtol=tolerance, atol=atol)


def test_what_it_refuses() -> None:
    need = KernelNeed(op="linear", dtype="bfloat16", device=H200, layout="int4_g128")
    assert kernels.refuses(need) is None
    assert kernels.refuses(attrs.evolve(need, layout="q4_k", op="grouped")) is None
    assert kernels.refuses(attrs.evolve(need, layout="bfloat16", op="grouped")) is None
    assert kernels.refuses(attrs.evolve(need, layout="fp8_128x128")) is None
    assert kernels.refuses(attrs.evolve(need, layout="w8a8_sym", op="grouped")) is None
    assert "fp8_64x64" in str(kernels.refuses(attrs.evolve(need, layout="fp8_64x64")))
    assert kernels.refuses(attrs.evolve(need, layout="iq4_xs")) == (
        "it has no kernel for matrices stored as iq4_xs"
    )
    assert "float32" in str(kernels.refuses(attrs.evolve(need, dtype="float32")))
    assert "it runs on CUDA devices" in str(
        kernels.refuses(attrs.evolve(need, device=Device("cpu")))
    )
