"""Models with recurrent states, tested before the cache has groups of states: the numbers of
`ArchitectureTests` with a cache of plain tensors per sequence.

Suffixes: T packed tokens, N tokens of a sequence, L all of its tokens so far, H query heads, K
key/value heads, C head dim, V vocabulary.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.batch import Batch
from inferno.catalog import Catalog
from inferno.contracts import AttentionNeed, Checkpoint
from inferno.errors import CheckpointError
from inferno.loading import fill, settle
from inferno.nn import Attention, State
from inferno.plan.values import adapted
from inferno.testing.architecture import _Damaged, _reshaped, transformers_model
from inferno.testing.installed import Installed
from inferno.testing.tiny import ragged_prompts, run_python

Work = Sequence[tuple[int, Sequence[int]]]
"""Sequences of a step, by any number, and the tokens each is given."""


class Stepper:
    """A model and what it keeps of each sequence."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.lengths: dict[int, int] = {}
        self.kept: dict[tuple[int, int], dict[str, Tensor]] = {}
        """By layer and sequence."""
        for module in model.modules():
            if isinstance(module, Attention):
                module.attend = partial(self._attend, module)
            elif isinstance(module, State):
                setattr(module, "load", partial(self._load, module))  # noqa: B010
                setattr(module, "store", partial(self._store, module))  # noqa: B010

    def step(self, work: Work) -> list[Tensor]:
        """The logits after every token that each sequence is given, (N, V)."""
        before = [self.lengths.get(sequence, 0) for sequence, _ in work]
        counts = [len(tokens) for _, tokens in work]
        starts = [0, *itertools.accumulate(counts)]
        after = [start + count for start, count in zip(before, counts, strict=True)]
        positions = [p for i, j in zip(before, after, strict=True) for p in range(i, j)]
        layers: Any = SimpleNamespace(layers=[{}] * 64)
        unused = torch.empty(0)
        batch = Batch(
            torch.tensor([token for _, tokens in work for token in tokens]),
            torch.tensor(positions),
            unused,
            starts,
            after,
            unused,
            16,
            layers,
            torch.tensor(starts, dtype=torch.int32),
            torch.tensor(after, dtype=torch.int32),
            {"sequences": [sequence for sequence, _ in work]},
        )
        with torch.inference_mode():
            logits_TV: Tensor = self.model.logits(self.model(batch))  # type: ignore[operator]
        self.lengths.update(zip(batch.scratch["sequences"], after, strict=True))
        return [logits_TV[i:j].float() for i, j in itertools.pairwise(starts)]

    def _load(self, state: State, batch: Batch) -> dict[str, Tensor]:
        zeros = {
            name: torch.zeros(t.shape, dtype=getattr(torch, t.dtype))
            for name, t in state.need.tensors.items()
        }
        kept = [self.kept.get((state.layer_id, s), zeros) for s in batch.scratch["sequences"]]
        return {name: torch.stack([held[name] for held in kept]) for name in zeros}

    def _store(self, state: State, batch: Batch, /, **new: Tensor) -> None:
        assert new.keys() == state.need.tensors.keys()
        for row, sequence in enumerate(batch.scratch["sequences"]):
            kept = {name: tensor[row] for name, tensor in new.items()}
            for name, declared in state.need.tensors.items():
                assert kept[name].shape == declared.shape
                assert kept[name].dtype == getattr(torch, declared.dtype)
            self.kept[state.layer_id, sequence] = kept

    def _attend(
        self,
        layer: Attention,
        q_THC: Tensor,
        k_TKC: Tensor,
        v_TKC: Tensor,
        cache: Mapping[str, Tensor],
        batch: Batch,
    ) -> Tensor:
        outputs = []
        spans = itertools.pairwise(batch.query_starts)
        for sequence, (i, j) in zip(batch.scratch["sequences"], spans, strict=True):
            new = {"k": k_TKC[i:j], "v": v_TKC[i:j]}
            held = self.kept.get((layer.layer_id, sequence))
            kept = new if held is None else {n: torch.cat([held[n], new[n]]) for n in new}
            self.kept[layer.layer_id, sequence] = kept
            outputs.append(_attended(q_THC[i:j], kept["k"], kept["v"], layer.need))
        return torch.cat(outputs)


