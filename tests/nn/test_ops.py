"""An op is named in `contracts`, computed in `nn.ops`, and offered by providers: they agree."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch

from inferno.catalog import load_catalog
from inferno.contracts import (
    ADAPTER_OPS,
    COLLECTIVES,
    ENCODER_OPS,
    EXPERT_OPS,
    GROUPED,
    LINEAR,
    OPS,
    QUANTIZE,
    Device,
    KernelNeed,
    lazy,
)
from inferno.ops import reference as ops


def test_the_ops_of_the_contract_are_those_that_torch_computes() -> None:
    collectives = {"all_reduce", "all_gather"}  # of one process, which has no others to ask
    named = {*OPS, *EXPERT_OPS, *ENCODER_OPS, *ADAPTER_OPS, *collectives}
    assert {field.name for field in attrs.fields(ops.Ops)} == named
    assert all(getattr(ops.TORCH, name) is ops.alone for name in collectives)
    for name in (*OPS, *EXPERT_OPS, *ENCODER_OPS, *ADAPTER_OPS):
        assert getattr(ops.TORCH, name) is getattr(ops, name)


def test_a_provider_takes_the_arguments_that_torch_takes() -> None:
    for offer in load_catalog().of("inferno_kernels"):
        products = {LINEAR, GROUPED, QUANTIZE, COLLECTIVES}
        assert set(offer.item.ops) <= {*products, *OPS, *EXPERT_OPS, *ENCODER_OPS, *ADAPTER_OPS}
        for name in set(offer.item.ops) - products:
            need = KernelNeed(op=name, dtype="float32", device=Device("cpu"))
            if offer.item.refuses(need) is None:  # else it may not be compiled here
                theirs = _arguments(lazy.resolved(offer.item.ops[name]))
                assert theirs == _arguments(getattr(ops, name)), f"{offer.item.name}: {name}"


def _arguments(function: Callable[..., Any]) -> list[tuple[object, object]]:
    """Kinds and defaults: ops are called by position."""
    return [(p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("rows", [1, 2, 7, 64, 100])
def test_gelu_in_pieces_is_gelu(rows: int) -> None:
    x_TI = torch.randn(rows, 96, generator=torch.Generator().manual_seed(rows))
    expected, half = torch.nn.functional.gelu(x_TI), x_TI.clone()[:, :48]
    torch.testing.assert_close(ops.gelu(half), expected[:, :48], rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(ops.gelu(x_TI), expected, rtol=1e-5, atol=2e-6)
