"""Declarations of the version before, as the kernel reads them: in the current one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve

from inferno import contracts
from inferno.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from inferno.contracts import HeldMatrix, QuantScheme, StoredMatrix
    from inferno.nn.weight import Weight


def current(item: Any) -> Any:
    """Return a declaration in its contract's current version. Raises PluginError if it lacks what
    its own version requires."""
    if getattr(item, "owns", None) is not None and isinstance(
        item, contracts.QuantScheme
    ):  # stated or not, it is version 1
        return _scheme(item)
    return item


def _scheme(old: QuantScheme) -> QuantScheme:
    owns, nbytes, load, layout = old.owns, old.nbytes, old.load, old.layout
    if owns is None or nbytes is None:
        raise PluginError(
            f"the quantization scheme {old.name!r} has `owns`, but no `nbytes`",
            "Version 1 of the contract has both, version 2 has `refuses` and `holds`.",
        )

    def refuses(stored: StoredMatrix) -> str | None:
        if owns(stored.parts, stored.quant_config):
            return None
        return f"it does not read matrices stored as {', '.join(sorted(stored.parts))}"

    def holds(stored: StoredMatrix, dtype: str) -> HeldMatrix:
        return contracts.HeldMatrix(layout=layout, shape=None, nbytes=nbytes(stored.parts, dtype))

    def load_parts(stored: StoredMatrix, tensors: Mapping[str, Tensor], *, dtype: str) -> Weight:
        found: Weight = load(tensors, quant_config=stored.quant_config, dtype=dtype)
        return found

    return evolve(
        old, refuses=refuses, holds=holds, load=load_parts, owns=None, nbytes=None, api_version=2
    )
