"""Runs toy models through the real scheduler, runner and sampler.

Suffixes: N generated tokens, V vocabulary.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from attrs import define, evolve, frozen
from torch import Tensor, nn

from inferno.catalog import Catalog, load_catalog
from inferno.constraints import Drafts, Masks
from inferno.contracts import Capture
from inferno.core.engine import Engine, scheduler_of
from inferno.core.kvcache import CacheGroups, KVCache
from inferno.core.runner import LaunchedStep, ModelRunner
from inferno.core.runner.tables import StepArrays
from inferno.core.types import Sampled, Step
from inferno.nn import Attention, State, Weight
from inferno.plan import Options, Plan, open_model
from inferno.request.requests import AdapterRef, EngineStats, Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing.lint import Lint
from inferno.weights.adapters import Adapters
from inferno.weights.loading import check, load_model

MAX_MODEL_LEN = 160

DEVICE = os.environ.get("INFERNO_TEST_DEVICE", "cpu")
"""Device of toy models. On a GPU, its kernels and captured steps are compared with the references,
which stay on the CPU."""
_ON_DEVICE = {} if DEVICE == "cpu" else {"memory": "2GiB", "block_size": 16}
"""The processes of a test run share a GPU, and its backends' blocks are longer than the prompts."""


@frozen(eq=False)
class Outcome:
    """The result of one prompt."""

    token_ids: tuple[int, ...]
    logits_NV: Tensor
    """Logits that each token was chosen from, float32."""
    num_cached: int
    """Prompt tokens found in the cache."""
    stats: EngineStats
    """The engine's, after all prompts."""


@define(eq=False)
class Toy:
    """A loaded model and its plan. `engine()` gives it a fresh cache and scheduler."""

    plan: Plan
    model: nn.Module
    adapters: Adapters | None = None
    """Those that requests may name (`testing.adapters`)."""

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int = 1) -> list[Outcome]:
        """Greedy tokens and their logits for all prompts at once."""
        return generate(self, prompts, max_tokens)

    def logits(self, prompt: Sequence[int]) -> Tensor:
        """The logits of the token after the prompt, (V,), float32."""
        return self.generate([prompt])[0].logits_NV[0]

    def engine(self, capture: Capture | None = None, lag: int = 0) -> Engine:
        """Return an engine that captures decode steps, if it is given a capture, with `lag` steps
        in flight, as on a GPU."""
        plan = self.plan
        policy = installed(plan.disable, plan.only).cache_policy(plan.cache_policy).item
        groups = CacheGroups.of_plan(plan, policy.build(plan.num_blocks))
        runner = Recorder(self.model, plan, capture, overlaps=lag > 0, adapters=self.adapters)
        return Engine(plan, scheduler_of(plan, groups), runner, lag=lag)

    def cache(self) -> list[Tensor]:
        """The tensors of a fresh cache."""
        return [tensor for layer in KVCache.of_plan(self.plan).layers for tensor in layer.values()]


class Recorder(ModelRunner):
    """A runner that records the logits of every sample."""

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        capture: Capture | None = None,
        *,
        overlaps: bool = False,
        adapters: Adapters | None = None,
    ) -> None:
        super().__init__(model, plan, capture=capture, overlaps=overlaps, adapters=adapters)
        self.seen: dict[str, list[Tensor]] = {}
        self.lint = Lint()
        """What decode steps that are replayed wait for, draws included, if they overlap."""
        self._owners: dict[int, str] = {}
        self._latest_SV = torch.empty(0)
        self._layer = next((m for m in model.modules() if isinstance(m, Attention | State)), None)

    def launch(self, step: Step, cut: Callable[[Drafts], Drafts] | None = None) -> LaunchedStep:
        layer = self._layer
        if layer is not None and layer.cache is not self.cache.layers[layer.layer_id]:
            self.cache.bind(self._model)  # another engine of the same toy has bound its cache
        self._owners.update((a.row, a.request.id) for a in step.new_sequences)
        with self._linted(step):
            launched = super().launch(step, cut)
        rows = [s.row for s in step.slices if s.samples]
        for row, logits_V in zip(rows, self._latest_SV if rows else (), strict=True):
            self.seen.setdefault(self._owners[row], []).append(logits_V.float().cpu())
        return launched

    def draw(self, launched: LaunchedStep, masks: Masks) -> Sampled | Callable[[], Sampled]:
        with self._linted(launched.step):
            return super().draw(launched, masks)

    def _linted(self, step: Step) -> AbstractContextManager[object]:
        decodes = not step.new_sequences and all(s.num_tokens == 1 for s in step.slices)
        ready = self.replays is not None and self.replays.shapes and not self.replays.num_waiting
        return self.lint if self.lag and decodes and ready else nullcontext()

    def _replayed(self, arrays: StepArrays) -> Tensor | None:
        if (logits_SV := super()._replayed(arrays)) is not None:
            self._latest_SV = logits_SV.clone()  # the next step overwrites them
        return logits_SV

    def logits_of(self, hidden_SD: Tensor) -> Tensor:
        self._latest_SV = super().logits_of(hidden_SD)  # a step computes the sampled rows' last
        return self._latest_SV


