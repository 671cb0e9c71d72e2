"""The kernels beside attention: interpreted on the CPU against torch's definitions, compiled for
chips that are not here, and compiled and run where there is a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from triton_compiler import compiled, launches
from triton_interpreter import interpreted

from inferno.contracts import Device, IntLayout, KernelNeed, KernelProvider
from inferno.nn import IntGroups, Weight
from inferno.testing import Catalog, KernelProviderTests, load_catalog
from inferno_triton import kernels, linear, ops, packed, rows
from inferno_triton.tiles import CHIPS

H200 = Device("cuda", name="NVIDIA H200", capability=(9, 0), shared_memory=232_448)


class TestInterpreted(KernelProviderTests):
    provider = "triton"
    linear_tolerance = 0.5

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> KernelProvider:
        offers = load_catalog().of("inferno_kernels")
        installed: KernelProvider = next(o.item for o in offers if o.item.name == "triton")

        def refuses(need: KernelNeed) -> str | None:
            device = H200 if need.device.kind == "cpu" else need.device
            return kernels.refuses(attrs.evolve(need, device=device))

        return attrs.evolve(installed, refuses=refuses)

    @pytest.fixture(autouse=True)
    def interpreter(self) -> Iterator[None]:
        with interpreted(rows, packed):
            yield

    def weights(self, rows: int, columns: int, dtype: torch.dtype) -> Iterable[Weight]:
        """Of each group size, with and without zero points."""
        generator = torch.Generator().manual_seed(rows + columns)
        for group, symmetric in ((128, False), (64, True), (32, False)):
            yield random_int4(rows, columns, group, symmetric, dtype, generator)


def random_int4(
    rows: int,
    columns: int,
    group: int,
    symmetric: bool,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> IntGroups:
    data = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, generator=generator)
    scales = torch.rand((rows, columns // group), generator=generator).half() / 16
    zeros = torch.randint(0, 16, scales.shape, generator=generator).half()
    return IntGroups(data, scales, None if symmetric else zeros, 4, dtype)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
class TestCompiled(KernelProviderTests):
    provider = "triton"
    device = "cuda"


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotations_of_pairs_that_are_neighbours(interleaved: bool) -> None:
    from inferno.nn import ops as reference

    generator = torch.Generator().manual_seed(0)
    x_THC, weight_C = torch.randn(3, 5, 80, generator=generator), torch.randn(80)
    angle_TE = torch.randn(3, 32, generator=generator)
    arguments = (x_THC, weight_C, 1e-6, angle_TE.cos(), angle_TE.sin(), interleaved)
    with interpreted(rows):
        found = ops.norm_rope(*arguments)
    torch.testing.assert_close(found, reference.norm_rope(*arguments))


@pytest.mark.parametrize("chip", ["sm_80", "sm_86", "sm_90", "sm_100", "gfx942"])
def test_they_compile_for_chips_that_are_not_here(chip: str) -> None:
    """Within shared memory, without spilled registers; codes are loaded 16 bytes at once, not byte
    by byte."""

    def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    with launches(rows) as found, launches(packed) as products:
        ops.rms_norm(meta(8, 4096), meta(4096), 1e-6)
        ops.add_rms_norm(meta(8, 4096), meta(8, 4096), meta(4096), 1e-6)
        angles = meta(8, 64, dtype=torch.float32)
        ops.norm_rope(meta(8, 32, 128), meta(128), 1e-6, angles, angles)
        ops.silu_mul(meta(8, 12288), meta(8, 12288))
        for tokens, group in ((1, 128), (64, 32)):
            layout = IntLayout(bits=4, group=group)
            grid = meta(4096, 4096 // group, dtype=torch.float16)
            data = meta(4096, 2048, dtype=torch.uint8)
            inner = IntGroups(data, grid, grid, layout.bits, torch.bfloat16)
            weight = linear.stack(inner)
            assert weight is not None
            weight.matmul(meta(tokens, 4096))
    assert len(found) == 4 and len(products) == 2
    for launch in (*found, *products):
        machine = compiled(launch, chip)
        name = f"{launch.kernel.fn.__name__}: {machine}"
        assert machine.shared_memory <= CHIPS[chip].shared_memory, name
        assert machine.spilled == 0, name
        if launch in products:
            assert machine.count(r"LDG\S*\.U8|LDGSTS\S*\.U8|load_ubyte") == 0, name
            assert machine.count(r"\.128|dwordx4|_b128") > 0, name


def test_what_it_refuses() -> None:
    need = KernelNeed(op="linear", dtype="bfloat16", device=H200, layout="int4_g128")
    assert kernels.refuses(need) is None
    assert kernels.refuses(attrs.evolve(need, shape=(64, 200))) == (
        "the columns must be divisible by 128, not 200"
    )
    assert kernels.refuses(attrs.evolve(need, layout="q4_k")) == (
        "it has no kernel for matrices stored as q4_k"
    )
    assert "float32" in str(kernels.refuses(attrs.evolve(need, dtype="float32")))
    assert "it runs on CUDA devices" in str(
        kernels.refuses(attrs.evolve(need, device=Device("cpu")))
    )
