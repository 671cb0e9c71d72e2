"""Runs one step on one device: Step -> Batch -> logits -> token ids. Tensors are born and die here.

What a sequence needs from step to step stays in resident tables, one row per sequence: a step
carries only what is new. Suffixes: R rows, M blocks, T tokens of the step, S sampled rows, P prompt
positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from attrs import define, field
from torch import Tensor, nn

from inferno.core.kvcache import KVCache
from inferno.core.runner.replay import MAX_TOKENS, Record, Replays
from inferno.core.sampling import Sampler, logprobs_of
from inferno.core.types import Logprobs, Sampled, Step
from inferno.nn import Rope
from inferno.nn.batch import Batch
from inferno.nn.ops import TORCH, Ops
from inferno.plan import Plan

_LOGPROB_ROWS = 256
"""Prompt positions whose logits are held at once."""


@define(eq=False)
class Tables:
    """The resident rows: every token known and every block held, as plain arrays. Knows no model
    and no device."""

    num_rows: int
    max_model_len: int
    block_size: int
    windows: Collection[int] = ()
    """Those that have window blocks of their own."""
    token_ids: np.ndarray[Any, Any] = field(init=False)
    block_ids: np.ndarray[Any, Any] = field(init=False)
    window_block_ids: dict[int, np.ndarray[Any, Any]] = field(init=False)
    """By window. A row's entries before its window are left over, but valid."""

    def __attrs_post_init__(self) -> None:
        # Untouched pages of these cost no memory.
        self.token_ids = np.zeros((self.num_rows, self.max_model_len + 1), np.int64)
        self.block_ids = np.zeros(
            (self.num_rows, -(-self.max_model_len // self.block_size) + 1), np.int64
        )
        self.window_block_ids = {window: np.zeros_like(self.block_ids) for window in self.windows}

    def update(self, step: Step) -> None:
        """What the step brings: new rows and new blocks."""
        for admission in step.new_sequences:
            self.token_ids[admission.row, : len(admission.token_ids)] = admission.token_ids
        if step.grants:
            rows, places, blocks = np.array(step.grants, np.int64).T
            self.block_ids[rows, places] = blocks
        if step.window_grants:
            windows, rows, places, blocks = np.array(step.window_grants, np.int64).T
            for window, block_ids in self.window_block_ids.items():
                own = windows == window
                block_ids[rows[own], places[own]] = blocks[own]

    def lay_out(self, step: Step) -> StepArrays:
        """The step's slices, packed."""
        rows, starts, counts, samples = np.array(
            step.slices, np.int64
        ).T.copy()  # kernels read dense arrays
        ends = np.cumsum(counts)
        total = int(ends[-1])
        if total == len(rows):  # one token each: the common case, without the repeats
            owner, positions = np.arange(total), starts
        else:
            owner = np.repeat(np.arange(len(rows)), counts)
            positions = np.arange(total) - np.repeat(ends - counts, counts) + starts[owner]
        row_T = rows[owner]
        contexts = starts + counts
        width = -(-int(contexts.max()) // self.block_size)
        places, offsets = positions // self.block_size, positions % self.block_size

        def located(
            block_ids: np.ndarray[Any, Any],
        ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
            tables = block_ids[rows, :width]
            return tables[owner, places] * self.block_size + offsets, tables

        slots, tables = located(self.block_ids)
        sampling = samples.astype(bool)
        return StepArrays(
            token_ids=self.token_ids[row_T, positions],
            positions=positions,
            slots=slots,
            query_starts=[0, *ends.tolist()],
            context_lens=contexts.tolist(),
            tables=tables,
            last=ends[sampling] - 1,
            sampling_rows=rows[sampling].tolist(),
            next_places=contexts[sampling],
            windows={
                window: located(block_ids) for window, block_ids in self.window_block_ids.items()
            },
        )

    def append(self, arrays: StepArrays, token_ids: list[int]) -> None:
        """The tokens a step drew: pending in the next one."""
        if token_ids:
            self.token_ids[arrays.sampling_rows, arrays.next_places] = token_ids


@define(eq=False)
class StepArrays:
    """A step as arrays, before it moves to a device."""

    token_ids: np.ndarray[Any, Any]
    positions: np.ndarray[Any, Any]
    slots: np.ndarray[Any, Any]
    query_starts: list[int]
    context_lens: list[int]
    tables: np.ndarray[Any, Any]
    last: np.ndarray[Any, Any]
    """Index in T of each sampling slice's last token."""
    sampling_rows: list[int]
    next_places: np.ndarray[Any, Any]
    windows: dict[int, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]
    """Slots and tables of each that has window blocks of its own."""


class ModelRunner:
    """The model, its cache and its sampler, on one device."""

    def __init__(
        self, model: nn.Module, plan: Plan, ops: Ops = TORCH, record: Record | None = None
    ) -> None:
        self._model, self._device = model, torch.device(plan.device)
        layers = {layer: use for use in plan.attention for layer in use.layers}
        uses = [layers[i] for i in range(len(layers))]
        self._cache = KVCache.allocate(
            [use.cache for use in uses], [plan.blocks_of(use) for use in uses], plan.device
        )
        self._tables = Tables(
            plan.max_num_seqs, plan.max_model_len, plan.block_size, tuple(plan.window_blocks)
        )
        self._sampler = Sampler(
            plan.max_num_seqs,
            plan.vocab_size,
            device=self._device,
            seed=plan.seed,
            argmax=ops.argmax,
        )
        self._wants_prompt: dict[int, _PromptLogprobs] = {}
        self._replays = record and Replays(
            self._compute, record, self._cache, plan.block_size, plan.max_model_len, self._prepare
        )

    @torch.inference_mode()
    def run(self, step: Step) -> Sampled:
        """Compute a step that has slices; one token for each that samples."""
        self._tables.update(step)
        for admission in step.new_sequences:
            self._sampler.admit(admission.row, admission.request, admission.token_ids)
            self._wants_prompt.pop(admission.row, None)
            if (top := admission.request.params.prompt_logprobs) is not None:
                self._wants_prompt[admission.row] = _PromptLogprobs(
                    admission.request.token_ids, top
                )
        arrays = self._tables.lay_out(step)
        if (logits_SV := self._replayed(arrays)) is not None:
            prompt_logprobs: dict[int, tuple[Logprobs | None, ...]] = {}
        else:
            hidden_TD = self._model(self._batch(arrays))
            prompt_logprobs = (
                self._prompt_logprobs(step, arrays, hidden_TD) if self._wants_prompt else {}
            )
            if not arrays.sampling_rows:
                return Sampled([], {}, prompt_logprobs)
            logits_SV = self.logits(hidden_TD[self._tensor(arrays.last)])
        drawn = self._sampler.sample(logits_SV, arrays.sampling_rows)
        self._tables.append(arrays, drawn.token_ids)
        return Sampled(drawn.token_ids, drawn.logprobs, prompt_logprobs)

    def _replayed(self, arrays: StepArrays) -> Tensor | None:
        """The logits of a small step in which every sequence computes one token and samples, if it
        can be replayed."""
        tokens = len(arrays.context_lens)
        if (
            self._replays is None
            or tokens > MAX_TOKENS
            or not tokens == len(arrays.token_ids) == len(arrays.last)
        ):
            return None
        if not self._wants_prompt.keys().isdisjoint(
            arrays.sampling_rows
        ):  # rows of aborted requests may be left there
            return None
        return self._replays.run(
            arrays.token_ids,
            arrays.positions,
            arrays.slots,
            arrays.context_lens,
            arrays.tables,
            arrays.windows,
        )

    def _prepare(self, batch: Batch) -> None:
        for module in self._model.modules():
            if isinstance(module, Rope):
                module(batch)

    def _compute(self, batch: Batch) -> Tensor:
        return self.logits(self._model(batch))

    def logits(self, hidden_SD: Tensor) -> Tensor:
        logits_SV: Tensor = self._model.logits(hidden_SD)  # type: ignore[operator]  # contracts.Model
        return logits_SV

    def _batch(self, arrays: StepArrays) -> Batch:
        batch = Batch(
            token_ids_T=self._tensor(arrays.token_ids),
            positions_T=self._tensor(arrays.positions),
            slots_T=self._tensor(arrays.slots),
            query_starts=arrays.query_starts,
            context_lens=arrays.context_lens,
            blocks_SM=self._tensor(arrays.tables),
            query_starts_S1=torch.tensor(
                arrays.query_starts, dtype=torch.int32, device=self._device
            ),
            context_lens_S=torch.tensor(
                arrays.context_lens, dtype=torch.int32, device=self._device
            ),
            block_size=self._tables.block_size,
            cache=self._cache,
        )
        if not arrays.windows:
            return batch
        tensor = self._tensor
        return batch.with_windows(
            {w: (tensor(slots), tensor(tables)) for w, (slots, tables) in arrays.windows.items()}
        )

    def _tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _prompt_logprobs(
        self, step: Step, arrays: StepArrays, hidden_TD: Tensor
    ) -> dict[int, tuple[Logprobs | None, ...]]:
        """Extend the rows that want them by this step's positions; returns those that are
        complete."""
        done = {}
        for i, (row, start, count, _) in enumerate(step.slices):
            wanted = self._wants_prompt.get(row)
            if wanted is None:
                continue
            first = arrays.query_starts[i]
            stop = min(count, len(wanted.token_ids) - 1 - start)
            for begin in range(0, stop, _LOGPROB_ROWS):
                end = min(begin + _LOGPROB_ROWS, stop)
                logits_PV = self.logits(hidden_TD[first + begin : first + end])
                targets = wanted.token_ids[start + begin + 1 : start + end + 1]
                wanted.found += logprobs_of(logits_PV, targets, wanted.top)
            if start + count >= len(wanted.token_ids):
                done[row] = (None, *self._wants_prompt.pop(row).found)
        return done


@define
class _PromptLogprobs:
    token_ids: tuple[int, ...]
    top: int
    found: list[Logprobs] = field(factory=list)
