"""Runs a model layer by layer, so that only one layer and the activations are in memory.

The inputs of a layer are what the model's own code passes to it when the layers before it are
replaced by their outputs.

Suffixes: T tokens of a sequence, O rows, I columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from attrs import define, field
from torch import Tensor, nn

from inferno.builtin.torch_attention import TorchAttend
from inferno.builtin.torch_cache import layout, refuses
from inferno.contracts import AttentionNeed, AttentionSpec, Device, Seen, StateSpec
from inferno.errors import UnsupportedError
from inferno.nn import Attention, Finalize, Linear, State, Unloaded, Weight, finalize
from inferno.nn.batch import Batch
from inferno.plan import modules_of, unused_tensors
from inferno.weights.pairing import Stored, join, pair
from inferno_convert.source import DenseView

GRAMS = 4 << 30
"""Bytes of Gram matrices of one layer: the matrices beyond them, of many experts, are not seen."""


class _Reached(Exception):
    """The layer that is waited for is called."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.args_of_layer, self.kwargs = args, kwargs


class Stub(nn.Module):
    """In the place of a layer: returns its output, or reports its inputs."""

    def __init__(self, number: int, layers: Layers) -> None:
        super().__init__()
        self.number, self._layers = number, [layers]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        [layers] = self._layers
        if self.number == layers.wanted:
            raise _Reached(args, kwargs)
        return layers.before


class Table(Weight):
    """An embedding that is read row by row."""

    def __init__(self, view: DenseView, name: str) -> None:
        super().__init__()
        self._view, self._name = [view], name
        rows, columns = view.tensors[name].shape
        self.shape = (rows, columns)

    def rows(self, ids_T: Tensor) -> Tensor:
        [view] = self._view
        matrix = view.weight(self._name)
        if matrix is not None:
            return matrix.rows(ids_T).float()
        return view.read(self._name)[ids_T].float()


class Watching:
    """Observes the inputs of a layer's matrices."""

    def see(self, path: str, x_TI: Tensor) -> None:
        """Note the input of the matrix at this path."""
        raise NotImplementedError


class Watched(Weight):
    """A matrix that notes what it is multiplied with."""

    def __init__(self, path: str, weight_OI: Tensor, sights: Watching | None) -> None:
        super().__init__()
        self.shape = (weight_OI.shape[0], weight_OI.shape[1])
        self.path, self.data_OI, self.sights = path, weight_OI, sights
        self.quantized: Weight | None = None

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        if self.sights is not None:
            self.sights.see(self.path, x_TI)
        if self.quantized is not None:
            return self.quantized.matmul(x_TI, bias_O)
        return F.linear(x_TI, self.data_OI, bias_O)

    def rows(self, ids_T: Tensor) -> Tensor:
        if self.quantized is not None:
            return self.quantized.rows(ids_T)
        return self.data_OI[ids_T]


@define(eq=False)
class Sights(Watching):
    """The inputs of a layer's matrices, summed up. Matrices that are multiplied with the same
    tensor share their sums: those of an expert, too, which have its tokens' rows."""

    too_large: set[str] = field(factory=set)
    """Matrices whose inputs were not summed up, because the sums would be larger than `GRAMS`."""
    _sums: dict[str, tuple[Tensor, Tensor, int]] = field(factory=dict)
    """By the first matrix of those that share: the Gram matrix, the sum of |x|, the count."""
    _first: dict[str, str] = field(factory=dict)
    _inputs: dict[tuple[object, ...], tuple[str, Tensor]] = field(factory=dict)
    """The first matrix of each input of this run, by the input's data pointer. Holding the input
    keeps the pointer from being used again."""
    _run: set[str] = field(factory=set)
    _nbytes: int = 0

    def see(self, path: str, x_TI: Tensor) -> None:
        if path in self._run:  # the next sequence
            self._inputs.clear()
            self._run.clear()
        self._run.add(path)
        key = x_TI.data_ptr(), x_TI.shape, x_TI.stride()
        other, _ = self._inputs.setdefault(key, (path, x_TI))
        if path not in self._first:
            is_large = other == path and self._nbytes + 4 * x_TI.shape[-1] ** 2 > GRAMS
            if is_large or other in self.too_large:
                self.too_large.add(path)
                return
            self._first[path] = self._first.get(other, path)
        if self._first[path] != path:
            return
        x_NI = x_TI.reshape(-1, x_TI.shape[-1]).float()
        size = x_NI.shape[1]
        if path not in self._sums:
            self._nbytes += 4 * size * size
            self._sums[path] = torch.zeros(size, size), torch.zeros(size), 0
        gram_II, sum_I, count = self._sums[path]
        gram_II.addmm_(x_NI.T, x_NI)
        sum_I += x_NI.abs().sum(0)
        self._sums[path] = gram_II, sum_I, count + len(x_NI)

    def found(self) -> dict[str, Seen]:
        """Return what was seen, by path."""
        seen: dict[str, Seen] = {}
        for path, owner in self._first.items():
            gram_II, sum_I, count = self._sums[owner]
            if count:
                seen[path] = Seen(gram_II=gram_II, mean_I=sum_I / count, count=count)
        return seen


