"""The arrays of a step, in one buffer on the host and its twin on the device.

Suffixes: T tokens of the step, S sequences, M blocks of a table, L sampled rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from inferno.core.runner.tables import StepArrays
from inferno.device.staging import HostBuffers
from inferno.nn.batch import Batch
from inferno.plan import Plan

Array = np.ndarray[Any, Any]


@frozen
class InputSpec:
    """What the inputs of all steps of a plan have in common."""

    block_size: int
    max_model_len: int
    num_groups: int = 1
    """Cache groups with block tables, which come first in the plan."""
    trial_slot: int | None = None
    """The slot of padding rows' recurrent states, if the model has any."""
    device: str = "cpu"
    copied: bool = False
    """Whether the twin is a copy even on the CPU, as on other devices: for tests."""
    last_tokens_R: Tensor | None = field(default=None, eq=False)
    """By row, the last token drawn, on the device: of rows whose token the host does not know yet.
    A token id of -1 - row refers to it."""

    @classmethod
    def of_plan(cls, plan: Plan, copied: bool = False) -> InputSpec:
        """Return the spec of a plan's steps. With `copied`, drawn tokens stay on the device, the
        CPU too."""
        device = plan.device.torch_name
        last = torch.zeros(plan.max_num_seqs, dtype=torch.int64, device=device) if copied else None
        return cls(
            plan.block_size,
            plan.max_model_len,
            sum(group.kind != "state" for group in plan.groups),
            trial_slot=plan.max_num_seqs if plan.states else None,
            device=device,
            copied=copied,
            last_tokens_R=last,
        )

    def inputs_of(self, arrays: StepArrays) -> Inputs:
        """Return inputs with a step's arrays."""
        sizes = len(arrays.token_ids), len(arrays.rows), arrays.width, len(arrays.last)
        inputs = Inputs(self, *sizes, buffers=1)
        inputs.write(arrays)
        return inputs