def _attended(q_NHC: Tensor, k_LKC: Tensor, v_LKC: Tensor, need: AttentionNeed) -> Tensor:
    length, count = len(k_LKC), len(q_NHC)
    seen_NL = torch.ones(count, length, dtype=torch.bool).tril(length - count)
    q_HNC, k_KLC, v_KLC = (x.transpose(0, 1) for x in (q_NHC, k_LKC, v_LKC))
    shared = need.num_heads // need.num_kv_heads
    y_HNC = F.scaled_dot_product_attention(
        q_HNC,
        k_KLC.repeat_interleave(shared, 0),
        v_KLC.repeat_interleave(shared, 0),
        attn_mask=seen_NL,
        scale=need.scale,
    )
    return y_HNC.transpose(0, 1)


class HybridTests(Installed):
    """Set `config` to a toy `config.json`, as for `ArchitectureTests`."""

    config: ClassVar[dict[str, Any]]
    lengths: ClassVar[tuple[int, ...]] = (1, 5, 16, 17, 140)
    bfloat16_tolerance: ClassVar[float] = 0.15
    """How far below the reference's best logit a choice may be, in standard deviations."""
    rerouted: ClassVar[float] = 0.0
    """Share of bfloat16 choices that may be further below: rounding sends some tokens to other
    experts, in the reference too."""

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls) -> Any:
        return transformers_model(cls.config)

    @pytest.fixture(scope="class")
    @classmethod
    def checkpoint(cls, reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("toy")
        reference.save_pretrained(path)
        (path / "config.json").write_text(json.dumps({**cls.config, "dtype": "float32"}))
        return path

    @pytest.fixture(scope="class")
    @classmethod
    def stepper(cls, checkpoint: Path, catalog: Catalog) -> Callable[[], Stepper]:
        """Makes steppers of one model, each with nothing kept."""
        model = load(checkpoint, catalog)
        return lambda: Stepper(model)

    @pytest.fixture(scope="class")
    @classmethod
    def prompts(cls) -> list[list[int]]:
        return ragged_prompts(cls.config["vocab_size"], cls.lengths)

    def test_logits_equal_the_reference(
        self, stepper: Callable[[], Stepper], reference: nn.Module, prompts: list[list[int]]
    ) -> None:
        """All prompts in one step."""
        for prompt, ours in zip(prompts, stepper().step(list(enumerate(prompts))), strict=True):
            assert_close(ours, logits_of(reference, prompt))

    def test_pieces_change_nothing(
        self, stepper: Callable[[], Stepper], prompts: list[list[int]]
    ) -> None:
        """Cut at blocks, cut unevenly, token by token."""
        long = prompts[-1]
        [whole] = stepper().step([(0, long)])
        for size in (1, 7, 16, 64):
            cut = stepper()
            pieces = (long[i : i + size] for i in range(0, len(long), size))
            assert_close(torch.cat([cut.step([(0, piece)])[0] for piece in pieces]), whole)

    def test_neighbours_change_nothing(
        self, stepper: Callable[[], Stepper], prompts: list[list[int]]
    ) -> None:
        """Prompts that arrive one after the other, while those before them decode."""
        together = stepper()
        seen: dict[int, list[Tensor]] = {n: [] for n in range(len(prompts))}
        for time in range(len(prompts) + 4):
            # Newcomers in the middle: single tokens on both sides of a prompt.
            work = [(n, prompts[n] if n == time else [n]) for n in range(min(time + 1, len(seen)))]
            work.insert(len(work) // 2, work.pop())
            for (sequence, _), logits in zip(work, together.step(work), strict=True):
                seen[sequence].append(logits)
        for n, prompt in enumerate(prompts):
            [alone] = stepper().step([(0, [*prompt, *[n] * (len(seen[n]) - 1)])])
            assert_close(torch.cat(seen[n]), alone)

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_greedy_tokens_equal_the_reference(
        self,
        dtype: str,
        checkpoint: Path,
        catalog: Catalog,
        reference: nn.Module,
        prompts: list[list[int]],
    ) -> None:
        """64 of each prompt: the reference's choice after the tokens before it, wherever that is
        clear."""
        toy = Stepper(load(checkpoint, catalog, dtype=dtype))
        told = [list(prompt) for prompt in prompts]
        work: Work = list(enumerate(prompts))
        for _ in range(64):
            chosen = [int(logits[-1].argmax()) for logits in toy.step(work)]
            for tokens, token in zip(told, chosen, strict=True):
                tokens.append(token)
            work = [(n, [token]) for n, token in enumerate(chosen)]
        clear = beyond = total = 0
        for prompt, tokens in zip(prompts, told, strict=True):
            theirs_NV = logits_of(reference, tokens)[len(prompt) - 1 : -1]
            least = {"float32": 1e-3, "bfloat16": self.bfloat16_tolerance}[dtype] * theirs_NV.std()
            best_N2 = theirs_NV.topk(2).values
            answer = torch.tensor(tokens[len(prompt) :])[:, None]
            beyond += int((best_N2[:, 0] - theirs_NV.gather(-1, answer)[:, 0] > least).sum())
            clear += int((best_N2[:, 0] - best_N2[:, 1] > least).sum())
            total += len(answer)
        most = self.rerouted if dtype == "bfloat16" else 0.0
        assert beyond <= most * total, f"{beyond} of {total} choices are not the reference's"
        assert clear >= total / 4, f"only {clear} of {total} choices were clear: this shows nothing"

    def test_the_config_as_transformers_writes_it_means_the_same(
        self, checkpoint: Path, reference: Any, catalog: Catalog, tmp_path: Path
    ) -> None:
        read = catalog.architecture(self.config["architectures"][0]).item.config
        reference.config.save_pretrained(tmp_path)
        assert read(json.loads((tmp_path / "config.json").read_text())) == read(self.config)

    def test_declared_needs_are_those_it_builds(self, catalog: Catalog) -> None:
        architecture = catalog.architecture(self.config["architectures"][0]).item
        config: Any = architecture.config(self.config)
        with torch.device("meta"):
            model = architecture.build(config)
        layers = [m for m in model.modules() if isinstance(m, Attention | State)]
        layers.sort(key=lambda layer: layer.layer_id)
        assert [layer.layer_id for layer in layers] == list(range(len(layers)))
        assert [layer.need for layer in layers] == list(config.cache_needs())

    def test_discovery_and_config_import_no_torch(self) -> None:
        code = (
            "import json, sys; from inferno.catalog import load_catalog; config = "
            "json.loads(sys.argv[1])\n"
            "load_catalog().architecture(config['architectures'][0]).item.config(config).cache_needs()\n"
            "sys.exit('torch is imported' if 'torch' in sys.modules else 0)"
        )
        done = run_python(code, json.dumps(self.config))
        assert done.returncode == 0, done.stderr

    def test_a_missing_misshapen_or_foreign_tensor_is_an_error_that_names_it(
        self, checkpoint: Path, catalog: Catalog
    ) -> None:
        opened, architecture, config = opened_by(checkpoint, catalog)
        wanted = dict(opened.tensors)
        damages: Iterable[tuple[str, dict[str, Any]]] = [
            *((n, {k: v for k, v in wanted.items() if k != n}) for n in wanted),
            *((n, {**wanted, n: _reshaped(info)}) for n, info in wanted.items()),
            ("foreign.weight", {**wanted, "foreign.weight": next(iter(wanted.values()))}),
        ]
        unused = config.unused_tensors
        for name, tensors in damages:
            if name in unused:
                continue
            with torch.device("meta"):
                model = architecture.build(config)
            damaged = _Damaged(opened, tensors)
            with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
                fill(model, damaged, catalog, dtype="float32", device="cpu", unused=unused)
        opened.close()


def opened_by(path: Path, catalog: Catalog) -> tuple[Checkpoint, Any, Any]:
    """The checkpoint under the model's names, its architecture and its config."""
    config = json.loads((path / "config.json").read_text())
    architecture = catalog.architecture(config["architectures"][0]).item
    opened = adapted(catalog.open(path)[1], architecture)
    return opened, architecture, architecture.config(config)


def load(path: Path, catalog: Catalog, *, dtype: str = "float32") -> nn.Module:
    opened, architecture, config = opened_by(path, catalog)
    with torch.device("meta"):
        model: nn.Module = architecture.build(config)
    fill(model, opened, catalog, dtype=dtype, device="cpu", unused=config.unused_tensors)
    opened.close()
    settle(model, {})
    return model.eval().requires_grad_(False)


def logits_of(reference: nn.Module, token_ids: Sequence[int]) -> Tensor:
    with torch.inference_mode():
        logits_NV: Tensor = reference(torch.tensor([token_ids])).logits[0].float()
    return logits_NV


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
