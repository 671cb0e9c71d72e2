"""Pairs of parameters that hold the matrices of all experts (`target_parameters`): PEFT stores the
pairs of all experts as one, under the module, whose parameters are wrapped one around the other.

Suffixes: E experts, R rank, I inputs, O outputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from inferno.contracts import AdapterBase, LowRank, RowRange, RowsView, TensorInfo, expert_rows
from inferno.errors import CheckpointError
from inferno_peft.config import DAMAGED, PeftConfig

if TYPE_CHECKING:
    from torch import Tensor

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Fields of `config.json` that hold the number of experts."""
_INNER = re.compile(r"\.(down_proj|output_linear)(\.weight)?$")
"""Names of what maps back to the model's width."""
_WRAPPED = re.compile(r"(\.base_layer)+$")
_MODULE = "experts"
"""The module that has the parameters of experts."""


@frozen(eq=False)
class _Header:
    """A checkpoint of one tensor, of which no value is read."""

    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    def read(self, name: str) -> Tensor:
        raise AssertionError(f"rows follow from headers, not from the values of {name}")

    def text(self) -> Any:
        raise AssertionError("it has no texts")

    def close(self) -> None:
        """Hold nothing."""


@frozen
class ExpertPair:
    """The pair of one expert's matrix, within that of all."""

    expert: int
    experts: int
    rank: int
    rows: slice
    """Of the second matrix."""
    swapped: bool
    """Whether the pair is that of the transposed matrix."""

    def of(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return A (rank, inputs) and B (outputs, rank) of the expert."""
        a_RI = a.view(self.experts, self.rank, -1)[self.expert]
        b_OR = b.view(len(b), self.rank, self.experts)[..., self.expert]
        if self.swapped:
            a_RI, b_OR = b_OR.T, a_RI.T
        return a_RI, b_OR[self.rows]


def parameters(path: str, targets: Sequence[str]) -> list[str]:
    """Return which of a module's parameters are targets, by names in it. A target without a module
    is in every one that has such a parameter: in those of experts."""
    module = _WRAPPED.sub("", path)
    parts = [target.rpartition(".") for target in targets]
    return [name for parent, _, name in parts if f".{module}".endswith(f".{parent or _MODULE}")]


def expert_pairs(
    path: str, whole: LowRank, names: Sequence[str], peft: PeftConfig, base: AdapterBase
) -> Iterator[tuple[str, LowRank, ExpertPair]]:
    """Yield the pairs of each expert's matrices by their paths in the model. `whole` has the shapes
    of the stored pair, `names` are the module's parameters that are targets. Raises
    CheckpointError."""
    module = _WRAPPED.sub("", path)
    config = {**base.config, **(base.config.get("text_config") or {})}
    experts = next((count for name in _COUNTS if isinstance(count := config.get(name), int)), 0)
    stored, swapped = _matrix(whole, [f"{module}.{name}" for name in names], config)
    rank, scale = peft.rank_of(stored), peft.scale_of(stored)  # patterns are of parameters
    if experts < 1 or whole.rank != rank * experts:
        raise CheckpointError(
            f"{path} has {whole.rank} rows, not {rank} for each of the model's {experts} experts",
            "It belongs to another model: serve it beside that one.",
        )
    outputs = whole.inputs if swapped else whole.outputs
    for target, rows in _rows(stored, experts, outputs, base).items():
        assert rows.member is not None, "it is a stack"
        pair = ExpertPair(rows.member, experts, rank, rows.rows, swapped)
        inputs = whole.outputs if swapped else whole.inputs
        size = len(range(*rows.rows.indices(outputs)))
        low_rank = LowRank(rank=rank, scale=scale, inputs=inputs, outputs=size)
        yield target.removesuffix(".weight"), low_rank, pair


def _matrix(whole: LowRank, names: Sequence[str], config: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the name of the tensor that a pair is of, and whether it is that of the transposed
    matrix, as early versions of PEFT stored it."""
    width = config.get("hidden_size")
    inner = config.get("moe_intermediate_size") or config.get("intermediate_size")
    shapes = {
        name: (inner, width) if _INNER.search(name) else (width, 2 * (inner or 0)) for name in names
    }
    given = (whole.inputs, whole.outputs)
    for swapped, shape in ((False, given), (True, given[::-1])):
        if (name := next((n for n, sizes in shapes.items() if sizes == shape), None)) is not None:
            return name, swapped
    raise CheckpointError(
        f"no tensor of the model's experts has {given[1]} rows of {given[0]}",
        "It belongs to another model: serve it beside that one.",
    )


def _rows(stored: str, experts: int, outputs: int, base: AdapterBase) -> Mapping[str, RowRange]:
    """Return the rows of each expert's matrices, as the architecture divides the tensor."""
    # As many columns as rows: some models store their matrices transposed.
    info = TensorInfo("float32", (experts, outputs, outputs), 4 * experts * outputs * outputs)
    adapt = base.architecture.adapt
    if adapt is not None:
        seen = adapt(_Header(base.config, {stored: info}))
        if isinstance(seen, RowsView) and stored not in seen.ranges:
            return seen.ranges
    module, _, name = stored.rpartition(".")
    modules = ("down_proj",) if name == "down_proj" else ("gate_proj", "up_proj")
    if name not in ("down_proj", "gate_up_proj"):
        raise CheckpointError(f"{stored} holds no experts that this model has", DAMAGED)
    return expert_rows(stored, info, module, modules)
