"""Tests of multi-token-prediction layers that several ranks share, or that are beside a pipeline's
last stage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch import Tensor

from inferno.catalog import Catalog
from inferno.errors import EngineDeadError
from inferno.request.sampling_params import SamplingParams
from inferno.testing.alike import alike, in_turn
from inferno.testing.installed import Installed
from inferno.testing.mtp_runs import assert_same, draft_always, knowing, load, requests, run
from inferno.testing.thread_engines import ThreadEngines
from inferno.testing.thread_ranks import GREEDY, answers, load_shared, tokens_of
from inferno.testing.tiny import without_kernels

MTP: dict[str, Any] = {
    "speculative": "mtp",
    "dtype": "float32",
    "max_num_seqs": 8,
    "max_model_len": 160,
    "max_num_batched_tokens": 48,
}


class MTPRankTests(Installed):
    """Part of `MTPTests`."""

    config: ClassVar[dict[str, Any]]
    twin: ClassVar[Mapping[str, Any] | None] = None
    """The family's `config.json` of the same model, if `config` is of another class
    (`contracts.Spelling`)."""

    @classmethod
    def stored(cls, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what checkpoints store of tensors that are named as DeepSeek-V3's."""
        return dict(tensors)

    @in_turn
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "shared",
        [
            {"tp": 2},
            {"pp": 2},
            {"tp": 4},
            {"tp": 2, "ep": True},
            {"tp": 2, "pp": 2},
        ],
        ids=lambda shared: " ".join(f"{name} {count}" for name, count in shared.items()),
    )
    def test_ranks_propose_and_draw_what_one_process_does(
        self,
        shared: dict[str, int],
        checkpoint: Path,
        catalog: Catalog,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """With prompts in pieces and, the second time, found in the cache; together, and two of
        them alone: several steps in flight leave no drafts to models with states. Ranks that share
        each layer have as many drafts as one process, and as many are accepted."""
        if shared.get("ep") and not self.config.get("num_experts_per_tok"):
            pytest.skip("the family has no routed experts")
        draft_always(monkeypatch)
        plain, wanted = without_kernels(catalog), requests(self.config)
        alone = load(checkpoint, plain, max_num_batched_tokens=48)
        ours = load_shared(checkpoint, plain, shared.get("tp", 1), **{**MTP, **shared})
        turns = [wanted, wanted, *([each] for each in wanted[:2])]
        for turn in turns:
            assert_same(run(ours, turn), run(alone, turn))
        mine, theirs = ours.stats(), alone.stats()
        ours.close()
        assert mine.draft_tokens > 100
        if "pp" not in shared:
            counts = theirs.draft_tokens, theirs.accepted_tokens
            assert (mine.draft_tokens, mine.accepted_tokens) == counts

    @in_turn
    @pytest.mark.slow
    def test_engines_that_share_experts_propose_and_draw_what_one_does(
        self, checkpoint: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each engine has all experts of these layers."""
        if not self.config.get("num_experts_per_tok"):
            pytest.skip("the family has no routed experts")
        draft_always(monkeypatch)
        plain = without_kernels(catalog)
        prompts = [request.token_ids for request in requests(self.config)]
        alone = load(checkpoint, plain, max_num_batched_tokens=48)
        ours = ThreadEngines.load(checkpoint, plain, **MTP)
        try:
            assert tokens_of(ours.answers(prompts, GREEDY)) == tokens_of(
                answers(alone, prompts, GREEDY)
            )
            assert all(engine.stats().draft_tokens > 20 for engine in ours.engines)
        finally:
            ours.close()

    @alike
    def test_good_layers_are_believed_among_ranks(self, catalog: Catalog, tmp_path: Path) -> None:
        """Of a model whose next token depends on the last one only."""
        path = knowing(self.config, self.stored, tmp_path, self.twin)
        [wanted, *_] = requests(self.config, [SamplingParams(temperature=0, max_tokens=60)])
        expected = run(load(path, catalog, None), [wanted])
        for shared in ({"tp": 2}, {"pp": 2}, {"tp": 2, "pp": 2}):
            plain = without_kernels(catalog)
            engine = load_shared(path, plain, shared.get("tp", 1), **{**MTP, **shared})
            assert_same(run(engine, [wanted]), expected)
            stats = engine.stats()
            engine.close()
            assert stats.accepted_tokens == stats.draft_tokens > 30

    @alike
    def test_a_proposer_that_fails_on_one_rank_ends_the_group(
        self, checkpoint: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The others are in a layer that it has left."""
        engine = load_shared(checkpoint, without_kernels(catalog), 2, **MTP)
        runner: Any = engine._runner
        monkeypatch.setattr(runner.drafting.drafter, "propose", lambda *given: 1 / 0)
        draft_always(monkeypatch)
        with pytest.raises((ZeroDivisionError, EngineDeadError)):
            run(engine, requests(self.config))
        with pytest.raises(EngineDeadError):
            engine.step()
