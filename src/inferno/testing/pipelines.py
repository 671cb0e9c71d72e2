"""Tests of models whose layers are those of several pipeline stages: the tokens are those of one
process. The ranks are threads (`ThreadRanks`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from attrs import evolve

from inferno.catalog import Catalog
from inferno.contracts import Architecture, Communicator
from inferno.core.engine import Engine
from inferno.errors import OptionError, UnsupportedError
from inferno.nn import Attention, Edges, State
from inferno.plan import Plan, open_model, plan_of_stage, stage_starts
from inferno.testing.alike import alike, in_turn
from inferno.testing.drafts import answers_of, guessing, requests_of
from inferno.testing.ranks import RankTests
from inferno.testing.reading import Reading
from inferno.testing.thread_ranks import (
    GREEDY,
    RANKS,
    Alone,
    assert_captures_change_nothing,
    assert_preemption_changes_nothing,
    assert_same_logprobs,
    assert_same_tokens,
    assert_same_with_adapters,
    assert_same_with_prefix_hits,
    held_bytes,
    load_shared,
)
from inferno.testing.tiny import small_options, without_kernels
from inferno.weights.loading import load_model


class PipelineTests(RankTests):
    """Mixed into `ArchitectureTests`: a family whose architecture `divides` gives the tokens of one
    process when its layers are those of several pipeline stages; others are refused by name."""

    uncaptured: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def stages(cls, catalog: Catalog) -> int:
        """The most stages to test, one for each of at most 4 layers that a stage may begin with; 0:
        the family has none."""
        architecture: Architecture = catalog.architecture(cls.config["architectures"][0]).item
        config = architecture.config(cls.config)
        if not architecture.divides:
            return 0
        starts = stage_starts(config)
        return min(len(starts), 4) if len(starts) > 1 else 0

    @pytest.fixture(scope="class")
    @classmethod
    def staged(
        cls, checkpoint: Path, catalog: Catalog, stages: int, limits: dict[str, Any]
    ) -> Iterator[Engine]:
        """An engine of two stages."""
        if not stages:
            pytest.skip("the family has no pipeline stages, or the toy one layer")
        engine = load_shared(checkpoint, without_kernels(catalog), 1, pp=RANKS, **limits)
        yield engine
        engine.close()

    @alike
    def test_a_family_without_pipeline_stages_is_refused_by_name(
        self, checkpoint: Path, catalog: Catalog, stages: int
    ) -> None:
        architecture: Architecture = catalog.architecture(self.config["architectures"][0]).item
        config = architecture.config(self.config)
        if stages or getattr(config, "num_hidden_layers", 0) == 1:
            pytest.skip("the family has pipeline stages, or the toy one layer")
        error = UnsupportedError, OptionError
        with pytest.raises(error, match="cannot (be (computed in|divided among)|begin a)"):
            load_shared(checkpoint, catalog, 1, pp=RANKS)

    @alike
    @pytest.mark.slow
    def test_stages_give_the_tokens_of_one_process(
        self, staged: Engine, alone: Alone, prompts: list[list[int]]
    ) -> None:
        assert_same_with_prefix_hits(staged, alone, prompts)

    @alike
    @pytest.mark.slow
    def test_stages_give_the_log_probabilities_of_one_process(
        self, staged: Engine, alone: Alone, prompts: list[list[int]]
    ) -> None:
        assert_same_logprobs(staged, alone, prompts[:3])

    @in_turn
    @pytest.mark.slow
    def test_preemption_changes_nothing_for_stages(
        self,
        checkpoint: Path,
        catalog: Catalog,
        stages: int,
        alone: Alone,
        prompts: list[list[int]],
        limits: dict[str, Any],
    ) -> None:
        """With a cache that is too small for all prompts."""
        if not stages:
            pytest.skip("the family has no pipeline stages, or the toy one layer")
        plain = without_kernels(catalog)

        def squeezed(tight: Callable[[Plan], Plan]) -> Engine:
            return load_shared(checkpoint, plain, 1, plan=tight, pp=RANKS, **limits)

        assert_preemption_changes_nothing(squeezed, alone, prompts)

    @in_turn
    @pytest.mark.slow
    @pytest.mark.parametrize("ranks", [1, RANKS])
    def test_more_stages_give_the_tokens_of_one_process(
        self,
        ranks: int,
        checkpoint: Path,
        catalog: Catalog,
        stages: int,
        alone: Alone,
        prompts: list[list[int]],
    ) -> None:
        """One layer in each, or two stages of two ranks that share each layer."""
        if not stages:
            pytest.skip("the family has no pipeline stages, or the toy one layer")
        pp = stages if ranks == 1 else RANKS
        shared = load_shared(checkpoint, without_kernels(catalog), ranks, pp=pp)
        assert_same_tokens(shared, alone, prompts, GREEDY)
        shared.close()

    @in_turn
    @pytest.mark.slow
    def test_drafts_change_nothing_for_stages(
        self, checkpoint: Path, catalog: Catalog, stages: int, prompts: list[list[int]]
    ) -> None:
        """Right and wrong ones and too few, with prompts in pieces; alone too, and where prompts
        are found in the cache."""
        if not stages:
            pytest.skip("the family has no pipeline stages, or the toy one layer")
        options: dict[str, Any] = {"max_num_batched_tokens": 48, "block_size": 16}
        plain, requests = without_kernels(catalog), requests_of(prompts)
        alone = load_shared(checkpoint, plain, 1, **options)
        expected = answers_of(alone, requests)
        alone.close()
        staged = load_shared(checkpoint, plain, 1, pp=stages, speculative="ngram", **options)
        guessing(staged, requests, expected)
        assert answers_of(staged, requests) == expected
        for request in requests[-2:]:
            assert answers_of(staged, [request]) == {request.id: expected[request.id]}
        stats = staged.stats()
        staged.close()
        assert 0 < stats.accepted_tokens < stats.draft_tokens

    @in_turn
    @pytest.mark.slow
    def test_adapters_change_the_tokens_of_stages_as_those_of_one_process(
        self, checkpoint: Path, catalog: Catalog, stages: int, prompts: list[list[int]]
    ) -> None:
        if not stages:
            pytest.skip("the family has no pipeline stages, or the toy one layer")
        plain = without_kernels(catalog)
        assert_same_with_adapters(checkpoint, plain, prompts[-1], pp=stages)

    @in_turn
    @pytest.mark.slow
    def test_captured_steps_change_nothing_for_stages(
        self,
        checkpoint: Path,
        catalog: Catalog,
        stages: int,
        alone: Alone,
        prompts: list[list[int]],
        limits: dict[str, Any],
    ) -> None:
        """With the native kernels, if a provider of them captures steps."""
        if not stages or self.uncaptured:
            pytest.skip("the family has no pipeline stages, or its steps cannot be captured")
        staged = load_shared(checkpoint, catalog, 1, pp=RANKS, **limits)
        assert_captures_change_nothing(staged, alone, prompts)

    @alike
    def test_a_stage_reads_and_holds_its_own_layers(
        self, checkpoint: Path, catalog: Catalog, stages: int, limits: dict[str, Any]
    ) -> None:
        """Weights within 5 % of what is planned for it, and no other layer's cache."""
        if not stages:
            pytest.skip("the family has no pipeline stages, or the toy one layer")
        options, caches = small_options({"device": "cpu", "pp": stages, **limits}), list[int]()
        with open_model(str(checkpoint), options, without_kernels(catalog)) as opened:
            assert (ranks := opened.plan.ranks) is not None and ranks.stages == stages
            for rank in range(stages):
                use, counts = ranks.pipeline[stage := ranks.stage_of(rank)], Counter[str]()
                plan = plan_of_stage(opened.plan, stage)
                reading: Any = Reading(opened.checkpoint, counts)
                nobody = cast(Communicator, object())
                part = evolve(opened, plan=plan, rank=rank, checkpoint=reading, communicator=nobody)
                model = load_model(part)
                edges = cast(Edges, model.edges)
                assert (edges.received_ND is None, edges.passed_ND is None) == (
                    stage == 0,
                    stage == stages - 1,
                )
                assert held_bytes(model) <= 1.05 * use.weight_bytes
                assert counts.total() <= 1.05 * max(use.weight_bytes, held_bytes(model))
                ids = {m.layer_id for m in model.modules() if isinstance(m, Attention | State)}
                assert ids == {*use.caches}
                caches += ids
                weights = opened.plan.memory[0].nbytes
                assert use.weight_bytes <= weights
            assert sorted(caches) == list(range(len(opened.config.cache_specs())))
