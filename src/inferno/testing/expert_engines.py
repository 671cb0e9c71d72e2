"""Tests of models whose experts are dealt out to engines: the tokens are those of one engine. The
engines are in threads (`ThreadEngines`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from inferno.catalog import Catalog
from inferno.core.runner import ModelRunner
from inferno.request.sampling_params import SamplingParams
from inferno.testing.alike import alike, in_turn
from inferno.testing.expert_ranks import ExpertRankTests
from inferno.testing.thread_engines import ThreadEngines
from inferno.testing.thread_ranks import GREEDY, SEEDED, Alone, held_bytes, tokens_of
from inferno.testing.tiny import Toy, without_kernels

ENGINES = 2


class ExpertEngineTests(ExpertRankTests):
    """Mixed into `ArchitectureTests`: a family with routed experts whose architecture `divides`
    gives the tokens of one engine when several engines have some experts each."""

    uncaptured: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def engines(
        cls, checkpoint: Path, catalog: Catalog, experts: int, limits: dict[str, Any]
    ) -> Iterator[ThreadEngines]:
        if experts < ENGINES:
            pytest.skip("the family has no experts that engines can share")
        engines = ThreadEngines.load(checkpoint, without_kernels(catalog), ENGINES, **limits)
        yield engines
        engines.close()

    @alike
    @pytest.mark.slow
    def test_engines_that_share_experts_give_the_tokens_of_one(
        self, engines: ThreadEngines, alone: Alone, prompts: list[list[int]]
    ) -> None:
        """Greedy and seeded, with prompts that are found in the prefix cache, and while only one of
        them has requests."""
        assert_same(engines, alone, prompts, GREEDY, SEEDED, GREEDY)
        assert_same(engines, alone, prompts[-1:], GREEDY)

    @alike
    @pytest.mark.slow
    def test_an_engine_holds_its_own_experts(self, engines: ThreadEngines, toy: Toy) -> None:
        plan = engines.plan
        assert plan.dealt is not None and plan.dealt.mixtures
        sizes = list[int]()
        for engine in engines.engines:
            assert isinstance(engine._runner, ModelRunner)
            sizes.append(held_bytes(engine._runner._model))
        assert sizes == pytest.approx(plan.dealt.weights, rel=0.05)
        assert plan.memory[0].nbytes == pytest.approx(max(sizes), rel=0.05)
        assert max(sizes) < held_bytes(toy.model)

    @in_turn
    @pytest.mark.slow
    def test_captured_steps_change_nothing_for_engines_that_share_experts(
        self,
        checkpoint: Path,
        catalog: Catalog,
        experts: int,
        alone: Alone,
        prompts: list[list[int]],
        limits: dict[str, Any],
    ) -> None:
        """With an installed kernel provider that captures steps. Engines capture different
        shapes."""
        if experts < ENGINES or self.uncaptured:
            pytest.skip("engines can share no experts, or steps cannot be captured")
        engines = ThreadEngines.load(checkpoint, catalog, ENGINES, **limits)
        runners = [engine._runner for engine in engines.engines]
        replays = [each.replays for each in runners if isinstance(each, ModelRunner)]
        try:
            if None in replays:
                pytest.skip("no installed kernel provider captures steps")
            for some in (prompts, prompts, prompts[-1:]):
                assert_same(engines, alone, some, GREEDY)
            assert all(each and each.refusal is None and each.shapes for each in replays)
        finally:
            engines.close()


def assert_same(
    engines: ThreadEngines,
    alone: Alone,
    prompts: Sequence[Sequence[int]],
    *turns: SamplingParams,
) -> None:
    """Compare the engines' tokens with those of one process."""
    for params, others in zip(turns, alone.answers(prompts, *turns), strict=True):
        assert tokens_of(engines.answers(prompts, params)) == tokens_of(others)
    assert len({each.rounds for each in engines.together}) == 1, "all compute every round"
