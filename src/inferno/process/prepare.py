"""Prepares what needs no torch while torch is being imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from inferno.contracts import GROUPED, LINEAR
from inferno.plan import Opened, Plan


@contextmanager
def prepared(opened: Opened) -> Iterator[None]:
    """Context in which a model is loaded: kernel providers prepare memory while torch is still
    importing. Weights that are quantized while loading are left out: their size is not known."""
    plan = opened.plan
    with ExitStack() as stack:
        for name, provider in opened.parts.kernels.items() if plan.isq is None else ():
            nbytes = _held_by(name, plan)
            if nbytes and provider.prepare is not None:
                stack.enter_context(provider.prepare(nbytes))
        yield


def _held_by(provider: str, plan: Plan) -> int:
    """Return the bytes of the weights whose layout this provider multiplies."""
    products = (use for use in plan.kernels if use.op in (LINEAR, GROUPED))
    layouts = {use.layout for use in products if use.name == provider}
    return sum(use.nbytes for use in plan.schemes if use.layout in layouts)
