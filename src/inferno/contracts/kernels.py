"""Kernel providers: faster implementations of the ops that `inferno.nn.ops` defines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from attrs import field, frozen

from inferno.contracts import lazy
from inferno.contracts.attention import DType
from inferno.contracts.device import Device

LINEAR, GROUPED = "linear", "grouped"
OPS = ("rms_norm", "add_rms_norm", "norm_rope", "silu_mul", "gather", "argmax")
"""Ops that a provider may implement besides `linear`; `inferno.nn.ops` defines each in torch."""
EXPERT_OPS = ("route", "dispatch", "combine")
"""Ops that only models with routed experts need, besides `grouped`."""


@frozen(kw_only=True)
class KernelNeed:
    """One op that a kernel must serve: its dtype, device and weight layout."""

    op: str
    """`linear`, `grouped`, or one of `OPS` and `EXPERT_OPS`."""
    dtype: DType
    """Dtype of the activations."""
    device: Device
    layout: str = ""
    """For `linear` and `grouped`, how the matrix is stored: a dtype's name, or a scheme's name for
    a packed layout ("q4_k")."""


class Recording(Protocol):
    """A list of a provider's ops with the addresses they read and wrote."""

    def __enter__(self) -> Recording:
        """Start recording: every op of the provider is noted after it has run."""
        ...

    def __exit__(self, *exception: object) -> None: ...

    def replay(self) -> None:
        """Run the ops again, on the values now at those addresses."""
        ...


@frozen(kw_only=True)
class KernelProvider:
    """Faster implementations of some ops; torch computes the others."""

    name: str
    ops: Mapping[str, Callable[..., Any]] = field(converter=lazy.functions)
    """Op -> its function, with the signature in `inferno.nn.ops`. `linear` is (*weights) -> one
    Weight that holds them stacked along the rows, in any layout, or None if it cannot stack these;
    given a Weight, the caller drops the originals. `grouped` is the same for matrices of equal
    shape; `Weight.grouped` is called on its result."""
    refuses: Callable[[KernelNeed], str | None] = field(converter=lazy.function)
    """Returns a sentence that says why it cannot serve the need, or None if it can. Imports no
    torch."""
    record: Callable[[], Recording] | None = field(default=None, converter=lazy.optional)
    """Returns a new recording, if the provider's ops, its attention backend's included, can be
    replayed without Python. Recorded ops must not branch on tensor values read in Python
    (`.tolist()`, `.numpy()`): a replay repeats the first step's branches."""
    prepare: Callable[[int], AbstractContextManager[object]] | None = field(
        default=None, converter=lazy.optional
    )
    """prepare(nbytes) -> a context manager, entered before torch is imported and left when the
    model is loaded. It may do what can overlap the import, such as faulting in `nbytes` of memory
    for the weights in its layouts. Must not import torch."""
    priority: int = 0
    api_version: int = 1
