"""Tests of models of which the host's memory holds some experts: the tokens are those of experts
that are all in the device's memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from attrs import evolve
from torch import nn

from inferno.catalog import Catalog
from inferno.core.engine import Engine
from inferno.core.runner import ModelRunner
from inferno.errors import UnsupportedError
from inferno.nn import Experts
from inferno.nn.host_experts import HostExperts
from inferno.plan import Plan
from inferno.plan.fetch_use import FetchUse
from inferno.testing.alike import alike, in_turn
from inferno.testing.pipelines import PipelineTests
from inferno.testing.thread_ranks import (
    GREEDY,
    RANKS,
    SEEDED,
    Alone,
    assert_captures_change_nothing,
    assert_same_tokens,
    load_shared,
)
from inferno.testing.tiny import without_kernels

FETCHED_FROM = 5
"""Tokens of a step: the kit decodes fewer sequences."""


class HostExpertTests(PipelineTests):
    """Mixed into `ArchitectureTests`: a family with routed experts gives the same tokens when the
    host's memory holds some of them, or all; another is refused by name."""

    uncaptured: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def routed(cls, checkpoint: Path, catalog: Catalog, limits: dict[str, Any]) -> int:
        """How many routed experts a layer has that the host can hold; 0: none."""
        try:
            engine = load_shared(checkpoint, without_kernels(catalog), 1, experts_on_host=1)
        except UnsupportedError as refused:
            assert "no routed experts" in str(refused)
            return 0
        use = engine.plan.host_experts
        engine.close()
        assert use is not None
        return use.of

    @pytest.fixture(scope="class")
    @classmethod
    def hosted(
        cls, checkpoint: Path, catalog: Catalog, routed: int, limits: dict[str, Any]
    ) -> Iterator[Engine]:
        if not routed:
            pytest.skip("the family has no routed experts that the host can hold")
        count = -(-routed // 2)
        engine = load_shared(
            checkpoint, without_kernels(catalog), 1, experts_on_host=count, **limits
        )
        yield engine
        engine.close()

    @alike
    def test_experts_on_the_host_give_the_same_tokens(
        self, hosted: Engine, alone: Alone, prompts: list[list[int]]
    ) -> None:
        """On a host that is the device, and on one to which the tokens are copied."""
        mixtures = [each for each in model_of(hosted).modules() if isinstance(each, Experts)]
        assert mixtures
        for copied, params in ((False, GREEDY), (True, SEEDED)):
            for mixture in mixtures:
                assert mixture.host is not None and mixture.near is not None
                mixture.host.copied = copied
            assert_same_tokens(hosted, alone, prompts, params)

    @alike
    def test_experts_that_are_fetched_give_the_same_tokens(
        self,
        checkpoint: Path,
        catalog: Catalog,
        routed: int,
        alone: Alone,
        prompts: list[list[int]],
        limits: dict[str, Any],
    ) -> None:
        """In all steps, and in those of more than a few tokens: of prompts."""
        if not routed:
            pytest.skip("the family has no routed experts that the host can hold")
        plain, count = without_kernels(catalog), -(-routed // 2)
        for tokens in (1, FETCHED_FROM):
            changed = partial(fetching, tokens=tokens)
            ours = load_shared(checkpoint, plain, 1, changed, experts_on_host=count, **limits)
            hosts = [each for each in model_of(ours).modules() if isinstance(each, HostExperts)]
            assert_same_tokens(ours, alone, prompts, GREEDY)
            for host in hosts:
                assert host.fetched is not None and host.fetched.fetched > 0
                assert (host.group is None) == (tokens == 1)
            ours.close()

    @in_turn
    @pytest.mark.slow
    def test_experts_on_the_host_of_stages_give_the_same_tokens(
        self,
        checkpoint: Path,
        catalog: Catalog,
        routed: int,
        stages: int,
        alone: Alone,
        prompts: list[list[int]],
    ) -> None:
        """Each stage's host holds those of its layers."""
        if not routed or not stages:
            pytest.skip("no routed experts on the host, or no pipeline stages")
        plain, count = without_kernels(catalog), -(-routed // 2)
        ours = load_shared(checkpoint, plain, 1, pp=RANKS, experts_on_host=count)
        assert_same_tokens(ours, alone, prompts, GREEDY)
        ours.close()

    @pytest.mark.slow
    def test_captured_steps_change_nothing_for_experts_on_the_host(
        self,
        checkpoint: Path,
        catalog: Catalog,
        routed: int,
        alone: Alone,
        prompts: list[list[int]],
        limits: dict[str, Any],
    ) -> None:
        """With the native kernels, if a provider of them captures steps; all experts on the host,
        which is the device."""
        if not routed or self.uncaptured:
            pytest.skip("no routed experts on the host, or steps cannot be captured")
        ours = load_shared(checkpoint, catalog, 1, experts_on_host=routed, **limits)
        assert_captures_change_nothing(ours, alone, prompts)


def fetching(plan: Plan, tokens: int | None) -> Plan:
    """Let the CPU fetch experts from its own memory, as a device would: copies of them, in steps of
    at least this many tokens; None: as measured. Such steps cannot be captured."""
    use = plan.host_experts
    assert use is not None, "some experts are on the host"
    fetch = FetchUse(from_tokens=tokens, buffer_bytes=0)
    return evolve(plan, host_experts=evolve(use, fetch=fetch), capture=None)


def model_of(engine: Engine) -> nn.Module:
    """The model that an engine of this process computes."""
    runner = engine._runner
    assert isinstance(runner, ModelRunner)
    return runner._model
