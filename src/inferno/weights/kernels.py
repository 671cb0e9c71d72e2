"""The kernels that a plan chose, as layers call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from inferno.contracts import COLLECTIVES, GROUPED, LINEAR, QUANTIZE, lazy
from inferno.nn import Stack, Weight, Wrapper, stacked_inside
from inferno.nn.layer import torch_stack
from inferno.nn.weight import loaded
from inferno.ops.reference import Ops
from inferno.plan import TORCH, KernelUse, Opened
from inferno.weights.packing import PackedWeights


def stack_of(
    opened: Opened, kernels: Sequence[KernelUse], packed: PackedWeights | None = None
) -> Stack:
    """Return the function that gives matrices their final layout: that of the packed weights, else
    the kernel among these for their op and layout, else torch. It notes in each what multiplies
    it."""
    in_torch = partial(torch_stack, onednn=opened.plan.onednn)
    products = {
        (use.op, use.layout): (
            use.name,
            lazy.resolved(opened.parts.kernels[use.name].ops[use.op]),
        )
        for use in kernels
        if use.op in (LINEAR, GROUPED)
    }

    def stack(
        weights: Sequence[Weight], *, grouped: bool = False, rows: bool = False
    ) -> Weight | None:
        op, sources = GROUPED if grouped else LINEAR, [weight.source for weight in weights]
        kernel, weight = stacked(op, weights, sources, rows=rows)
        if weight is not None:
            weight.sources, weight.kernel = tuple(sources), kernel
        return weight

    def stacked(
        op: str, weights: Sequence[Weight], sources: Sequence[str], *, rows: bool
    ) -> tuple[str, Weight | None]:
        """Return what multiplies the stacked weight, and the weight; None if they do not stack."""
        if packed is not None and (kept_weight := packed.load(op, sources)) is not None:
            return kept_weight
        if packed is not None and packed.separate(op, sources):
            return TORCH, None
        weights = [loaded(weight) for weight in weights]
        if (built := computed(op, weights)) is not None:
            if packed is not None:
                packed.keep(op, sources, *built)
            return built
        plain = partial(in_torch, grouped=op == GROUPED, rows=rows)
        if any(isinstance(weight, Wrapper) for weight in weights):
            return TORCH, stacked_inside(weights, plain)
        return TORCH, plain(weights)

    def computed(op: str, weights: Sequence[Weight]) -> tuple[str, Weight] | None:
        """Return the weight that a provider computes, after its name; None if none does."""
        if any(isinstance(weight, Wrapper) for weight in weights):
            names = list[str]()

            def inside(inner: Sequence[Weight]) -> Weight | None:
                result = computed(op, inner)
                names.extend([] if result is None else [result[0]])
                return None if result is None else result[1]

            wrapped = stacked_inside(weights, inside)
            return None if wrapped is None else (names[0], wrapped)
        [layout, *others] = dict.fromkeys(weight.layout for weight in weights)
        if others or (op, layout) not in products:
            return None
        provider, kernel = products[op, layout]
        built: Weight | None = kernel(*weights)
        return None if built is None else (provider, built)

    return stack


def ops_of(opened: Opened) -> Ops:
    """Return the plan's implementation of each op: its provider's, else torch's."""
    kernels = ops_named(opened, opened.plan.kernels)
    if (shared := opened.communicator) is not None and opened.shard.ranks > 1:
        kernels |= {"all_reduce": shared.all_reduce, "all_gather": shared.all_gather}
    return Ops(**kernels)


def ops_named(opened: Opened, uses: Sequence[KernelUse]) -> dict[str, Callable[..., Any]]:
    """Return what computes each op among these, by its name."""
    return {
        use.op: lazy.resolved(opened.parts.kernels[use.name].ops[use.op])
        for use in uses
        if use.op not in (LINEAR, GROUPED, QUANTIZE, COLLECTIVES)
    }
