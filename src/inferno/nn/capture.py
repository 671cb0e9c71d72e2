"""Captures a computation as a list of calls on fixed memory, to run it again without the Python
that made the calls.

A kernel provider records its own ops, with the addresses they read and wrote. Between them, each of
torch's operators becomes a call of the same operator on the same tensors. Results are in an arena;
a result's memory is reused as soon as no tensor refers to it, which is safe in a list of calls that
always run in the same order.

An operator that takes values from Python or returns them to it is refused, and so is one whose
result's shape depends on values: its call cannot be repeated on other values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from attrs import define, field, frozen
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from inferno.contracts import Recording, Uncaptured
from inferno.nn.arena import Arena

Compute = Callable[[], Tensor]
Call = Callable[[], object]


@frozen(eq=False)
class Calls:
    """A captured computation (`contracts.Captured`)."""

    output: Tensor
    calls: Sequence[Call]

    def replay(self) -> None:
        for call in self.calls:
            call()


@define(eq=False)
class CallCapture:
    """Captures a model's computations (`contracts.Capture`). They share the memory of their
    results, as only one runs at a time."""

    record: Callable[[], Recording] | None = None
    """Returns a new recording of a provider's ops. None: all ops are torch's."""
    _arena: Arena = field(factory=Arena)

    @property
    def nbytes(self) -> int:
        """Memory of the results."""
        return self._arena.nbytes

    def __call__(self, compute: Compute) -> Calls:
        notes = _Notes(self.record)
        with notes, _Watch(self._arena, notes):
            output = compute()
        finite = _is_finite(output)
        captured = Calls(self._arena.borrowed(output), notes.calls)
        del output
        self._arena.spoil()
        captured.replay()
        if finite and not _is_finite(captured.output):
            raise Uncaptured("neither torch nor the kernel provider computes a part of it")
        return captured


def _is_finite(x: Tensor) -> bool:
    return bool(x.isfinite().all())


@define(eq=False)
class _Notes:
    """The calls so far, the provider's and torch's, in the order in which they ran."""

    record: Callable[[], Recording] | None
    calls: list[Call] = field(factory=list)
    _recording: Recording | None = None

    def add(self, call: Call) -> None:
        self._stop()
        self.calls.append(call)
        self._start()

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _start(self) -> None:
        if self.record is not None:
            self._recording = self.record()
            self._recording.__enter__()

    def _stop(self) -> None:
        if self._recording is not None:
            self._recording.__exit__(None, None, None)
            if len(self._recording):
                self.calls.append(self._recording.replay)


class _Watch(TorchDispatchMode):
    """Notes torch's operators, and gives results memory in the arena."""

    def __init__(self, arena: Arena, notes: _Notes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arena, self._notes = arena, notes

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: asking torch's compiler to skip this mode would import it, which takes more than a
        second in the first step."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket in _ALLOCATIONS:
            return self._arena.like(func(*args, **kwargs))
        if func.overloadpacket not in TO_PYTHON:
            with self:  # a composite operator may hide one that is refused
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if (reason := refusal(func, args, kwargs)) is not None:
            raise Uncaptured(f"{func} in {caller()} {reason}")
        result = func(*args, **kwargs)
        memory = {_memory(t) for t in _tensors((args, kwargs))}
        fresh = [t for t in _tensors(result) if _memory(t) not in memory]
        writes = any(a.alias_info and a.alias_info.is_write for a in func._schema.arguments)
        if not fresh and not writes and _tensors(result):
            return result  # views
        copies = {id(t): self._arena.like(t).copy_(t) for t in fresh}
        outputs = [copies.get(id(leaf)) for leaf in tree_leaves(result)]
        call = partial(func, *self._held(args), **self._held(kwargs))
        if copies:
            call = _into(func, call, self._held(outputs))
        self._notes.add(call)
        return tree_map(lambda leaf: copies.get(id(leaf), leaf), result)

    def _held(self, values: Any) -> Any:
        """Return the same values, with tensors that do not keep the arena's memory in use."""

        def held(leaf: Any) -> Any:
            strided = isinstance(leaf, Tensor) and leaf.layout is torch.strided
            return self._arena.borrowed(leaf) if strided else leaf

        return tree_map(held, values)


def _into(func: Any, call: partial[Any], outputs: Sequence[Tensor | None]) -> partial[Any]:
    """Return the call with its results written to `outputs`: by the operator's `out` variant if it
    has one."""
    out = _out_variant(func)
    names = () if out is None else [a.name for a in out._schema.arguments if a.is_out]
    if len(names) != len(outputs) or any(output is None for output in outputs):
        return partial(_copied, call, outputs)
    into = dict(zip(names, outputs, strict=True))
    return partial(out, *call.args, **call.keywords, **into)


def _copied(call: Call, outputs: Sequence[Tensor | None]) -> None:
    for output, result in zip(outputs, tree_leaves(call()), strict=True):
        if output is not None:
            output.copy_(result)


@cache
def _out_variant(func: Any) -> Any:
    """Return the overload with the same arguments that writes its results to given tensors, or
    None."""
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments]
    for name in func.overloadpacket.overloads():
        overload = getattr(func.overloadpacket, name)
        given = [(a.name, str(a.type)) for a in overload._schema.arguments if not a.is_out]
        if given == wanted and len(given) < len(overload._schema.arguments):
            return overload
    return None


def refusal(func: Any, args: Any, kwargs: Any) -> str | None:
    """Return why the call of an operator cannot be captured, or None."""
    packet = func.overloadpacket
    if packet in _INDEXED:
        masks = [t for t in _tensors(args[1]) if t.dtype in (torch.bool, torch.uint8)]
        return "has a shape that depends on values: use torch.where" if masks else None
    if packet in TO_PYTHON:
        return "reads values in Python"
    if packet in _FROM_PYTHON:
        return "takes values from Python: keep them in a buffer"
    if kwargs.get("output_size") is not None:
        return None  # the caller knows the shape
    return next((_TAGGED[tag] for tag in func.tags if tag in _TAGGED), None)


def caller() -> str:
    """Name the module's method that called the operator."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        ours = frame.f_globals.get("__name__", "").partition(".")[0] != "torch"
        owner = frame.f_locals.get("self")
        if ours and isinstance(owner, nn.Module):
            code = frame.f_code
            where = f"{Path(code.co_filename).name}:{frame.f_lineno}"
            return f"{type(owner).__name__}.{code.co_name} ({where})"
    return "no module"


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _memory(tensor: Tensor) -> int:
    """Return an address that views share."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return tensor.untyped_storage().data_ptr()


_ALLOCATIONS = (
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.new_empty,
    torch.ops.aten.empty_strided,
)
_INDEXED = (
    torch.ops.aten.index,
    torch.ops.aten.index_put,
    torch.ops.aten.index_put_,
    torch.ops.aten._index_put_impl_,
)
TO_PYTHON = (torch.ops.aten.resolve_conj, torch.ops.aten.resolve_neg)
"""What `tolist` and `numpy` call."""
_FROM_PYTHON = (torch.ops.aten.lift_fresh, torch.ops.aten.lift_fresh_copy)
"""What `torch.tensor` and `torch.from_numpy` call."""
_TAGGED = {
    torch.Tag.data_dependent_output: "reads values in Python",
    torch.Tag.dynamic_output_shape: "has a shape that depends on values",
    torch.Tag.nondeterministic_seeded: "draws random numbers",
}
