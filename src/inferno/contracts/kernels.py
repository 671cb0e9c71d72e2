"""Faster implementations of what `inferno.nn.ops` means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from attrs import field, frozen

from inferno.contracts import lazy
from inferno.contracts.attention import DType

LINEAR, GROUPED = "linear", "grouped"
OPS = ("rms_norm", "add_rms_norm", "norm_rope", "silu_mul", "gather", "argmax")
"""The ops a kernel may provide beside `linear`; `inferno.nn.ops` holds their meaning, as torch
computes them."""
EXPERT_OPS = ("route", "dispatch", "combine")
"""Those that only models with routed experts need, beside `grouped`."""


@frozen(kw_only=True)
class KernelNeed:
    """What one op is asked for."""

    op: str
    """`linear`, `grouped`, or one of `OPS` and `EXPERT_OPS`."""
    dtype: DType
    """Of the activations."""
    device: str
    """"cpu", "cuda"."""
    layout: str = ""
    """For `linear` and `grouped`, how the matrix is stored: a dtype's name, or a packed layout as
    its scheme calls it ("q4_k")."""


class Recording(Protocol):
    """A list of a provider's ops with the addresses they read and wrote."""

    def __enter__(self) -> Recording:
        """From now on every op of the provider is noted, after it has run."""
        ...

    def __exit__(self, *exception: object) -> None: ...

    def replay(self) -> None:
        """Run the ops again, on what lies at those addresses now."""
        ...


@frozen(kw_only=True)
class KernelProvider:
    """Faster implementations of named ops. What none provides, torch computes."""

    name: str
    ops: Mapping[str, Callable[..., Any]] = field(converter=lazy.functions)
    """Op -> the function, with the signature of `inferno.nn.ops`. `linear` is (*weights) -> one
    Weight that holds them stacked along the rows, in whatever layout it likes, or None when these
    do not go together; the caller then lets go of them. `grouped` is the same for matrices of one
    shape; of its result `Weight.grouped` is asked."""
    refuses: Callable[[KernelNeed], str | None] = field(converter=lazy.function)
    """Why it cannot serve the need, as a sentence, or None when it can. Imports no torch."""
    record: Callable[[], Recording] | None = field(default=None, converter=lazy.optional)
    """A new recording, where the provider's ops, its attention backend's included, can be run again
    without Python. None of them may decide by numbers that it reads in Python (`.tolist()`,
    `.numpy()`): steps run again would decide as the first."""
    prepare: Callable[[int], AbstractContextManager[object]] | None = field(
        default=None, converter=lazy.optional
    )
    """prepare(nbytes) -> what is entered before torch is imported, for a model with so many bytes
    of weights in the provider's layouts, and left when it is loaded: what can be made ready beside
    that import, as memory for them. Imports no torch."""
    priority: int = 0
    api_version: int = 1