@define(eq=False)
class Layers:
    """The layers of a model that is built without memory."""

    view: DenseView
    model: nn.Module
    paths: Sequence[str]
    """Of each layer in the checkpoint."""
    layers: Sequence[nn.Module]
    stored: Mapping[str, Stored]
    """By the module's path in the model."""
    needs: Mapping[int, AttentionNeed]
    states: Mapping[int, StateSpec]
    batches: Sequence[Batch]
    outputs: list[Any] = field(factory=list)
    """Of the layer that ran last, by sequence."""
    wanted: int = 0
    before: Any = None

    @classmethod
    def of(cls, view: DenseView, sequences: Sequence[Sequence[int]]) -> Layers:
        """Build the model, and load what is not in its layers. Raises UnsupportedError for models
        without a list of layers."""
        with torch.device("meta"):
            model: nn.Module = view.architecture.build(view.model)
        modules = modules_of(view.tensors, unused_tensors(view.model))
        named = (name for name, _ in model.named_modules())
        stored = dict(zip(named, pair(model, modules), strict=True))
        path, stack = _list_of_layers(model)
        specs = dict(enumerate(view.model.cache_specs()))
        cpu = Device("cpu")
        needs = {
            layer: AttentionNeed.of(spec, dtype="float32", device=cpu, cache_dtype="auto")
            for layer, spec in specs.items()
            if isinstance(spec, AttentionSpec)
        }
        for need in needs.values():
            if (reason := refuses(need)) is not None:
                raise UnsupportedError(f"the model cannot be calibrated: {reason}", WITHOUT)
        blocks = list(stack)
        made = cls(
            view=view,
            model=model,
            paths=[f"{path}.{number}" for number in range(len(blocks))],
            layers=blocks,
            stored=stored,
            needs=needs,
            states={n: spec for n, spec in specs.items() if isinstance(spec, StateSpec)},
            batches=[_batch(ids) for ids in sequences],
        )
        stubs = nn.ModuleList(Stub(number, made) for number in range(len(blocks)))
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, stubs)
        made._fill(model, "", {}, None)
        finalize(model, made.finalizing)
        return made

    @property
    def finalizing(self) -> Finalize:
        return Finalize(
            stack=lambda weights, *, grouped=False, rows=False: None,
            attend=lambda layer, need=None: TorchAttend(need or self.needs[layer]),
        )

    def tensors(self, number: int) -> dict[str, Tensor]:
        """Read a layer's tensors, by names relative to it, in float32."""
        start = f"{self.paths[number]}."
        return {
            name.removeprefix(start): self.view.read(name).float()
            for name in self.view.tensors
            if name.startswith(start)
        }

    def modules(self, number: int) -> dict[str, nn.Module]:
        """Return the modules of a layer, without their tensors, by the paths in it of what they
        store."""
        start = f"{self.paths[number]}."
        return {
            stored.path.removeprefix(start): stored.module
            for stored in self.stored.values()
            if stored.path.startswith(start)
        }

    def load(
        self, number: int, tensors: Mapping[str, Tensor], sights: Watching | None
    ) -> tuple[nn.Module, dict[str, Watched]]:
        """Return a layer with these tensors, and its linear layers' matrices by path."""
        layer = deepcopy(self.layers[number])
        watched = self._fill(layer, self.paths[number], tensors, sights)
        finalize(layer, self.finalizing)
        for module in layer.modules():
            if isinstance(module, Attention):
                need, size = self.needs[module.layer_id], self._longest()
                module.cache = {
                    name: torch.zeros(1, *spec.shape) for name, spec in layout(need, size).items()
                }
        return layer, watched

    def _longest(self) -> int:
        return max(len(batch.token_ids_T) for batch in self.batches)

    def inputs(self, number: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Yield the arguments with which the model calls a layer, for each sequence."""
        for index, batch in enumerate(self.batches):
            self.wanted = number
            self.before = self.outputs[index] if number else None
            try:
                self.model(batch)
            except _Reached as reached:
                yield reached.args_of_layer, reached.kwargs
                continue
            raise UnsupportedError(f"the model does not call its layer {number}", WITHOUT)

    def run(self, layer: nn.Module, number: int) -> Iterator[Any]:
        """Yield the layer's output for each sequence."""
        states = [module for module in layer.modules() if isinstance(module, State)]
        for args, kwargs in self.inputs(number):
            for state in states:
                state.cache = {
                    name: torch.zeros(1, *spec.shape, dtype=getattr(torch, spec.dtype))
                    for name, spec in self.states[state.layer_id].resolved("float32").items()
                }
            yield layer(*args, **kwargs)

    def advance(self, layer: nn.Module, number: int) -> None:
        """Compute the inputs of the next layer. Each takes the place of what it was computed from:
        together they would be the largest thing in memory."""
        if number + 1 < len(self.layers):
            for index, output in enumerate(self.run(layer, number)):
                self.outputs[index : index + 1] = [output]

    def _fill(
        self, root: nn.Module, path: str, tensors: Mapping[str, Tensor], sights: Watching | None
    ) -> dict[str, Watched]:
        """Give the modules of a layer its tensors, by names relative to `path`; or the modules
        around the layers the checkpoint's, if it is empty. Heads stay empty then."""
        watched: dict[str, Watched] = {}
        for name, module in root.named_modules():
            stored = self.stored.get(join(path, name) if name else path)
            if stored is None:
                continue
            for part, _ in list(module.named_parameters(recurse=False)):
                tensor = self._tensor(join(stored.path, part), path, tensors)
                setattr(module, part, nn.Parameter(tensor, requires_grad=False))
            if not isinstance(getattr(module, "weight", None), Unloaded):
                continue
            whole = join(stored.path, "weight")
            if not isinstance(module, Linear):
                module.weight = Table(self.view, whole)
            elif path:
                weight = Watched(stored.path, self._tensor(whole, path, tensors), sights)
                module.weight = watched[stored.path] = weight
        return watched

    def _tensor(self, name: str, path: str, tensors: Mapping[str, Tensor]) -> Tensor:
        if not path:
            return self.view.read(name).float()
        return tensors[name.removeprefix(f"{path}.")]


WITHOUT = "Leave --calibrate out: values are then rounded to the nearest."


def _list_of_layers(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """Find the list that has every layer with attention or a state. Raises UnsupportedError."""
    total = _count(model)
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and total and _count(module) == total:
            return path, module
    raise UnsupportedError("the model's layers are not in one list", WITHOUT)


def _count(module: nn.Module) -> int:
    return sum(isinstance(m, Attention | State) for m in module.modules())


def _batch(ids: Sequence[int]) -> Batch:
    """A step of one sequence, whose cache is one block."""
    size = len(ids)
    return Batch(
        token_ids_T=torch.tensor(ids),
        positions_T=torch.arange(size),
        slots_T=torch.arange(size),
        query_starts=[0, size],
        context_lens=[size],
        blocks_SM=torch.zeros(1, 1, dtype=torch.int64),
        block_size=size,
        query_starts_S1=torch.tensor([0, size], dtype=torch.int32),
        context_lens_S=torch.tensor([size], dtype=torch.int32),
        state_slots_S=torch.zeros(1, dtype=torch.int64),
    )
