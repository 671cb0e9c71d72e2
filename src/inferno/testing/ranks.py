"""Tests of models that several ranks share: the tokens are those of one process. The ranks are
threads (`ThreadRanks`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from inferno.catalog import Catalog
from inferno.contracts import Architecture
from inferno.core.engine import Engine
from inferno.core.runner import ModelRunner
from inferno.errors import UnsupportedError
from inferno.plan import Plan
from inferno.stores.storing import Storing
from inferno.testing.alike import alike, in_turn
from inferno.testing.installed import Installed
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
from inferno.testing.tiny import Toy, without_kernels


class RankTests(Installed):
    """Mixed into `ArchitectureTests`: a family whose architecture `divides` gives the tokens of one
    process when several ranks share it; one that does not is refused by name."""

    config: ClassVar[dict[str, Any]]
    uncaptured: ClassVar[str]
    most_of_two: ClassVar[float] = 0.75
    """How much of the model each of two ranks has, at most."""

    @pytest.fixture(scope="class")
    @classmethod
    def divides(cls, catalog: Catalog) -> bool:
        architecture: Architecture = catalog.architecture(cls.config["architectures"][0]).item
        return bool(architecture.divides or getattr(architecture.config(cls.config), "divides", {}))

    @pytest.fixture(scope="class")
    @classmethod
    def limits(cls, toy: Toy) -> dict[str, Any]:
        """Options with which prompts have several blocks, whatever layers keep."""
        return {} if toy.plan.attention else {"block_size": toy.plan.block_size}

    @pytest.fixture(scope="class")
    @classmethod
    def alone(cls, checkpoint: Path, catalog: Catalog, limits: dict[str, Any]) -> Iterator[Alone]:
        """The reference: one process, in torch."""
        engine = load_shared(checkpoint, without_kernels(catalog), 1, **limits)
        yield Alone(engine)
        engine.close()

    @pytest.fixture(scope="class")
    @classmethod
    def shared(
        cls, checkpoint: Path, catalog: Catalog, divides: bool, limits: dict[str, Any]
    ) -> Iterator[Engine]:
        if not divides:
            pytest.skip("the architecture does not divide")
        engine = load_shared(checkpoint, without_kernels(catalog), **limits)
        yield engine
        engine.close()

    @alike
    def test_an_architecture_that_does_not_divide_is_refused_by_name(
        self, checkpoint: Path, catalog: Catalog, divides: bool
    ) -> None:
        if divides:
            pytest.skip("the architecture divides")
        with pytest.raises(UnsupportedError, match="cannot be divided among ranks yet"):
            load_shared(checkpoint, catalog)

    @alike
    def test_ranks_give_the_tokens_of_one_process(
        self, shared: Engine, alone: Alone, prompts: list[list[int]]
    ) -> None:
        assert_same_with_prefix_hits(shared, alone, prompts)

    @alike
    def test_ranks_give_the_log_probabilities_of_one_process(
        self, shared: Engine, alone: Alone, prompts: list[list[int]]
    ) -> None:
        assert_same_logprobs(shared, alone, prompts[:3])

    @in_turn
    @pytest.mark.slow
    def test_preemption_and_drafts_change_nothing_for_ranks(
        self,
        checkpoint: Path,
        catalog: Catalog,
        divides: bool,
        alone: Alone,
        prompts: list[list[int]],
        limits: dict[str, Any],
    ) -> None:
        """With a cache that is too small for all prompts, and n-gram drafts."""
        if not divides:
            pytest.skip("the architecture does not divide")
        plain = without_kernels(catalog)
        more: dict[str, Any] = {"speculative": "ngram", **limits}

        def squeezed(tight: Callable[[Plan], Plan]) -> Engine:
            return load_shared(checkpoint, plain, plan=tight, **more)

        assert_preemption_changes_nothing(squeezed, alone, prompts)

    @in_turn
    @pytest.mark.slow
    @pytest.mark.parametrize("ranks", [3, 4])
    def test_more_ranks_give_the_tokens_of_one_process(
        self,
        ranks: int,
        checkpoint: Path,
        catalog: Catalog,
        divides: bool,
        alone: Alone,
        prompts: Any,
    ) -> None:
        """Some hold more than others, and some the same heads of keys and values; most heads are
        whole on each of three."""
        if not divides:
            pytest.skip("the architecture does not divide")
        shared = load_shared(checkpoint, without_kernels(catalog), ranks)
        assert_same_tokens(shared, alone, prompts, GREEDY)
        shared.close()

    @in_turn
    @pytest.mark.slow
    def test_captured_steps_change_nothing_for_ranks(
        self,
        checkpoint: Path,
        catalog: Catalog,
        divides: bool,
        alone: Alone,
        prompts: list[list[int]],
        limits: dict[str, Any],
    ) -> None:
        """With the native kernels, if a provider of them captures steps: what ranks exchange is
        recorded and replayed with the rest of a step."""
        if not divides or self.uncaptured:
            pytest.skip("the architecture does not divide, or its steps cannot be captured")
        shared = load_shared(checkpoint, catalog, **limits)
        assert_captures_change_nothing(shared, alone, prompts)

    @in_turn
    @pytest.mark.slow
    def test_adapters_change_the_tokens_of_ranks_as_those_of_one_process(
        self, checkpoint: Path, catalog: Catalog, divides: bool, prompts: list[list[int]]
    ) -> None:
        """Two adapters and none in one batch, beside every matrix; more of them than slots, which
        are written anew, and prompts that are found in the prefix cache."""
        if not divides:
            pytest.skip("the architecture does not divide")
        plain = without_kernels(catalog)
        assert_same_with_adapters(checkpoint, plain, prompts[-1], tp=RANKS)

    @in_turn
    @pytest.mark.slow
    def test_blocks_of_ranks_come_back_from_a_store(
        self,
        checkpoint: Path,
        catalog: Catalog,
        divides: bool,
        alone: Alone,
        prompts: list[list[int]],
        limits: dict[str, Any],
    ) -> None:
        """From host memory, where each rank keeps its part of every block."""
        stores = [offer for offer in catalog.of("inferno_block_stores") if not offer.item.links]
        if not divides or not stores:
            pytest.skip("the architecture does not divide, or no installed plugin stores blocks")
        shared = load_shared(checkpoint, without_kernels(catalog), cpu_mem_fold=1.0, **limits)
        if isinstance(shared._store, Storing):
            shared._store.sizes = ()  # it loads what it can, however busy the machine is
        long = [[*prompts[-1], *prompt] for prompt in prompts[-2:]]
        assert_same_tokens(shared, alone, long, GREEDY)
        shared._scheduler._groups.reset()
        mine, _ = assert_same_tokens(shared, alone, long, GREEDY)
        stats = shared.stats()
        shared.close()
        assert mine[0][0].num_cached > 0 and stats.store_loaded_bytes > 0
        assert not stats.store_lost_parts

    @alike
    def test_a_rank_takes_the_memory_that_is_planned(self, shared: Engine, toy: Toy) -> None:
        """Weights within 5 % of the plan, which is less than the whole model; the cache exactly."""
        plan = shared.plan
        [planned] = [item.nbytes for item in plan.memory if item.name == "weights"]
        runner = shared._runner
        assert isinstance(runner, ModelRunner)
        assert held_bytes(runner._model) == pytest.approx(planned, rel=0.05)
        assert plan.ranks is not None
        assert held_bytes(runner._model) == pytest.approx(plan.ranks.weights[0], rel=0.05)
        assert planned < self.most_of_two * held_bytes(toy.model)
        assert (
            sum(t.nbytes for layer in runner.cache.layers for t in layer.values()) == plan.kv_bytes
        )
