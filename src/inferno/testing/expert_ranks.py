"""Tests of models whose experts are dealt out to ranks: the tokens are those of one process. The
ranks are threads (`ThreadRanks`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from attrs import evolve

from inferno.catalog import Catalog
from inferno.contracts import Architecture
from inferno.core.engine import Engine
from inferno.errors import UnsupportedError
from inferno.plan import open_model
from inferno.testing.alike import alike, in_turn
from inferno.testing.ranks import RankTests
from inferno.testing.reading import Reading
from inferno.testing.thread_ranks import (
    GREEDY,
    RANKS,
    Alone,
    assert_captures_change_nothing,
    assert_same_tokens,
    assert_same_with_prefix_hits,
    held_bytes,
    load_shared,
)
from inferno.testing.tiny import small_options, without_kernels
from inferno.weights.loading import load_model


class ExpertRankTests(RankTests):
    """Mixed into `ArchitectureTests`: a family with routed experts whose architecture `divides`
    gives the tokens of one process when several ranks have some experts each; others are refused by
    name."""

    uncaptured: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def experts(cls, catalog: Catalog) -> int:
        """How many experts ranks can share; 0: none, or they are not `nn.Experts`."""
        architecture: Architecture = catalog.architecture(cls.config["architectures"][0]).item
        count: int = getattr(architecture.config(cls.config), "num_experts", 0) or 0
        return count if architecture.divides else 0

    @pytest.fixture(scope="class")
    @classmethod
    def dealt(
        cls, checkpoint: Path, catalog: Catalog, experts: int, limits: dict[str, Any]
    ) -> Iterator[Engine]:
        if experts < RANKS:
            pytest.skip("the family has no experts that ranks can share")
        engine = load_shared(checkpoint, without_kernels(catalog), ep=True, **limits)
        yield engine
        engine.close()

    @alike
    def test_what_has_no_experts_is_refused_by_name(
        self, checkpoint: Path, catalog: Catalog, experts: int
    ) -> None:
        if experts >= RANKS:
            pytest.skip("the family has experts that ranks can share")
        with pytest.raises(UnsupportedError, match="no routed experts|one tensor|be divided among"):
            load_shared(checkpoint, catalog, ep=True)

    @alike
    @pytest.mark.slow
    def test_experts_of_several_ranks_give_the_tokens_of_one_process(
        self, dealt: Engine, alone: Alone, prompts: list[list[int]]
    ) -> None:
        assert_same_with_prefix_hits(dealt, alone, prompts)

    @alike
    @pytest.mark.slow
    def test_a_rank_reads_and_holds_its_own_experts(
        self, dealt: Engine, checkpoint: Path, catalog: Catalog, limits: dict[str, Any]
    ) -> None:
        """Each is read by one rank; weights are within 5 % of what is planned for the largest."""
        options = small_options({"device": "cpu", "tp": RANKS, "ep": True, **limits})
        nobody: Any = SimpleNamespace(all_reduce=None, all_gather=None)
        seen, sizes = list[str](), list[int]()
        with open_model(str(checkpoint), options, without_kernels(catalog)) as opened:
            [planned] = [item.nbytes for item in opened.plan.memory if item.name == "weights"]
            for rank in range(RANKS):
                reading: Any = Reading(opened.checkpoint, Counter[str]())
                part = evolve(opened, rank=rank, checkpoint=reading, communicator=nobody)
                sizes.append(held_bytes(load_model(part)))
                seen += [name for name in reading.read_bytes if ".experts." in name]
            stored = [name for name in opened.checkpoint.tensors if ".experts." in name]
            assert sorted(seen) == sorted(stored)
            assert max(sizes) == pytest.approx(planned, rel=0.05)

    @pytest.mark.slow
    def test_more_ranks_than_the_experts_divide_by(
        self, experts: int, checkpoint: Path, catalog: Catalog, alone: Alone, prompts: Any
    ) -> None:
        """Some have more experts than others."""
        if experts < 3:
            pytest.skip("the family has no experts that three ranks can share")
        shared = load_shared(checkpoint, without_kernels(catalog), 3, ep=True)
        assert_same_tokens(shared, alone, prompts, GREEDY)
        shared.close()

    @in_turn
    @pytest.mark.slow
    def test_captured_steps_change_nothing_for_dealt_experts(
        self,
        checkpoint: Path,
        catalog: Catalog,
        experts: int,
        alone: Alone,
        prompts: list[list[int]],
        limits: dict[str, Any],
    ) -> None:
        """With the native kernels, if a provider of them captures steps."""
        if experts < RANKS or self.uncaptured:
            pytest.skip("ranks can share no experts, or steps cannot be captured")
        shared = load_shared(checkpoint, catalog, ep=True, **limits)
        assert_captures_change_nothing(shared, alone, prompts)
