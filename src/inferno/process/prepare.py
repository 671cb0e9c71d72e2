"""Prepares what needs no torch while torch is being imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from inferno.contracts import GROUPED, LINEAR
from inferno.plan import Opened, Plan
from inferno.weights.packing import PackedWeights


@contextmanager
def prepared(opened: Opened) -> Iterator[PackedWeights | None]:
    """Context in which torch is imported and a model is loaded. Kernel providers
    read the packed weights of an earlier start, or prepare memory for them, during the import.
    Nothing is prepared for weights that are quantized while loading: their size is not known.
    Packed weights that were not on disk are written after the context."""
    plan, packed = opened.plan, PackedWeights.of(opened)
    with ExitStack() as stack:
        if packed is not None:
            stack.enter_context(packed.reading())
        for name, provider in opened.parts.kernels.items() if plan.isq is None else ():
            nbytes = 0 if packed is not None and packed.found else _held_by(name, plan)
            if nbytes and provider.prepare is not None:
                stack.enter_context(provider.prepare(nbytes))
        yield packed
    if packed is not None:
        packed.begin_writing()


def _held_by(provider: str, plan: Plan) -> int:
    """Return the bytes of the weights whose layout this provider multiplies."""
    products = (use for use in plan.kernels if use.op in (LINEAR, GROUPED))
    layouts = {use.layout for use in products if use.name == provider}
    return sum(use.nbytes for use in plan.schemes if use.layout in layouts)
