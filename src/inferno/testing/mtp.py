"""Tests that the multi-token-prediction layers of an architecture must pass.

Suffixes: L tokens of a sequence, D hidden, V vocabulary."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import torch
from attrs import frozen
from safetensors.torch import load_file
from torch import Tensor

from inferno.builtin.mtp import MTPDrafter
from inferno.catalog import Catalog
from inferno.contracts import CheckpointView, DraftRequest, Lookahead, TensorInfo
from inferno.errors import CheckpointError, UnsupportedError
from inferno.plan import (
    mtp_tensors,
    plan_from_json,
    plan_to_json,
    reopen,
)
from inferno.request.sampling_params import SamplingParams
from inferno.testing.alike import alike
from inferno.testing.converting import convert
from inferno.testing.gguf import gguf_dialect, write_gguf
from inferno.testing.gguf_twins import tiny_tokenizer
from inferno.testing.mtp_ranks import MTPRankTests
from inferno.testing.mtp_reference import MTPReference, SpyLookahead, layers
from inferno.testing.mtp_runs import (
    assert_same,
    draft_always,
    knowing,
    load,
    opened,
    requests,
    run,
    write,
)
from inferno.testing.tiny import assert_close, torch_only
from inferno.weights.loading import build, check, load_drafter, load_model


class MTPTests(MTPRankTests):
    """For architectures with multi-token-prediction layers (`Architecture.mtp`), in addition to
    `ArchitectureTests`. Set `config` to a toy `config.json` that has such layers, with the fields
    of DeepSeek-V3, and override `stored` if tensors have other names. The reference is
    transformers' decoder layer."""

    @classmethod
    def prefixes(cls) -> tuple[str, ...]:
        """Return how the names of the layers' tensors begin."""
        return tuple(f"model.layers.{layer}." for layer in layers(cls.config))

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls) -> MTPReference:
        return MTPReference.of(cls.twin or cls.config)

    @pytest.fixture(scope="class")
    @classmethod
    def checkpoint(cls, reference: MTPReference, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("mtp")
        tensors = reference.tensors(tmp_path_factory.mktemp("reference"))
        return write(path, cls.config, cls.stored(tensors))

    @alike
    @alike
    @pytest.mark.parametrize(
        ("always", "options"),
        [(True, {}), (False, {}), (True, {"num_speculative_tokens": 20})],
        ids=["always", "adaptive", "many"],
    )
    def test_drafts_equal_the_formula(
        self, always: bool, options: dict[str, Any], checkpoint: Path, reference: MTPReference
    ) -> None:
        """The logits of every draft, in a batch with chunked prompts, rejected drafts and steps
        without drafts in between, are what the definition predicts for the whole sequence."""
        records = proposals(checkpoint, self.config, always, max_num_batched_tokens=24, **options)
        assert len(records) > (100 if always else 3), "random layers' drafts are soon given up"
        for each in records[:: max(1, len(records) // 10)]:
            expected = reference.predict(each.token_ids, each.drafts)
            assert_close(torch.stack(list(each.logits)), torch.stack(expected))

    @alike
    def test_a_gguf_file_gives_the_same_drafts(
        self, checkpoint: Path, catalog: Catalog, tmp_path: Path
    ) -> None:
        """Where the dialect has the layers; else they are refused."""
        dialect = gguf_dialect(catalog, self.config["architectures"][0])
        if dialect is None or "num_nextn_predict_layers" not in dialect.fields:
            pytest.skip("GGUF files of this architecture do not store the layers")
        whole = {**self.config, "num_hidden_layers": layers(self.config).stop}
        tensors = load_file(checkpoint / "model.safetensors")
        values = write_gguf(tmp_path / "toy.gguf", dialect, whole, tensors, "F16")
        twin = write(tmp_path / "twin", self.config, values)
        ours, theirs = (proposals(p, self.config) for p in (tmp_path / "toy.gguf", twin))
        for one, other in zip(ours, theirs, strict=True):
            assert one.token_ids == other.token_ids
            assert_close(torch.stack(list(one.logits)), torch.stack(list(other.logits)))

    @alike
    def test_a_converted_gguf_file_keeps_the_layers_that_it_can_name(
        self, checkpoint: Path, catalog: Catalog, tmp_path: Path
    ) -> None:
        """Else it is the model without them, and the summary says so."""
        dialect = gguf_dialect(catalog, self.config["architectures"][0])
        if dialect is None:
            pytest.skip("GGUF files have no names for this architecture")
        source, path = shutil.copytree(checkpoint, tmp_path / "source"), tmp_path / "toy.gguf"
        (source / "tokenizer.json").write_bytes(tiny_tokenizer())
        made = convert(str(source), "f32", path, catalog=catalog)
        known = "num_nextn_predict_layers" in dialect.fields
        assert any("no multi-token-prediction layers" in note for note in made.notes) is not known
        if not known:
            _, opened = catalog.open(path)
            config = catalog.architecture(self.config["architectures"][0]).item.config(self.config)
            assert not mtp_tensors(opened.tensors, config)
            opened.close()
            return
        ours, theirs = (proposals(p, self.config) for p in (path, checkpoint))
        for one, other in zip(ours, theirs, strict=True):
            assert one.token_ids == other.token_ids
            assert_close(torch.stack(list(one.logits)), torch.stack(list(other.logits)))

    @alike
    @alike
    @alike
    @pytest.mark.parametrize(
        ("always", "budget", "lag"),
        [(True, 512, 0), (False, 512, 0), (True, 24, 0), (True, 24, 2)],
        ids=["always", "adaptive", "chunked", "in flight"],
    )
    def test_the_output_is_the_same_as_without(
        self,
        always: bool,
        budget: int,
        lag: int,
        checkpoint: Path,
        catalog: Catalog,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        if always:
            draft_always(monkeypatch)
        plain = load(checkpoint, catalog, None, max_num_batched_tokens=budget)
        drafting = load(checkpoint, catalog, max_num_batched_tokens=budget)
        drafting._lag = lag
        expected = run(plain, requests(self.config))
        assert_same(run(drafting, requests(self.config)), expected)
        assert_same(run(drafting, requests(self.config)), expected)  # with prefix hits
        assert drafting.stats().prefix_hits > 0
        for each in requests(self.config):
            assert_same(run(drafting, [each]), {each.id: expected[each.id]})
        assert drafting.stats().draft_tokens > 0

    @pytest.mark.slow
    def test_preempted_requests_get_the_same(
        self, checkpoint: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        draft_always(monkeypatch)
        params = [SamplingParams(temperature=i % 2, seed=i, max_tokens=40) for i in range(5)]
        wanted = requests(self.config, params, 9)
        expected = run(load(checkpoint, catalog, None), wanted)
        for policy in ("auto", "none"):
            engine = load(checkpoint, catalog, num_blocks=9, block_size=8, cache_policy=policy)
            assert_same(run(engine, wanted), expected)
            assert engine.stats().preemptions > 0

    def test_good_layers_are_believed(self, catalog: Catalog, tmp_path: Path) -> None:
        """A model whose next token depends on the last one only, and layers that know it."""
        path = knowing(self.config, self.stored, tmp_path, self.twin)
        [wanted, *_] = requests(self.config, [SamplingParams(temperature=0, max_tokens=60)])
        engine = load(path, catalog)
        assert_same(run(engine, [wanted]), run(load(path, catalog, None), [wanted]))
        stats = engine.stats()
        assert stats.accepted_tokens == stats.draft_tokens > 30
        assert stats.steps < 30

    # --- the checkpoint ---------------------------------------------------------------------------

    def test_every_stored_tensor_is_read_if_used_and_none_otherwise(
        self, checkpoint: Path, catalog: Catalog
    ) -> None:
        with opened(checkpoint, catalog) as source:
            wanted = set(mtp_tensors(source.checkpoint.tensors, source.config))
            everything = set(source.checkpoint.tensors)
            prefixes = self.prefixes()
            copies = {
                name
                for name in everything
                if name.startswith(prefixes) and ("embed_tokens" in name or "head.head" in name)
            }
            assert wanted == {n for n in everything if n.startswith(prefixes)} - copies
            used = everything - copies
            for speculative, read in (("mtp", used), (None, used - wanted)):
                with opened(checkpoint, catalog, speculative) as each:
                    spy = Spy(each.checkpoint, each.checkpoint.tensors)
                    loaded = attrs.evolve(each, checkpoint=spy)
                    load_drafter(loaded, load_model(loaded), None)
                    assert spy.names == read

    @pytest.mark.slow
    def test_a_missing_or_foreign_tensor_is_an_error_only_if_the_layers_are_used(
        self, checkpoint: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with opened(checkpoint, catalog) as source:
            model, empty = load_model(source), build(source)
            # It is not built for each damage.
            monkeypatch.setattr("inferno.weights.loading.build", lambda _: empty)
            tensors = source.checkpoint.tensors
            wanted = mtp_tensors(tensors, source.config)
            foreign = f"{self.prefixes()[0]}foreign.weight"
            damages = [(n, {k: v for k, v in tensors.items() if k != n}) for n in wanted]
            damages.append((foreign, {**tensors, foreign: next(iter(wanted.values()))}))
            for name, damaged in damages:
                spy = Spy(source.checkpoint, damaged)
                with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
                    load_drafter(attrs.evolve(source, checkpoint=spy), model, None)
                with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
                    check(attrs.evolve(source, checkpoint=spy))
                assert not spy.names
        monkeypatch.undo()
        with opened(checkpoint, catalog, None) as source:
            load_model(attrs.evolve(source, checkpoint=Spy(source.checkpoint, damages[0][1])))

    def test_the_plan_has_their_memory_and_cache(self, checkpoint: Path, catalog: Catalog) -> None:
        with opened(checkpoint, catalog) as source, opened(checkpoint, catalog, None) as plain:
            sent = plan_from_json(plan_to_json(source.plan))  # as to the engine process
            with reopen(sent, catalog) as again:
                drafter = load_drafter(again, load_model(again), None)
            assert drafter is not None and drafter.layers is not None
            count = len(layers(self.config))
            assert source.plan.capture is None, "captured steps return no hidden states"
            uses = [layer for use in source.plan.attention for layer in use.layers]
            uses += [layer for use in source.plan.states for layer in use.layers]
            assert sorted(uses) == list(range(self.config["num_hidden_layers"] + count))
            [planned], [without] = (
                [item.nbytes for item in plan.memory if item.name == "weights"]
                for plan in (source.plan, plain.plan)
            )
            held_bytes = sum(
                tensor.nbytes
                for tensor in (*drafter.layers.parameters(), *drafter.layers.buffers())
            )
            assert planned - without == pytest.approx(held_bytes, rel=0.05)

    def test_a_checkpoint_without_them_is_refused(
        self, checkpoint: Path, catalog: Catalog, tmp_path: Path
    ) -> None:
        tensors, further = load_file(checkpoint / "model.safetensors"), self.prefixes()
        others = {n: tensor for n, tensor in tensors.items() if not n.startswith(further)}
        with pytest.raises(UnsupportedError, match="does not store"):
            opened(write(tmp_path / "lacking", self.config, others), catalog)
        config = {**self.config, "num_nextn_predict_layers": 0}
        with pytest.raises(UnsupportedError, match="no multi-token-prediction layers"):
            opened(write(tmp_path / "none", config, others), catalog)


@frozen(eq=False)
class Spy(CheckpointView):
    """A checkpoint with given headers, which records the names that are read."""

    tensors: Mapping[str, TensorInfo]
    names: set[str] = attrs.field(factory=set)

    def read(self, name: str) -> Tensor:
        self.names.add(name)
        return self.checkpoint.read(name)


@frozen(eq=False)
class Proposal:
    """What a drafter proposed for a sequence."""

    token_ids: Sequence[int]
    """The sequence's tokens."""
    drafts: Sequence[int]
    logits: Sequence[Tensor]
    """Of each draft, (V,)."""


def proposals(
    path: Path, config: Mapping[str, Any], always: bool = True, **options: Any
) -> list[Proposal]:
    """Return what the multi-token-prediction layers of a checkpoint propose for a mixed batch, as
    torch computes them: as many drafts as allowed `always`, or as many as pay."""
    records, propose = list[Proposal](), MTPDrafter.propose

    def recorded(
        drafter: MTPDrafter, wanted: Sequence[DraftRequest], lookahead: Lookahead
    ) -> Sequence[Sequence[int]]:
        spy = SpyLookahead(lookahead)
        proposed = propose(drafter, wanted, cast(Lookahead, spy))
        for each, drafts in zip(wanted, proposed, strict=True):
            if drafts:
                records.append(Proposal(each.token_ids.tolist(), drafts, spy.logits[each.row]))
        return proposed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MTPDrafter, "propose", recorded)
        if always:
            draft_always(patched)
        run(load(path, torch_only(), cache_policy="none", **options), requests(config))
    return records
