"""Runs a model over windows as the engine runs prompts: its steps, cache and kernels.

Suffixes: T tokens of a step, N tokens of a window, P positions, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from attrs import frozen
from torch import Tensor, nn

from inferno.core.engine import Engine, scheduler_of
from inferno.core.kvcache import CacheGroups
from inferno.core.runner import ModelRunner
from inferno.device import device_errors
from inferno.nn.batch import Batch
from inferno.plan import Opened, trial_plan
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.sampling import are_broken, not_finite
from inferno.weights.kernels import ops_of
from inferno.weights.loading import begin_of, load_model
from inferno.weights.packing import PackedWeights
from inferno_eval.windows import Window

ROWS = 256
"""Positions whose logits are in memory at once."""


@frozen(eq=False)
class Scored:
    """Some positions of a window."""

    logits_PV: Tensor
    """Float32, on the model's device."""
    target_P: Tensor
    """The tokens that come next, int64, on the same device."""


class _Shown(nn.Module):
    """The model, wrapped to pass the hidden states of every step to `show`."""

    def __init__(self, model: nn.Module, show: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.model, self._show = model, show

    def forward(self, batch: Batch) -> Tensor:
        hidden_TD: Tensor = self.model(batch)
        self._show(hidden_TD)
        return hidden_TD

    def logits(self, hidden_PD: Tensor) -> Tensor:
        logits_PV: Tensor = self.model.logits(hidden_PD)  # type: ignore[operator]
        return logits_PV


class Scorer:
    """A loaded model that scores windows, one after the other. Its cache holds one window."""

    def __init__(self, opened: Opened, packed: PackedWeights | None = None) -> None:
        """Load the model. The plan must be for one sequence at a time, with steps that hold a whole
        window. Raises the errors of loading."""
        with device_errors(opened.plan.device):
            plan = trial_plan(opened.plan)
            self._hidden: list[Tensor] = []
            self._model = _Shown(load_model(opened, packed), self._hidden.append)
            scheduler = scheduler_of(plan, CacheGroups.of_plan(plan, None))
            runner = ModelRunner(self._model, plan, ops_of(opened), begin=begin_of(opened, plan))
            self._engine = Engine(plan, scheduler, runner)

    def score(self, windows: Sequence[Window], vocab_size: int) -> Iterator[Scored]:
        """Yield the scored positions of each window, at most `ROWS` at once, with the logits of the
        first `vocab_size` tokens. Raises NonFiniteError if they are NaN or infinite."""
        for number, window in enumerate(windows):
            hidden_ND = self._run(str(number), window.token_ids[:-1])
            targets = torch.tensor(window.targets, device=hidden_ND.device)
            for start in range(0, len(targets), ROWS):
                target_P = targets[start : start + ROWS]
                first = window.first + start
                logits_PV = self._logits(hidden_ND[first : first + len(target_P)])
                if bool((broken_P := are_broken(logits_PV)).any()):
                    at = first + int(broken_P.int().argmax()) + 1
                    raise not_finite(self._engine.plan, f"window {number} of the text", at)
                yield Scored(logits_PV[:, :vocab_size], target_P)

    def _run(self, name: str, token_ids: tuple[int, ...]) -> Tensor:
        # A request for an embedding draws no token.
        params = SamplingParams(max_tokens=1)
        self._engine.submit(Request(id=name, token_ids=token_ids, params=params, pooling="last"))
        while self._engine.busy:
            self._engine.step()
        hidden_ND = torch.cat(self._hidden)
        self._hidden.clear()
        return hidden_ND

    @torch.inference_mode()
    def _logits(self, hidden_PD: Tensor) -> Tensor:
        logits_PV: Tensor = self._model.logits(hidden_PD).float()
        return logits_PV

    def close(self) -> None:
        """Free the model. The scorer cannot be used again."""
        self._engine.close()
        del self._model
