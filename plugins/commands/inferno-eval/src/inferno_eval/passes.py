"""One pass of a model over the windows of a text.

Suffixes: P scored positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from attrs import field, frozen

from inferno.host import load_torch_library
from inferno.plan import Options, modules_of, open_model, unused_tensors
from inferno.process.prepare import prepared
from inferno_eval.measures import Array, Divergence, Perplexity
from inferno_eval.windows import Window

if TYPE_CHECKING:
    from torch import Tensor

    from inferno_eval.forward import Scorer

Progress = Callable[[str, int, int], None]
"""progress(model, positions that are scored, all positions)."""


@frozen(eq=False)
class Pass:
    """A model's predictions at the scored positions."""

    modules: tuple[str, ...]
    """Paths of the model's matrices."""
    weights: int
    """Planned bytes of its weights."""
    nll_P: Array
    best_P: Array
    target_P: Array
    kl_P: Array
    """Divergence from the reference; empty if there is none."""

    @property
    def perplexity(self) -> Perplexity:
        return Perplexity.of(self.nll_P)

    def divergence(self, reference: Pass) -> Divergence:
        """Return how far it is from the reference, whose distributions it was compared with."""
        return Divergence.of(
            self.kl_P,
            nll_P=self.nll_P,
            reference_nll_P=reference.nll_P,
            best_P=self.best_P,
            reference_best_P=reference.best_P,
            target_P=self.target_P,
        )


@frozen(eq=False)
class Passage:
    """A text as windows, to be run through models with the same vocabulary."""

    windows: tuple[Window, ...]
    vocab_size: int
    progress: Progress
    num_tokens: int = field(init=False)
    """Number of scored positions."""

    def __attrs_post_init__(self) -> None:
        count = sum(len(window.targets) for window in self.windows)
        object.__setattr__(self, "num_tokens", count)

    def through(
        self,
        ref: str,
        options: Options,
        *,
        name: str | None = None,
        write: Callable[[Tensor], None] | None = None,
        compare: Callable[[Tensor], Tensor] | None = None,
    ) -> Pass:
        """Load a model, run the windows, and free it. Its log-probabilities, (P, V), some positions
        at a time, are given to `write`, or to `compare`, which returns their divergence. `name`
        is the one that `progress` is told."""
        load_torch_library()
        with open_model(ref, options) as opened, prepared(opened) as packed:
            from inferno_eval.forward import Scorer

            scorer, plan = Scorer(opened, packed), opened.plan
            stored = modules_of(opened.checkpoint.tensors, unused_tensors(opened.config))
        arrays = self._scores(scorer, name or ref, write, compare)
        scorer.close()
        return Pass(
            modules=tuple(path for path in stored if plan.scheme_of(path) is not None),
            weights=sum(use.nbytes for use in plan.schemes),
            nll_P=arrays["nll"],
            best_P=arrays["best"],
            target_P=arrays["target"],
            kl_P=arrays["kl"],
        )

    def _scores(
        self,
        scorer: Scorer,
        name: str,
        write: Callable[[Tensor], None] | None,
        compare: Callable[[Tensor], Tensor] | None,
    ) -> dict[str, Array]:
        """Run the windows. Returns arrays by the fields of `Pass`."""
        import torch

        lists: dict[str, list[Tensor]] = {"nll": [], "best": [], "target": [], "kl": []}
        done = 0
        for scored in scorer.score(self.windows, self.vocab_size):
            logprob_PV = torch.log_softmax(scored.logits_PV, -1)
            nll_P1 = -logprob_PV.gather(-1, scored.target_P[:, None])
            lists["nll"].append(nll_P1[:, 0].double())
            lists["best"].append(logprob_PV.argmax(-1))
            lists["target"].append(scored.target_P)
            if write is not None:
                write(logprob_PV)
            if compare is not None:
                lists["kl"].append(compare(logprob_PV))
            done += len(logprob_PV)
            self.progress(name, done, self.num_tokens)
        return {
            name: torch.cat(each).cpu().numpy() if each else np.zeros(0)
            for name, each in lists.items()
        }