@define(eq=False)
class Inputs:
    """A step of T tokens, S sequences, M blocks and L sampled rows. `write` changes all arrays with
    one copy to the device; the tensors stay where they are. On the CPU the twin is the buffer."""

    spec: InputSpec
    tokens: int
    sequences: int
    width: int
    sampled: int
    buffers: int = 2
    """On the host, for a device that may still copy from one while the next step is written."""
    last_L: Tensor = field(init=False)
    """Index in T of each sampled row."""
    _arrays: dict[str, Array] = field(init=False)
    """Those of the buffer that is written."""
    _tensors: dict[str, Tensor] = field(init=False)
    _twin: Tensor = field(init=False)
    _hosts: HostBuffers | None = field(init=False, default=None)
    _views: list[dict[str, Array]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        device, fields = self.spec.device, [*self._fields()]
        nbytes = sum(math.prod(shape) * dtype.itemsize for _, shape, dtype in fields)
        self._twin = torch.empty(nbytes, dtype=torch.uint8, device=device)
        hosts = [self._twin]
        if device != "cpu" or self.spec.copied:
            self._hosts = HostBuffers(nbytes, device, self.buffers)
            hosts = self._hosts.buffers
        self._views, self._tensors, end = [{} for _ in hosts], {}, 0
        for name, shape, dtype in fields:
            begin, end = end, end + math.prod(shape) * dtype.itemsize
            for host, views in zip(hosts, self._views, strict=True):
                views[name] = host[begin:end].view(dtype).view(shape).numpy()
            self._tensors[name] = self._twin[begin:end].view(dtype).view(shape)
        self._arrays = self._views[0]
        self.last_L = self._tensors["last"]

    def _fields(self) -> Iterator[tuple[str, tuple[int, ...], torch.dtype]]:
        """Name, shape and dtype of each array, those of larger elements first."""
        T, S, M, L = self.tokens, self.sequences, self.width, self.sampled
        for name, count in (("token_ids", T), ("positions", T), ("rows", S), ("last", L)):
            yield name, (count,), torch.int64
        for group in range(self.spec.num_groups):
            yield f"slots {group}", (T,), torch.int64
            yield f"tables {group}", (S, M), torch.int64
        yield "query_starts", (S + 1,), torch.int32
        yield "context_lens", (S,), torch.int32

    def clear(self) -> None:
        """Fill every buffer with padding rows."""
        for _ in self._views:
            self._turn()
            for group in range(self.spec.num_groups):
                self._arrays[f"tables {group}"][:] = 0
            self._pad(0, 0, 0)
            self._send()

    def write(self, arrays: StepArrays) -> None:
        """Write a step of as many tokens, sequences and sampled rows, or a smaller one and padding
        rows."""
        self._turn()
        inputs, tokens, slots = self._arrays, len(arrays.token_ids), arrays.state_slots
        sequences, sampled = len(arrays.context_lens), len(arrays.last)
        inputs["token_ids"][:tokens] = arrays.token_ids
        inputs["positions"][:tokens] = arrays.positions
        inputs["rows"][:sequences] = arrays.rows if slots is None else slots
        inputs["last"][:sampled] = arrays.last
        inputs["query_starts"][: sequences + 1] = arrays.query_starts
        inputs["context_lens"][:sequences] = arrays.context_lens
        for group, (slots, tables) in enumerate(arrays.groups):
            inputs[f"slots {group}"][:tokens] = slots
            # The other entries are of earlier steps: valid ids.
            inputs[f"tables {group}"][:sequences, : arrays.width] = tables
        if sequences < self.sequences:
            self._pad(tokens, sequences, sampled)
        self._send()
        if self.spec.last_tokens_R is not None and arrays.token_ids.min() < 0:
            self._look_up(self.spec.last_tokens_R)

    def _look_up(self, last_tokens_R: Tensor) -> None:
        """Replace, on the device, the tokens that the host does not know yet."""
        token_ids_T = self._tensors["token_ids"]
        known_T = last_tokens_R[(-1 - token_ids_T).clamp_(min=0)]
        token_ids_T.copy_(torch.where(token_ids_T < 0, known_T, token_ids_T))

    def _turn(self) -> None:
        if self._hosts is not None:
            self._arrays = self._views[self._hosts.next()]

    def _pad(self, tokens: int, sequences: int, sampled: int) -> None:
        inputs = self._arrays
        inputs["token_ids"][tokens:] = 0
        inputs["positions"][tokens:] = 0
        inputs["rows"][sequences:] = self.spec.trial_slot or 0
        inputs["last"][sampled:] = 0
        # One token each; or, in steps with prompts, all tokens that are left are one sequence's.
        single = self.tokens == self.sequences
        inputs["query_starts"][sequences:] = (
            range(tokens, self.tokens + 1) if single else self.tokens
        )
        inputs["query_starts"][sequences] = tokens
        inputs["context_lens"][sequences:] = 0
        for group in range(self.spec.num_groups):
            inputs[f"slots {group}"][tokens:] = -1

    def _send(self) -> None:
        if self._hosts is not None:
            self._hosts.send(self._twin, self._hosts.current)

    def batch(self, arrays: StepArrays) -> Batch:
        """Return the written step."""
        return self._batch(arrays.query_starts, arrays.context_lens, arrays.follows)

    def to_capture(self, drafts: bool = False) -> Batch:
        """Return a step to capture. Where it is not one token per sequence, it does not say which
        tokens are whose. With `drafts`, all sequences but the first are drafts."""
        longest = min(self.width * self.spec.block_size, self.spec.max_model_len)
        starts = [*(min(i, self.tokens) for i in range(self.sequences)), self.tokens]
        follows = [False, *[True] * (self.sequences - 1)] if drafts else []
        return self._batch(starts, [longest] * self.sequences, follows, captured=True)

    def _batch(
        self,
        query_starts: Sequence[int],
        context_lens: Sequence[int],
        follows: Sequence[bool],
        captured: bool = False,
    ) -> Batch:
        inputs = self._tensors
        batch = Batch(
            token_ids_T=inputs["token_ids"],
            positions_T=inputs["positions"],
            slots_T=inputs["slots 0"],
            query_starts=query_starts,
            context_lens=context_lens,
            blocks_SM=inputs["tables 0"],
            block_size=self.spec.block_size,
            query_starts_S1=inputs["query_starts"],
            context_lens_S=inputs["context_lens"],
            state_slots_S=None if self.spec.trial_slot is None else inputs["rows"],
            follows=follows,
            captured=captured,
        )
        groups = range(self.spec.num_groups)
        return batch.with_groups([(inputs[f"slots {i}"], inputs[f"tables {i}"]) for i in groups])
