"""An op is named in `contracts`, computed in `nn.ops`, and offered by providers: they agree."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import attrs

from inferno.catalog import load_catalog
from inferno.contracts import (
    ADAPTER_OPS,
    COLLECTIVES,
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
    named = {*OPS, *EXPERT_OPS, *ADAPTER_OPS, *collectives}
    assert {field.name for field in attrs.fields(ops.Ops)} == named
    assert all(getattr(ops.TORCH, name) is ops.alone for name in collectives)
    for name in (*OPS, *EXPERT_OPS, *ADAPTER_OPS):
        assert getattr(ops.TORCH, name) is getattr(ops, name)


def test_a_provider_takes_the_arguments_that_torch_takes() -> None:
    for offer in load_catalog().of("inferno_kernels"):
        products = {LINEAR, GROUPED, QUANTIZE, COLLECTIVES}
        assert set(offer.item.ops) <= {*products, *OPS, *EXPERT_OPS, *ADAPTER_OPS}
        for name in set(offer.item.ops) - products:
            need = KernelNeed(op=name, dtype="float32", device=Device("cpu"))
            if offer.item.refuses(need) is None:  # else it may not be compiled here
                theirs = _arguments(lazy.resolved(offer.item.ops[name]))
                assert theirs == _arguments(getattr(ops, name)), f"{offer.item.name}: {name}"


def _arguments(function: Callable[..., Any]) -> list[tuple[object, object]]:
    """Kinds and defaults: ops are called by position."""
    return [(p.kind, p.default) for p in inspect.signature(function).parameters.values()]
