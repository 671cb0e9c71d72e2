"""The plugin as it is on a chip, for tensors on the CPU, which its kernels take when they are
interpreted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import torch
from triton_interpreter import interpreted

from inferno.contracts import (
    Attend,
    AttentionBackend,
    AttentionNeed,
    Device,
    KernelNeed,
    KernelProvider,
)
from inferno.testing import Catalog, load_catalog
from inferno_triton import (
    attend,
    attention,
    chips,
    codes,
    draws,
    float8,
    int8,
    kernels,
    lora,
    mixture,
    packed,
    paged,
    parts,
    rows,
)
from inferno_triton.tiles import CHIPS, Chip

H200 = Device("cuda", name="NVIDIA H200", capability=(9, 0), shared_memory=232_448)


@contextmanager
def on_cpu(chip: Chip = CHIPS["sm_90"]) -> Iterator[None]:
    """Interpret every kernel, with the tiles of a chip. Memory is NaN until it is written."""
    modules = (paged, codes, parts, rows, packed, mixture, float8, int8, draws, lora)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new memory
    try:
        with chips.using(chip), interpreted(*modules):
            assert torch.empty(1).isnan().all()
            yield
    finally:
        torch.use_deterministic_algorithms(before)


def backend(item: AttentionBackend, chip: str) -> AttentionBackend:
    def refuses(need: AttentionNeed) -> str | None:
        if need.device.kind != "cpu":
            return item.refuses(need)
        return attention.refuses(attrs.evolve(need, device=H200))

    def build(need: AttentionNeed) -> Attend:
        return attend.TritonAttend(need, CHIPS[chip])

    return attrs.evolve(item, refuses=refuses, build=build)


def provider(item: KernelProvider) -> KernelProvider:
    def refuses(need: KernelNeed) -> str | None:
        device = H200 if need.device.kind == "cpu" else need.device
        return kernels.refuses(attrs.evolve(need, device=device))

    return attrs.evolve(item, refuses=refuses)


def catalog(chip: str = "sm_90") -> Catalog:
    """The installed plugins, with this one as it is on that chip, and no other kernels."""
    installed = load_catalog(disable=("inferno-cpu",))
    offers = dict(installed.offers)
    offers["inferno_attention_backends"] = tuple(
        attrs.evolve(offer, item=backend(offer.item, chip))
        if offer.item.name == "triton"
        else offer
        for offer in installed.of("inferno_attention_backends")
    )
    offers["inferno_kernels"] = tuple(
        attrs.evolve(each, item=provider(each.item)) if each.item.name == "triton" else each
        for each in installed.of("inferno_kernels")
    )
    return Catalog(installed.plugins, offers)
