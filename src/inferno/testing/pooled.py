"""Vectors of prompts, as an engine pools them.

Suffixes: P prompts, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from inferno.constraints import Drafts
from inferno.core.launches import Ticket
from inferno.core.types import Step
from inferno.request.requests import Reduction, Request
from inferno.testing.tiny import Toy


def embedded(
    toy: Toy,
    prompts: Sequence[Sequence[int]],
    how: Reduction,
    *,
    seconds: Sequence[int] = (),
    steps: list[Step] | None = None,
) -> Tensor:
    """Return each prompt's vector, (P, D), all computed at once; `seconds` as in `Request`. Appends
    the steps to `steps`."""
    engine = toy.engine()
    launch = engine._runner.launch

    def recorded(step: Step, cut: Callable[[Drafts], Drafts] | None = None) -> Ticket:
        if steps is not None:
            steps.append(step)
        return launch(step, cut)

    engine._runner.launch = recorded  # type: ignore[method-assign]
    for i, prompt in enumerate(prompts):
        second = seconds[i] if seconds else 0
        engine.submit(Request(id=str(i), token_ids=tuple(prompt), pooling=how, second=second))
    vectors: dict[str, tuple[float, ...]] = {}
    while engine.busy:
        for output in engine.step():
            assert output.embedding is not None, output.error
            vectors[output.request_id] = output.embedding
        engine.check()
    return torch.tensor([vectors[str(i)] for i in range(len(prompts))])
