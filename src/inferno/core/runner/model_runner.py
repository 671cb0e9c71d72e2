"""Runs one step on one device: Step -> Batch -> logits -> token ids. No tensor leaves this module.

Suffixes: T tokens of the step, S sampled rows, P prompt positions, D hidden, V vocabulary.
"""

from __future__ import annotations

import torch
from attrs import define, field
from torch import Tensor, nn

from inferno.contracts import Capture
from inferno.core.kvcache import KVCache
from inferno.core.runner.inputs import InputSpec
from inferno.core.runner.replay import Replays
from inferno.core.runner.tables import StepArrays, Tables
from inferno.core.sampling import Sampler, logprobs_of
from inferno.core.types import Logprobs, Sampled, Step
from inferno.nn import Rope
from inferno.nn.batch import Batch
from inferno.nn.ops import TORCH, Ops
from inferno.plan import Plan

_LOGPROB_ROWS = 256
"""Prompt positions whose logits are in memory at once."""


class ModelRunner:
    """The model, its cache and its sampler, on one device."""

    def __init__(
        self, model: nn.Module, plan: Plan, ops: Ops = TORCH, capture: Capture | None = None
    ) -> None:
        self._model, self._device = model, torch.device(plan.device)
        self.cache = KVCache.of_plan(plan)
        self.cache.bind(model)
        self._input_spec = InputSpec.of_plan(plan)
        windows = self._input_spec.windows
        self._tables = Tables(plan.max_num_seqs, plan.max_model_len, plan.block_size, windows)
        self._sampler = Sampler(
            plan.max_num_seqs,
            plan.vocab_size,
            device=self._device,
            seed=plan.seed,
            argmax=ops.argmax,
        )
        self._wants_prompt: dict[int, _PromptLogprobs] = {}
        self.replays: Replays | None = None
        """Captured steps, if the plan has any."""
        if capture is not None and plan.capture is not None:
            self.replays = Replays(
                self._compute, capture, plan.capture, self._input_spec, self._prepare
            )

    @torch.inference_mode()
    def run(self, step: Step) -> Sampled:
        """Compute a non-empty step: one token for each slice that samples."""
        self._tables.update(step)
        for new in step.new_sequences:
            self._sampler.admit(new.row, new.request, new.token_ids)
            self._wants_prompt.pop(new.row, None)
            if (top := new.request.params.prompt_logprobs) is not None:
                self._wants_prompt[new.row] = _PromptLogprobs(new.request.token_ids, top)
        arrays = self._tables.lay_out(step)
        if step.copies_before:
            self.cache.copy_states(step.copies_before)
        if (logits_SV := self._replayed(arrays)) is None:
            inputs = self._input_spec.inputs_of(arrays)
            hidden_TD = self._model(inputs.batch(arrays))
        if step.copies_after:
            self.cache.copy_states(step.copies_after)
        prompt_logprobs: dict[int, tuple[Logprobs | None, ...]] = {}
        if logits_SV is None:
            if self._wants_prompt:
                prompt_logprobs = self._prompt_logprobs(step, arrays, hidden_TD)
            if not arrays.sampling_rows:
                return Sampled([], {}, prompt_logprobs)
            logits_SV = self.logits(hidden_TD[inputs.last_L])
        drawn = self._sampler.sample(logits_SV, arrays.sampling_rows)
        self._tables.append(arrays, drawn.token_ids)
        return Sampled(drawn.token_ids, drawn.logprobs, prompt_logprobs)

    def _replayed(self, arrays: StepArrays) -> Tensor | None:
        """Return the logits if the step can be replayed and none of its rows waits for prompt
        logprobs. Rows of aborted requests may be left in `_wants_prompt`."""
        if self.replays is None or not self._wants_prompt.keys().isdisjoint(arrays.sampling_rows):
            return None
        return self.replays.run(arrays)

    def _prepare(self, batch: Batch) -> None:
        for module in self._model.modules():
            if isinstance(module, Rope):
                module(batch)

    def _compute(self, batch: Batch) -> Tensor:
        return self.logits(self._model(batch))

    def logits(self, hidden_SD: Tensor) -> Tensor:
        logits_SV: Tensor = self._model.logits(hidden_SD)  # type: ignore[operator]  # contracts.Model
        return logits_SV

    def _prompt_logprobs(
        self, step: Step, arrays: StepArrays, hidden_TD: Tensor
    ) -> dict[int, tuple[Logprobs | None, ...]]:
        """Add this step's positions to the rows that want prompt logprobs. Returns the complete
        ones."""
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
