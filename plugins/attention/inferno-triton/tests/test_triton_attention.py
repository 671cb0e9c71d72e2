"""The kernels of paged attention, interpreted on the CPU with the tiles of each chip, against naive
attention in float64; and compiled, where there is a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from triton_interpreter import interpreted
from triton_on_cpu import H200, on_cpu
from triton_on_cpu import catalog as plugins

from inferno.contracts import AttentionNeed, Device
from inferno.testing import AttentionBackendTests, Catalog
from inferno_triton import attend, attention, codes, paged, parts
from inferno_triton.tiles import CHIPS, Work, chip_of, tile_of


class InterpretedTests(AttentionBackendTests):
    backend = "triton"
    sparse = True
    chip = "sm_86"

    @pytest.fixture(scope="class")
    @classmethod
    def catalog(cls) -> Catalog:
        return plugins(cls.chip)

    @pytest.fixture(autouse=True)
    def interpreter(self) -> Iterator[None]:
        with on_cpu(CHIPS[self.chip]):
            yield


class TestInterpreted(InterpretedTests):
    """With the tiles of a small chip, which converts FP8 by integer operations."""

    longest = 110

    def grid(self) -> Iterator[AttentionNeed]:
        """Plain attention."""
        yield next(super().grid())

    # Interpreted, each of these takes seconds; other backends show in make test what they ask.

    @pytest.mark.slow
    def test_8_bit_caches_lose_little(self, item: Any, catalog: Catalog) -> None:
        super().test_8_bit_caches_lose_little(item, catalog)

    @pytest.mark.slow
    def test_inputs_of_a_trained_model_are_as_exact(self, item: Any, catalog: Catalog) -> None:
        super().test_inputs_of_a_trained_model_are_as_exact(item, catalog)

    @pytest.mark.slow
    def test_slot_minus_1_of_length_0_changes_nothing(self, item: Any, catalog: Catalog) -> None:
        super().test_slot_minus_1_of_length_0_changes_nothing(item, catalog)


@pytest.mark.slow
class TestFeatures(InterpretedTests):
    def grid(self) -> Iterator[AttentionNeed]:
        """A window beside a soft cap, and rarer features, besides plain attention."""
        needs = list(super().grid())
        yield from (needs[0], *needs[-5:])


@pytest.mark.slow
class TestGrid(InterpretedTests):
    """Each pair of values of the grid's axes."""


@pytest.mark.slow
class TestStretches(InterpretedTests):
    """Contexts of a few blocks have several stretches, with the tiles of a large chip: computed by
    a program each in steps of few tokens, otherwise by one."""

    chip = "sm_90"
    same_bits = True
    dtypes = ("float16",)
    block_sizes = (16,)

    def grid(self) -> Iterator[AttentionNeed]:
        """Plain attention, sinks beside a window, and latent attention."""
        needs = list(super().grid())
        yield from (needs[0], needs[-3], needs[-1])

    @pytest.fixture(autouse=True)
    def short_stretches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(attend, "STRETCH", 16)
        monkeypatch.setattr(attend, "AT_ONCE", 2)
        monkeypatch.setattr(attend, "MAX_PARTS", 1 << 10)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
class TestCompiled(AttentionBackendTests):
    backend = "triton"
    device = "cuda"
    dtypes = ("bfloat16", "float16", "float32")
    block_sizes = (16, 64)


