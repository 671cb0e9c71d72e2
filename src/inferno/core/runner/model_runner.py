"""Runs steps on one device: Step -> Batch -> logits -> token ids. No tensor leaves this room.

A step is launched, then its tokens are drawn, and its results are taken later. On a CUDA device
`draw` leaves the token ids there, for the next step, and starts their copy to the host; it waits
for them if a request needs the host (`Sampler.waits`, grammars, drafts). What some rows need beside
the model is a part of the step: see `parts.StepPart`.

Suffixes: T tokens of the step, S sampled rows, L rows of logits (of S, and of drafts), D hidden,
V vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from inferno.constraints import Drafts, Masks
from inferno.contracts import Capture, Drafter, LogitsProcessor, Mover
from inferno.core.kvcache import KVCache
from inferno.core.runner.inputs import InputSpec
from inferno.core.runner.launched import Draws, LaunchedStep
from inferno.core.runner.parts import Drafting, StepPart, pooling, prompt_logprobs
from inferno.core.runner.replay import Replays
from inferno.core.runner.tables import StepArrays, Tables
from inferno.core.types import Sampled, Step
from inferno.device import device_errors
from inferno.images.seeing import Seeing
from inferno.nn.batch import Batch
from inferno.ops.reference import TORCH, Ops
from inferno.plan import Plan
from inferno.plan.draft_cost import draft_counts, verify_cost
from inferno.sampling import Pairs, Sampler
from inferno.weights.adapters import Adapters
from inferno.weights.adapting import Adapting


class ModelRunner:
    """The model, its cache and its sampler, on one device."""

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        ops: Ops = TORCH,
        capture: Capture | None = None,
        drafter: Drafter | None = None,
        draft_capture: Capture | None = None,
        begin: Callable[[Batch], None] | None = None,
        processors: Mapping[str, LogitsProcessor] | None = None,
        overlaps: bool | None = None,
        parts: Sequence[StepPart] = (),
        adapters: Adapters | None = None,
    ) -> None:
        """`overlaps` says whether draws leave their tokens on the device: None for CUDA devices,
        unless drafts are proposed, which need the last token. `parts` take part in every step
        besides the runner's own."""
        self._model, self._begin = model, begin
        self.plan, self._plan_device = plan, plan.device
        self.mover: Mover | None = None
        """Of the store that `Step.saves` and `Step.loads` are for."""
        with device_errors(plan.device, "allocate its cache"):
            self.cache = KVCache.of_plan(plan)
        self.cache.bind(model)
        if overlaps is None:
            overlaps = plan.overlap
        self.lag = int(overlaps)
        """How many steps may be launched before the results of the one before them are known."""
        self._input_spec = InputSpec.of_plan(plan, copied=overlaps)
        num_groups = self._input_spec.num_groups
        self._tables = Tables(plan.max_num_seqs, plan.max_model_len, plan.block_size, num_groups)
        self._sampler = Sampler(
            plan.max_num_seqs,
            plan.vocab_size,
            device=torch.device(plan.device.torch_name),
            ops=ops,
            processors=processors,
        )
        self._draws = Draws(self._sampler, self._tables, self._input_spec.last_tokens_R)
        counts: tuple[int, ...] = ()
        if plan.speculation is not None and drafter is not None and not drafter.sees_steps:
            counts = draft_counts(plan.speculation.num_drafts)
        captured = capture, plan.capture, self._input_spec, begin, counts
        self.replays: Replays | None
        """Captured steps, if the plan has any."""
        self.adapting: Adapting[Replays] | None = None
        if adapters is not None:
            self.adapting = Adapting(adapters, plan.max_num_seqs)
        if self.adapting is None:
            self.replays = Replays.of_model(model, *captured)
        else:
            self.replays, self.adapting.own_replays = (
                Replays.of_model(model, *captured, partial(self.adapting.captured, active))
                for active in (False, True)
            )
        self.drafting = self._drafting(drafter, draft_capture) if drafter is not None else None
        # None of them refers to the runner: its memory is free as soon as nobody else does.
        device, made = plan.device.torch_name, (self.drafting, self.adapting)
        own: list[StepPart] = [part for part in made if part is not None]
        own += Pairs.of(model, plan.max_num_seqs, plan.max_num_batched_tokens, device)
        own += Seeing.of(model, plan)
        self._parts = (*own, prompt_logprobs(model, self.adapting), pooling(model), *parts)

    def _drafting(self, drafter: Drafter, capture: Capture | None) -> Drafting:
        speculation, spec = self.plan.speculation, self._input_spec
        draft = speculation.draft if speculation is not None else None
        replays: Replays | None = None
        if (layers := drafter.layers) is not None:
            self.cache.bind(layers)
            use = draft.capture if draft is not None else None
            replays = Replays.of_model(layers, capture, use, spec, self._begin)
        sizes = self.plan.vocab_size, (draft or self.plan).vocab_size
        begin = self._begin or (lambda batch: None)
        return Drafting(drafter, self._tables, spec, self._sampler.peek, *sizes, begin, replays)

    @torch.inference_mode()
    def capture_ahead(self, most: int = sys.maxsize) -> int:
        """Capture the steps that the plan wants before the first one, or `most` of each model.
        Returns how many are left."""
        of_drafts = self.drafting.draft_replays if self.drafting is not None else None
        adapted = self.adapting.own_replays if self.adapting is not None else None
        models = [each for each in (self.replays, adapted, of_drafts) if each is not None]
        with device_errors(self._plan_device, "capture its decode steps"):
            for replays in models:
                replays.capture_ahead(most)
        return sum(replays.num_waiting for replays in models)

    @torch.inference_mode()
    def verify_cost(self) -> float | None:
        """Measure `DraftCost.verify` on a CPU; None if no steps with drafts are captured ahead."""
        if self._plan_device.kind != "cpu" or self.replays is None or not self.replays.drafts:
            return None
        self.capture_ahead()
        return verify_cost(self.replays.seconds, self.replays.drafts[-1])

    def forget_captures(self) -> None:
        """Drop the captured steps, and with them the last references to this runner's memory."""
        self.replays = None
        if self.drafting is not None:
            self.drafting.draft_replays = None
        if self.adapting is not None:
            self.adapting.own_replays = None

    @torch.inference_mode()
    def launch(self, step: Step, cut: Callable[[Drafts], Drafts] | None = None) -> LaunchedStep:
        """Compute the step's hidden states, and the logits that its draw needs. `cut` removes
        drafts that need not be verified."""
        self._tables.update(step)
        for new in step.new_sequences:
            for part in self._parts:
                part.admit(new)
            if new.request.pooling is None:
                self._sampler.admit(new.row, new.request, new.token_ids)
        # Saves come before all that writes to the cache: a block that has been evicted since it was
        # planned still has its bytes at its old place.
        if self.mover is not None and (step.saves or step.loads):
            self.mover.save(step.saves)
            self.mover.load(step.loads)
        if step.moves:
            self.cache.move(step.moves)
        if step.copies_before:
            self.cache.copy(step.copies_before)
        launched = LaunchedStep(step, self.plan, self.draw)
        if step.slices:
            self._compute_step(launched, cut)
        elif cut is not None:
            cut({})
        if step.copies_after:
            self.cache.copy(step.copies_after)
        return launched

    def _compute_step(self, launched: LaunchedStep, cut: Callable[[Drafts], Drafts] | None) -> None:
        step = launched.step
        drafts = self.proposed(step)
        drafts = cut(drafts) if cut is not None else drafts
        launched.arrays = arrays = self._tables.lay_out(step, drafts)
        for part in self._parts:
            part.before(arrays)
        if (logits_LV := self._replayed(arrays)) is None:
            inputs = self._input_spec.inputs_of(arrays)
            batch = inputs.batch(arrays)
            if self._begin is not None:  # shows it to the attention backends
                self._begin(batch)
            hidden_TD = self._model(batch)
            for part in self._parts:
                part.after(step, arrays, hidden_TD, launched.results)
            if arrays.sampling_rows:
                logits_LV = self.logits_of(hidden_TD[inputs.last_L])
        launched.logits_LV = logits_LV

    def proposed(self, step: Step) -> Drafts:
        """Return a step's drafts, and those of the proposer."""
        drafts: Drafts = step.drafts
        return drafts if self.drafting is None else {**drafts, **self.drafting.propose(step)}

    def _replayed(self, arrays: StepArrays) -> Tensor | None:
        """Return the logits if the step can be replayed, and no part needs its hidden states."""
        if (replays := self.replays) is None:
            return None
        for part in self._parts:
            if part.refuses_replay(arrays):
                return None
            replays = part.replays(replays)
        return None if replays is None else replays.run(arrays)

    def logits_of(self, hidden_SD: Tensor) -> Tensor:
        """Return the model's logits."""
        logits_SV: Tensor = self._model.logits(hidden_SD)  # type: ignore[operator]  # contracts.Model
        return logits_SV

    @torch.inference_mode()
    def draw(self, launched: LaunchedStep, masks: Masks) -> Sampled | Callable[[], Sampled]:
        """Draw the tokens of a launched step. Returns its results, or what waits for them."""
        return self._draws.draw(launched, masks)
