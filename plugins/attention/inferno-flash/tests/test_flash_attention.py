"""Each implementation of FlashAttention with a stand-in module, against naive attention
in float64; and itself, where there is a GPU."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import ClassVar

import attrs
import flash_stand_ins
import pytest
import torch

from inferno.contracts import AttentionBackend, AttentionNeed, Device
from inferno.testing import AttentionBackendTests, Catalog, load_catalog
from inferno_flash import variants
from inferno_flash.variants import FLASH_2, FLASH_3, FLASH_TORCH, Variant

H200 = Device("cuda", name="NVIDIA H200", capability=(9, 0), shared_memory=232_448)
A100 = Device("cuda", name="NVIDIA A100", capability=(8, 0), shared_memory=166_912)


def on_cpu(item: AttentionBackend, variant: Variant) -> AttentionBackend:
    """The backend for tensors on the CPU, where its package is installed."""
    installed = attrs.evolve(variant, missing=lambda: None)

    def refuses(need: AttentionNeed) -> str | None:
        device = H200 if need.device.kind == "cpu" else need.device
        return installed.refuses(attrs.evolve(need, device=device))

    return attrs.evolve(item, refuses=refuses)


class StandInTests(AttentionBackendTests):
    variant: ClassVar[Variant]
    module: ClassVar[Callable[[], ModuleType]]
    dtypes = ("bfloat16", "float16")
    block_sizes: ClassVar[Sequence[int]] = (256,)
    longest = 700  # a stand-in has all scores in memory

    @pytest.fixture(scope="class")
    @classmethod
    def catalog(cls) -> Catalog:
        installed, hook = load_catalog(), "inferno_attention_backends"
        offers = tuple(
            attrs.evolve(offer, item=on_cpu(offer.item, cls.variant))
            if offer.item.name == cls.backend
            else offer
            for offer in installed.of(hook)
        )
        return Catalog(installed.plugins, {**installed.offers, hook: offers})

    @pytest.fixture(autouse=True)
    def package(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        module = type(self).module()
        monkeypatch.setitem(sys.modules, module.__name__, module)
        yield


class TestFlash2(StandInTests):
    backend = "flash"
    variant = FLASH_2
    module = staticmethod(flash_stand_ins.flash_attn)


class TestFlash3(StandInTests):
    backend = "flash3"
    variant = FLASH_3
    module = staticmethod(flash_stand_ins.flash_attn_interface)
    block_sizes = (16, 64)


class TestFlashOfTorch(StandInTests):
    backend = "flash-torch"
    variant = FLASH_TORCH
    module = staticmethod(flash_stand_ins.torch_varlen)


def _here(variant: Variant) -> str | None:
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    return variant.missing()


@pytest.mark.skipif(_here(FLASH_2) is not None, reason=str(_here(FLASH_2)))
class TestFlash2OnAGpu(AttentionBackendTests):
    backend = "flash"
    device = "cuda"
    dtypes = ("bfloat16", "float16")
    block_sizes: ClassVar[Sequence[int]] = (256,)


@pytest.mark.skipif(_here(FLASH_3) is not None, reason=str(_here(FLASH_3)))
class TestFlash3OnAGpu(TestFlash2OnAGpu):
    backend = "flash3"
    block_sizes = (16, 64)


@pytest.mark.skipif(_here(FLASH_TORCH) is not None, reason=str(_here(FLASH_TORCH)))
class TestFlashOfTorchOnAGpu(TestFlash2OnAGpu):
    backend = "flash-torch"


def test_torch_has_the_function_with_the_arguments_we_give_it() -> None:
    """The stand-in is believed as far as this."""
    if (reason := FLASH_TORCH.missing()) is not None:
        pytest.skip(reason)
    from torch.nn.attention import varlen

    stand_in = inspect.signature(flash_stand_ins.torch_varlen().varlen_attn)
    theirs = inspect.signature(varlen.varlen_attn)
    assert stand_in.parameters.keys() <= theirs.parameters.keys()
    assert list(stand_in.parameters)[:7] == list(theirs.parameters)[:7]


@pytest.mark.parametrize(
    ("variant", "device", "said"),
    [
        (FLASH_2, Device("cpu"), "it runs on CUDA devices, not on cpu"),
        (
            FLASH_2,
            Device("cuda", capability=(7, 5)),
            "needs compute capability 8.0, cuda:0 has 7.5",
        ),
        (FLASH_3, A100, "is written for compute capability 9.x, cuda:0 (NVIDIA A100) has 8.0"),
        (FLASH_2, A100, "the package flash-attn is not installed"),
        (FLASH_3, H200, "FlashAttention 3 (the module flash_attn_interface) is not installed"),
    ],
)
def test_what_is_missing_is_said(
    variant: Variant, device: Device, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "find_spec", lambda name: None)
    need = AttentionNeed(
        num_heads=8, num_kv_heads=2, head_dim=64, scale=1.0, dtype="float16", device=device
    )
    reason = variant.refuses(need)
    assert reason is not None and reason.endswith(said)


@pytest.mark.parametrize(
    ("found", "willing"), [("2.9.1", False), ("2.13.0+cu129", True), ("3.0.0a0", True)]
)
def test_only_a_torch_that_reads_block_tables_is_taken(
    found: str, willing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "version", lambda name: found)
    assert (FLASH_TORCH.missing() is None) == willing