def stored_rows(kind: str, x_TC: torch.Tensor, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of the rows as keys of one head, in a block of as many tokens."""
    T, C = x_TC.shape
    item = torch.float8_e4m3fn if kind.startswith("fp8") else torch.int8
    stored = torch.zeros(1, 1, T, C, dtype=item)
    scales = torch.full((1, 1, T), torch.nan)
    raw = stored.view(torch.uint8) if kind == "fp8_bits" else stored
    with interpreted(paged, codes, parts):
        paged.store[(-(-T // 16), 1)](
            x_TC, x_TC, raw, raw, scales, scales, torch.arange(T), T, C, C, C, C,
            HEADS=1, C=C, V=C, CP=C, VP=C, PAGE=T, BT=16, VALUES=False, KIND=kind,
        )  # fmt: skip
    return stored[0, 0].float(), scales[0, 0]


@pytest.mark.parametrize("kind", ["int8", "fp8", "fp8_bits"])
def test_8_bit_elements_are_the_nearest(kind: str) -> None:
    """Rows divided by their scale and rounded as torch does: zeros, tiny and huge values too."""
    x_TC = torch.randn(48, 64, generator=torch.Generator().manual_seed(0))
    x_TC *= torch.logspace(-44, 37, 48)[:, None]
    x_TC[3] = 0.0
    codes_TC, scales_T = stored_rows(kind, x_TC)
    largest = 127.0 if kind == "int8" else 448.0
    top_T = x_TC.abs().amax(-1)
    usable_T = top_T > 2e-36
    torch.testing.assert_close(scales_T[usable_T], (top_T / largest)[usable_T])
    assert (scales_T[~usable_T] == 0).all() and (codes_TC[~usable_T] == 0).all()
    over_TC = (x_TC * (largest / top_T)[:, None])[usable_T]
    expected = over_TC.round() if kind == "int8" else over_TC.to(torch.float8_e4m3fn).float()
    same = codes_TC[usable_T] == expected
    assert same.double().mean() > 0.99, "but for ties that the scale's own rounding decides"


def test_fp8_by_integer_operations_is_fp8() -> None:
    """Every code's value and the values between two codes, ties included, give torch's bits."""
    codes = torch.arange(256, dtype=torch.uint8)
    values = codes.view(torch.float8_e4m3fn).float()
    values = values[values.isfinite()].sort().values
    middle = (values[1:] + values[:-1]) / 2
    x_TC = torch.cat([values, middle, middle.nextafter(values[1:]), values[:2]])
    x_TC = x_TC[: len(x_TC) // 16 * 16].view(-1, 16).clone()
    x_TC[:, 0] = 448.0  # the scale is 1
    codes_TC, scales_T = stored_rows("fp8_bits", x_TC)
    assert (scales_T == 1).all()
    assert torch.equal(codes_TC, x_TC.to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (Device("cpu"), "it runs on CUDA devices, not on cpu"),
        (Device("cuda", capability=(7, 5)), "it needs compute capability 8.0, cuda:0 has 7.5"),
        (Device("cuda"), "the driver does not tell the compute capability of cuda:0"),
        (Device("mps"), "it runs on CUDA devices, not on mps"),
    ],
    ids=str,
)
def test_a_device_it_cannot_use_is_refused_with_the_reason(device: Device, said: str) -> None:
    need = AttentionNeed(
        num_heads=8, num_kv_heads=2, head_dim=64, scale=1.0, dtype="float16", device=device
    )
    assert attention.refuses(need) == said


def test_without_triton_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "find_spec", lambda name: None)
    assert attention.refuses_device(H200) == (
        "triton is not installed: torch's builds for CUDA bring it"
    )


WORKS: tuple[Work, ...] = ("tokens", "words", "prompts")


def test_every_chip_has_tiles() -> None:
    assert chip_of((9, 0)) is CHIPS["sm_90"] and chip_of((9, 4)) is CHIPS["gfx942"]
    assert chip_of((12, 0), 101_376) is CHIPS["sm_89"], "its thread blocks have as little memory"
    assert chip_of((99, 0), 1 << 20) is CHIPS["sm_100"]
    for chip in CHIPS.values():
        for dim in (16, 64, 96, 128, 192, 256):
            for page in (4, 16, 64):
                for work in WORKS:
                    tile = tile_of(chip, work, dim, 2, page)
                    assert 16 <= tile.keys <= max(16, page) and attend.STRETCH % tile.keys == 0
                keys = {tile_of(chip, work, dim, 2, page).keys for work in WORKS}
                assert len(keys) == 1, "a row's sums have one order"