def generate(
    toy: Toy,
    prompts: Sequence[Sequence[int]],
    max_tokens: int = 1,
    *,
    engine: Engine | None = None,
    adapters: Sequence[AdapterRef | None] = (),
) -> list[Outcome]:
    """Greedy tokens and their logits for all prompts at once, each with its adapter if there are
    any. Checks the scheduler's invariants after every step.

    An `engine` from `Toy.engine()` keeps its prefix cache between calls.
    """
    engine = engine or toy.engine()
    recorder = engine._runner
    assert isinstance(recorder, Recorder), "Toy.engine() makes one"
    recorder.seen.clear()
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    for i, prompt in enumerate(prompts):
        adapter = adapters[i] if adapters else None
        request = Request(id=str(i), token_ids=tuple(prompt), params=params, adapter=adapter)
        engine.submit(request)
    token_ids: dict[str, list[int]] = {str(i): [] for i in range(len(prompts))}
    cached: dict[str, int] = {}
    while engine.busy:
        for token in engine.step():
            assert token.token_id is not None, "these requests end with a token"
            token_ids[token.request_id].append(token.token_id)
            cached.setdefault(token.request_id, token.num_cached)
        engine.check()
    return [
        Outcome(tuple(token_ids[i]), torch.stack(recorder.seen[i]), cached[i], engine.stats())
        for i in token_ids
    ]


def load_toy(path: str | Path, catalog: Catalog | None = None, **options: Any) -> Toy:
    """Load the model at `path` on the CPU: in float32, for contexts of 160 tokens and 8 sequences,
    unless `options` (those of `inferno.LLM`) differ."""
    with open_model(str(path), small_options(options), catalog) as opened:
        toy = Toy(opened.plan, load_model(opened))
    multiplied = kernels_of(toy.model)
    assert multiplied == {path: toy.plan.kernel_of(path) for path in multiplied}, (
        "the plan names another kernel than the one that multiplies a matrix"
    )
    return toy


def kernels_of(model: nn.Module) -> dict[str, str]:
    """Return what multiplies each stored matrix of a loaded model, by its module's path."""
    weights = [each for each in model.modules() if isinstance(each, Weight)]
    return {path: each.kernel for each in weights for path in each.sources if path}


def plan_of(path: str | Path, catalog: Catalog | None = None, **options: Any) -> Plan:
    """Make the plan that `load_toy` executes."""
    with open_model(str(path), small_options(options), catalog) as opened:
        return opened.plan


def count_tensors(path: str | Path, catalog: Catalog | None = None, **options: Any) -> int:
    """Check every tensor's name and shape, and return the number stored. Reads headers only. Raises
    CheckpointError."""
    with open_model(str(path), small_options(options), catalog) as opened:
        return check(opened)


def small_options(options: Mapping[str, Any]) -> Options:
    """Return options for a float32 model on the CPU with the kit's limits, unless these differ."""
    few = {"max_num_seqs": 8, "max_num_batched_tokens": 512, "max_model_len": MAX_MODEL_LEN}
    return Options(**{"dtype": "float32", "device": DEVICE, **_ON_DEVICE, **few, **options})


def same_bits(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> bool:
    """Whether tokens and logits are equal to the bit."""
    return all(
        a.token_ids == b.token_ids and torch.equal(a.logits_NV, b.logits_NV)
        for a, b in zip(ours, theirs, strict=True)
    )


def assert_close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-4) -> None:
    """Compare logits with transformers'."""
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def assert_begins(whole: Outcome, ours: Outcome, tolerance: float = 1e-4) -> None:
    """Compare tokens and logits with the first ones of a longer answer."""
    first = len(ours.token_ids)
    assert ours.token_ids == whole.token_ids[:first]
    assert_close(ours.logits_NV, whole.logits_NV[:first], tolerance)


@cache
def installed(disable: tuple[str, ...] = (), only: tuple[str, ...] = ()) -> Catalog:
    """`load_catalog`, cached: it takes longer than many a test."""
    return load_catalog(disable=disable, only=only)


@cache
def torch_only() -> Catalog:
    """The installed plugins without kernel providers, which may round activations to 8 bits as
    llama.cpp does. Cached."""
    kernels = {offer.distribution for offer in load_catalog().of("inferno_kernels")}
    return load_catalog(disable=kernels)


def without_kernels(catalog: Catalog) -> Catalog:
    """The catalog without the distributions that provide kernels."""
    kernels = {offer.distribution for offer in catalog.of("inferno_kernels")}
    offers = {
        hook: tuple(offer for offer in choices if offer.distribution not in kernels)
        for hook, choices in catalog.offers.items()
    }
    return evolve(catalog, offers=offers)


def randomize(model: nn.Module, seed: int = 0) -> None:
    """Set random weights that test everything: biases are not zero, norms not one. All values are
    exact in bfloat16, so that float32 and bfloat16 models have the same weights."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in model.state_dict(keep_vars=True).values():
            if not param.is_floating_point():
                continue
            noise = torch.randn(param.shape, generator=generator)
            value = (
                noise * param.shape[-1] ** -0.5 if param.ndim > 1 else param.float() + 0.2 * noise
            )
            param.copy_(value.bfloat16())


def ragged_prompts(vocab_size: int, lengths: Sequence[int] = (1, 5, 16, 17, 70)) -> list[list[int]]:
    """Prompts with lengths around a block's edges, and one of several blocks."""
    draw = random.Random(len(lengths))
    return [[draw.randrange(vocab_size) for _ in range(length)] for length in lengths]


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the code in a fresh interpreter with this one's import path."""
    env: Mapping[str, Any] = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=env
    )
