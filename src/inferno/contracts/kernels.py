"""Kernel providers: faster implementations of the ops that `inferno.ops` defines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from attrs import field, frozen

from inferno.contracts import lazy
from inferno.contracts.attention import DType
from inferno.contracts.device import Device
from inferno.contracts.packing import Packing

if TYPE_CHECKING:
    from torch import Tensor

LINEAR, GROUPED, QUANTIZE = "linear", "grouped", "quantize"
COLLECTIVES = "collectives"
OPS = ("rms_norm", "add_rms_norm", "norm_rope", "silu_mul", "gather", "argmax", "adjust", "draw")
"""Ops that a provider may implement besides `linear`; `inferno.ops` defines each in torch."""
EXPERT_OPS = ("route", "dispatch", "combine")
"""Ops that only models with routed experts need, besides `grouped`."""
ENCODER_OPS = ("add_layer_norm", "gelu")
"""Ops that only models whose attention is bidirectional need."""
ADAPTER_OPS = ("shrink", "expand")
"""Ops that only models with room for adapters need."""


@frozen(kw_only=True)
class KernelNeed:
    """One op that a kernel must serve: its dtype, device and weight layout."""

    op: str
    """`linear`, `grouped`, `quantize`, `collectives`, or one of `OPS`, `EXPERT_OPS`,
    `ENCODER_OPS` and `ADAPTER_OPS`."""
    dtype: DType
    """Dtype of the activations."""
    device: Device
    layout: str = ""
    """For `linear` and `grouped`, how the matrix is stored: a dtype's name, or that of a packed
    layout ("int4_g128", "q4_k"). For `quantize`, what it is quantized to."""
    shape: tuple[int, int] | None = None
    """For `linear` and `grouped`, rows and columns of one matrix; None: of any. A layout is asked
    about first, then each shape that the model has in it: torch multiplies those that are
    refused, and the plan says so."""


class Uncaptured(Exception):
    """A computation cannot be captured. The message names the operator that is the reason."""


class Captured(Protocol):
    """A computation that can run again, without the Python that called it."""

    @property
    def output(self) -> Tensor:
        """The result, at a fixed address. It is overwritten by the next run of any computation of
        the same capture."""
        ...

    def replay(self) -> None:
        """Run again, on the values that are now at the addresses that were read."""
        ...


class Capture(Protocol):
    """Captures computations of one model. They may share memory, as only one runs at a time."""

    def __call__(self, compute: Callable[[], Tensor]) -> Captured:
        """Run `compute`, which always runs the same operators in the same order, on tensors that
        stay where they are. Raises Uncaptured if it cannot run again without Python."""
        ...


class Recording(Protocol):
    """A list of a provider's ops with the addresses they read and wrote."""

    def __enter__(self) -> Recording:
        """Start recording: every op of the provider is noted after it has run."""
        ...

    def __exit__(self, *exception: object) -> None: ...

    def __len__(self) -> int:
        """Number of ops."""
        ...

    def replay(self) -> None:
        """Run the ops again, on the values now at those addresses."""
        ...


@frozen(kw_only=True)
class KernelProvider:
    """Faster implementations of some ops; torch computes the others."""

    name: str
    ops: Mapping[str, Callable[..., Any]] = field(converter=lazy.functions)
    """Op -> its function, with the signature in `inferno.ops`. `linear` is (*weights) -> one
    Weight that holds them stacked along the rows, in any layout, or None if it cannot stack these
    or refuses their shape; given a Weight, the caller drops the originals. `grouped` is the same
    for matrices of equal shape; `Weight.grouped` is called on its result. `quantize` is (layout,
    weight_OI, importance_I) -> the tensors of the matrix in that layout; the importance of columns
    (float32) weighs their squared errors, or is None. `collectives` is (RankPlace) -> the
    Communicator of a rank of this machine."""
    refuses: Callable[[KernelNeed], str | None] = field(converter=lazy.function)
    """Returns a sentence that says why it cannot serve the need, or None if it can. Imports no
    torch."""
    capture: Callable[[], Capture] | None = field(default=None, converter=lazy.optional)
    """Returns the capture of a model's decode steps, if the provider's ops can run again without
    Python, its attention backend's and all of torch's between them. For a provider that notes its
    ops with their addresses, `inferno.nn.capture.CallCapture` does the rest."""
    prepare: Callable[[int], AbstractContextManager[object]] | None = field(
        default=None, converter=lazy.optional
    )
    """prepare(nbytes) -> a context manager, entered before torch is imported and left when the
    model is loaded. It may do what can overlap the import, such as faulting in `nbytes` of memory
    for the weights in its layouts. Must not import torch."""
    packing: Packing | None = None
    """How its weights are kept on disk between starts; None: they are packed at each start. With
    such a file, `prepare` is not called."""
    level: Callable[[], str] | None = field(default=None, converter=lazy.optional)
    """Returns which of its builds this machine runs, such as an instruction set: `explain` and the
    start line show it beside the name. Raises OptionError if the user has chosen one that it cannot
    run. Must not import torch."""
    rounds: Callable[[KernelNeed], bool] | None = field(default=None, converter=lazy.optional)
    """Whether its products round activations to fewer bits than the need's dtype has, although the
    layout does not say so. The plan names the matrices where that is unexpected: in float32. Must
    not import torch."""
    batch_invariant: Callable[[KernelNeed], bool] | None = field(
        default=None, converter=lazy.optional
    )
    """Whether a row's result is the same bits whatever other rows it is computed with, and with any
    number of threads. None: it promises that of no op. With `--batch-invariant` no other provider
    is chosen. Must not import torch."""
    priority: int = 0
    api_version: int = 1
