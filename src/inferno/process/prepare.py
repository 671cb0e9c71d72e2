"""What of a start needs no torch, done while torch is imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from inferno.catalog import Catalog
from inferno.contracts import GROUPED, LINEAR, QuantScheme
from inferno.plan import Plan


@contextmanager
def prepared(plan: Plan) -> Iterator[None]:
    """For as long as the plan's model is being loaded, from before torch is imported: the providers
    of its kernels make ready what they can for the weights they will hold. Weights that are
    quantized while loading have no size yet: none for them."""
    catalog = plan.catalog()
    with ExitStack() as stack:
        for offer in catalog.of("inferno_kernels") if plan.isq is None else ():
            nbytes = _held_by(offer.item.name, plan, catalog)
            if nbytes and offer.item.prepare is not None:
                stack.enter_context(offer.item.prepare(nbytes))
        yield


def _held_by(provider: str, plan: Plan, catalog: Catalog) -> int:
    """Bytes of the weights whose layout this provider multiplies."""
    layouts = {
        use.layout for use in plan.kernels if use.name == provider and use.op in (LINEAR, GROUPED)
    }
    schemes = [(use, catalog.named(QuantScheme, use.name).item) for use in plan.schemes]
    return sum(use.nbytes for use, scheme in schemes if (scheme.layout or plan.dtype) in layouts)
