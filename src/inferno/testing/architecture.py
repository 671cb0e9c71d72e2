"""Tests that every architecture must pass, for any format, scheme and attention backend.

Suffixes: L tokens of a sequence, N generated tokens, V vocabulary.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from inferno.catalog import Catalog
from inferno.contracts import Capture, CheckpointView, KernelProvider, TensorInfo
from inferno.device.graphs import GraphCapture
from inferno.errors import CheckpointError
from inferno.nn import Attention, Rope, State
from inferno.nn.capture import CallCapture
from inferno.nn.weight import OneDNN, onednn_packs_bfloat16
from inferno.plan import TORCH, CaptureUse, device_sizes, reopen, unused_tensors
from inferno.plan.cache_groups import with_num_blocks
from inferno.testing.adapters import AdapterTests
from inferno.testing.alike import alike
from inferno.testing.batch_invariance import BatchInvariantTests
from inferno.testing.drafts import DraftTests
from inferno.testing.expert_engines import ExpertEngineTests
from inferno.testing.gguf_twins import GgufTwins
from inferno.testing.host_experts import HostExpertTests
from inferno.testing.pipelines import PipelineTests
from inferno.testing.reference import assert_torch_free, reference_logits, transformers_model
from inferno.testing.tiny import (
    DEVICE,
    Outcome,
    Recorder,
    Toy,
    assert_begins,
    assert_close,
    generate,
    kernels_of,
    load_toy,
    ragged_prompts,
    without_kernels,
)
from inferno.testing.trained_weights import TrainedTests
from inferno.testing.updates import UpdateTests
from inferno.weights.loading import build, fill

NUM_GREEDY, NUM_PLAIN = 64, 40


class ArchitectureTests(
    AdapterTests,
    BatchInvariantTests,
    DraftTests,
    ExpertEngineTests,
    GgufTwins,
    HostExpertTests,
    PipelineTests,
    TrainedTests,
    UpdateTests,
):
    """Set `config` to a toy `config.json`: its "architectures", its "model_type", small sizes (the
    tests run it often), a context of at least 160 tokens. It is written to disk unchanged. The
    reference is transformers' model of that config with random weights; if transformers has none,
    override the fixture `reference` with a torch module that takes token ids (1, L), returns an
    object with `.logits` (1, L, V), and names its parameters as the checkpoint does.
    """

    config: ClassVar[dict[str, Any]]
    rerouted: ClassVar[bool] = False
    """Whether rounding to bfloat16 may move a choice further below: with routed experts it routes
    some tokens to other experts. The tests then allow twice as many as the reference has when it
    is rounded itself, and 2 % more."""
    uncaptured: ClassVar[str] = ""
    """Part of the reason why its decode steps cannot be captured, if they cannot."""
    dtype_tolerance: ClassVar[Mapping[str, float]] = {"float32": 1e-3, "bfloat16": 0.15}
    """How far below the reference's best logit a greedy choice may be, in standard deviations of
    the logits."""

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls) -> nn.Module:
        return transformers_model(cls.config)

    @pytest.fixture(scope="class")
    @classmethod
    def checkpoint(cls, reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A folder with the reference's weights and `config`."""
        path = tmp_path_factory.mktemp("toy")
        if hasattr(reference, "save_pretrained"):
            reference.save_pretrained(path)
        else:
            save_file(dict(reference.named_parameters()), path / "model.safetensors")
        (path / "config.json").write_text(json.dumps({**cls.config, "dtype": "float32"}))
        return path

    @pytest.fixture(scope="class")
    @classmethod
    def toy(cls, checkpoint: Path, catalog: Catalog) -> Toy:
        """Where no attention backend says how long blocks are, prompts here have several."""
        toy = load_toy(checkpoint, catalog)
        return toy if toy.plan.attention else load_toy(checkpoint, catalog, block_size=16)

    @pytest.fixture(scope="class")
    @classmethod
    def prompts(cls, toy: Toy) -> list[list[int]]:
        return ragged_prompts(toy.plan.vocab_size)

    @pytest.fixture(scope="class")
    @classmethod
    def plain(cls, toy: Toy, prompts: list[list[int]]) -> list[Outcome]:
        """What the toy answers to all prompts at once, which other ways must not change."""
        return generate(toy, prompts, NUM_PLAIN)

    # --- values -----------------------------------------------------------------------------------

    def test_logits_equal_the_reference(
        self, toy: Toy, reference: nn.Module, prompts: list[list[int]]
    ) -> None:
        for prompt, outcome in zip(prompts, generate(toy, prompts), strict=True):
            assert_close(outcome.logits_NV[0], reference_logits(reference, prompt)[-1])

    @alike
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_greedy_tokens_equal_the_reference(
        self,
        dtype: str,
        checkpoint: Path,
        catalog: Catalog,
        reference: nn.Module,
        prompts: list[list[int]],
    ) -> None:
        """Each token is the reference's choice after the preceding tokens, where that is clear."""
        outcomes = generate(load_toy(checkpoint, catalog, dtype=dtype), prompts, NUM_GREEDY)
        rerouted = self.rerouted and dtype == "bfloat16"
        rounded = deepcopy(reference).to(torch.bfloat16) if rerouted else None
        clear = total = beyond = allowed = 0
        for prompt, outcome in zip(prompts, outcomes, strict=True):
            sequence, first = [*prompt, *outcome.token_ids], len(prompt) - 1
            theirs_NV = reference_logits(reference, sequence)[first:-1]
            tolerance = self.dtype_tolerance[dtype] * float(theirs_NV.std())
            best_N2 = theirs_NV.topk(2).values
            beyond += _num_below(theirs_NV, torch.tensor(outcome.token_ids), tolerance)
            if rounded is not None:
                chosen_N = reference_logits(rounded, sequence)[first:-1].argmax(-1)
                allowed += 2 * _num_below(theirs_NV, chosen_N, tolerance)
            clear += int((best_N2[:, 0] - best_N2[:, 1] > tolerance).sum())
            total += len(outcome.token_ids)
        assert total == NUM_GREEDY * len(prompts)
        allowed += total // 50 if rerouted else 0
        assert beyond <= allowed, f"{beyond} of {total} choices are further below, {allowed} may be"
        assert clear >= total / 4, f"only {clear} of {total} choices are clear: too few to compare"

    @alike
    def test_the_config_as_transformers_writes_it_means_the_same(
        self, toy: Toy, reference: Any, catalog: Catalog, prompts: list[list[int]], tmp_path: Path
    ) -> None:
        if not hasattr(reference, "config"):
            pytest.skip("the reference is not a transformers model")
        reference.save_pretrained(tmp_path)
        [ours], [theirs] = (generate(t, prompts[-1:]) for t in (load_toy(tmp_path, catalog), toy))
        assert_close(ours.logits_NV, theirs.logits_NV)

    @alike
    def test_tables_are_not_rounded_to_the_compute_type(
        self, checkpoint: Path, catalog: Catalog
    ) -> None:
        """Rotary frequencies in bfloat16 would rotate distant tokens by wrong angles."""
        model = load_toy(checkpoint, catalog, dtype="bfloat16").model
        assert not [
            name
            for name, buffer in model.named_buffers()
            if "freq" in name and buffer.dtype != torch.float32
        ]

    @alike
    def test_logits_are_not_rounded_to_the_compute_type(
        self, checkpoint: Path, catalog: Catalog, prompts: list[list[int]]
    ) -> None:
        """Of trained size, they would tie."""
        toy = load_toy(checkpoint, catalog, dtype="bfloat16")
        [outcome] = generate(toy, prompts[:1], 2)
        assert (outcome.logits_NV != outcome.logits_NV.bfloat16().float()).any(-1).all()

    # --- what must change nothing -----------------------------------------------------------------

    @alike
    def test_neighbours_in_the_batch_change_nothing(
        self, toy: Toy, plain: list[Outcome], prompts: list[list[int]]
    ) -> None:
        for prompt, together in zip(prompts, plain, strict=True):
            [alone] = generate(toy, [prompt], 8)
            assert_begins(together, alone)

    @alike
    def test_chunked_prompts_change_nothing(
        self, toy: Toy, plain: list[Outcome], prompts: list[list[int]]
    ) -> None:
        """Nor do prompts token by token, where layers carry a state from one to the next."""
        for size in (7, 1) if toy.plan.states else (7,):
            chunked = Toy(attrs.evolve(toy.plan, max_num_batched_tokens=size), toy.model)
            for ours, theirs in zip(generate(chunked, prompts, 8), plain, strict=True):
                assert_begins(theirs, ours)

    @alike
    def test_the_block_size_changes_nothing(
        self, plain: list[Outcome], checkpoint: Path, catalog: Catalog, prompts: list[list[int]]
    ) -> None:
        small = load_toy(checkpoint, catalog, block_size=4)
        for ours, theirs in zip(generate(small, prompts, 8), plain, strict=True):
            assert_begins(theirs, ours)

    @alike
    def test_a_prefix_found_in_the_cache_changes_nothing(
        self, toy: Toy, prompts: list[list[int]]
    ) -> None:
        long = prompts[-1]
        variants = [long, long[:-1], [*long[:40], *long[:9]]]
        engine = toy.engine()
        [first] = generate(toy, [long], 8, engine=engine)
        hits = generate(toy, variants, 8, engine=engine)
        if toy.plan.states:  # of two diverging prompts, only the second leaves a snapshot
            hits[-1:] = generate(toy, variants[-1:], 8, engine=engine)
        assert first.num_cached == 0 and all(hit.num_cached >= 32 for hit in hits)
        for hit, variant in zip(hits, variants, strict=True):
            [cold] = generate(toy, [variant], 8)
            assert hit.token_ids == cold.token_ids
            assert_close(hit.logits_NV, cold.logits_NV)

    @alike
    def test_preemption_changes_nothing(
        self, toy: Toy, plain: list[Outcome], prompts: list[list[int]]
    ) -> None:
        needed = -(-(len(prompts[-1]) + NUM_PLAIN) // toy.plan.block_size)
        groups = with_num_blocks(toy.plan.groups, needed + 1)
        tight = Toy(attrs.evolve(toy.plan, groups=groups, cache_policy="none"), toy.model)
        squeezed = generate(tight, prompts, NUM_PLAIN)
        assert squeezed[0].stats.preemptions > 0
        assert [o.token_ids for o in squeezed] == [o.token_ids for o in plain]

    @alike
    def test_captured_decode_steps_change_nothing(
        self, toy: Toy, plain: list[Outcome], catalog: Catalog, prompts: list[list[int]]
    ) -> None:
        """With the native kernels, if a provider of them captures steps; on a GPU, as graphs, and
        with a step in flight."""
        if DEVICE != "cpu":
            if toy.plan.capture is None:
                pytest.skip("; ".join(toy.plan.notes))
            self._compare_captured(toy, GraphCapture(), plain, prompts, lag=1)
            return
        able = [o.item.name for o in catalog.of("inferno_kernels") if o.item.capture is not None]
        if not able:
            pytest.skip("no installed kernel provider captures steps")
        assert (use := toy.plan.capture) is not None, toy.plan.notes
        capture = catalog.named(KernelProvider, use.name).item.capture
        assert capture is not None
        self._compare_captured(toy, capture(), plain, prompts)

    @pytest.mark.slow
    def test_a_decode_step_exchanges_no_values_with_python(
        self, checkpoint: Path, catalog: Catalog, prompts: list[list[int]]
    ) -> None:
        """On a GPU, the host would wait for each of them. In torch alone, captured in the shapes of
        a GPU, in most of which there are padding rows, with draws that leave their tokens on the
        device: each step is launched before the tokens of the one before it are known."""
        toy = load_toy(checkpoint, without_kernels(catalog))
        blocks = -(-toy.plan.max_model_len // toy.plan.block_size)
        sizes = device_sizes(toy.plan.max_num_seqs)
        use = CaptureUse(name="torch", sizes=sizes, blocks=(blocks,), ahead=True)
        toy = Toy(attrs.evolve(toy.plan, capture=use), toy.model)
        plain = generate(toy, prompts, 24)
        self._compare_captured(toy, CallCapture(), plain, prompts, lag=1)

    def _compare_captured(
        self,
        toy: Toy,
        capture: Capture,
        plain: list[Outcome],
        prompts: list[list[int]],
        lag: int = 0,
    ) -> None:
        engine = toy.engine(capture, lag)
        runner = engine._runner
        assert isinstance(runner, Recorder) and (replays := runner.replays) is not None
        runner.capture_ahead()
        # The last prompt is found in the cache, but for its last tokens: captured the second time.
        for some in (prompts, prompts[-3:], *[prompts[-1:]] * 3):
            captured = generate(toy, some, 24, engine=engine)
            if self.uncaptured:
                assert replays.refusal is not None, "`uncaptured` says it cannot be captured"
                assert self.uncaptured in replays.refusal
                return
            assert replays.refusal is None, replays.refusal
            assert any(count >= len(some) for count, _ in replays.shapes)
            for ours, theirs in zip(captured, plain[-len(some) :], strict=True):
                # Sums in another order: a recurrent state keeps the difference for 24 steps.
                assert_begins(theirs, ours, 1e-3)
        assert runner.lint.found == [] and bool(runner.lint.count) == bool(lag)

    # --- the declarations -------------------------------------------------------------------------

    @alike
    @pytest.mark.slow
    def test_discovery_and_config_import_no_torch(self) -> None:
        """Checked for all classes of a test file in one process."""
        module = vars(sys.modules[type(self).__module__]).values()
        classes = [c for c in module if isinstance(c, type) and issubclass(c, ArchitectureTests)]
        configs = [c.config for c in {type(self), *classes} if hasattr(c, "config")]
        assert_torch_free(tuple(sorted(map(json.dumps, configs))))

    def test_declared_cache_specs_are_those_it_builds(self, catalog: Catalog) -> None:
        architecture = catalog.architecture(self.config["architectures"][0]).item
        config = architecture.config(self.config)
        with torch.device("meta"):
            model = architecture.build(config)
        layers = sorted(
            (m for m in model.modules() if isinstance(m, Attention | State)),
            key=lambda layer: layer.layer_id,
        )
        assert [layer.layer_id for layer in layers] == list(range(len(layers)))
        assert [layer.spec for layer in layers] == list(config.cache_specs())

    @alike
    def test_the_plan_names_what_multiplies_each_matrix(
        self, toy: Toy, checkpoint: Path, catalog: Catalog
    ) -> None:
        """`load_toy` compares; here are the matrices of which no kernel knows."""
        assert kernels_of(toy.model)
        plain = load_toy(checkpoint, without_kernels(catalog), dtype="bfloat16")
        assert set(kernels_of(plain.model).values()) == {TORCH}
        packed = any(isinstance(each, OneDNN) for each in plain.model.modules())
        assert plain.plan.onednn == onednn_packs_bfloat16() and packed <= plain.plan.onednn

    def test_the_memory_plan_is_what_it_takes(self, toy: Toy) -> None:
        """Weights and cache are planned within 5 % of their tensors' sizes."""
        [planned] = [item.nbytes for item in toy.plan.memory if item.name == "weights"]
        assert _held(toy.model) == pytest.approx(planned, rel=0.05)
        assert sum(tensor.nbytes for tensor in toy.cache()) == toy.plan.kv_bytes

    @alike
    def test_a_missing_misshapen_or_foreign_tensor_is_an_error_that_names_it(
        self, toy: Toy, catalog: Catalog
    ) -> None:
        with reopen(toy.plan, catalog) as opened:
            unused = unused_tensors(opened.config)
            wanted = {
                n: i
                for n, i in opened.checkpoint.tensors.items()
                if not any(Path(n).match(p) for p in unused)
            }
            damages = [(n, {k: v for k, v in wanted.items() if k != n}) for n in wanted]
            damages += [(n, {**wanted, n: _reshaped(info)}) for n, info in wanted.items()]
            foreign = {**wanted, "foreign.weight": next(iter(wanted.values()))}
            model = build(opened)
            for name, tensors in [*damages, ("foreign.weight", foreign)]:
                damaged = attrs.evolve(opened, checkpoint=_Damaged(opened.checkpoint, tensors))
                with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
                    fill(model, damaged)


@attrs.frozen(eq=False)
class _Damaged(CheckpointView):
    """A checkpoint with altered headers. Reading a tensor is an error."""

    tensors: Mapping[str, TensorInfo]

    def read(self, name: str) -> Tensor:
        raise AssertionError(f"{name} was read before the headers were checked")


def _reshaped(info: TensorInfo) -> TensorInfo:
    return attrs.evolve(info, shape=(info.shape[0] + 1, *info.shape[1:]))


def _held(model: nn.Module) -> int:
    """Bytes of weights, without the tables that a model computes, which grow with its context."""
    tables = {
        id(buffer)
        for module in model.modules()
        if isinstance(module, Rope)
        for buffer in module.buffers()
    }
    tensors = [t for t in (*model.parameters(), *model.buffers()) if id(t) not in tables]
    return sum({t.data_ptr(): t.nbytes for t in tensors}.values())


def _num_below(logits_NV: Tensor, token_ids_N: Tensor, tolerance: float) -> int:
    """Counts the tokens whose logit is further below the best one."""
    chosen_N = logits_NV.gather(-1, token_ids_N[:, None])[:, 0]
    return int((logits_NV.amax(-1) - chosen_N > tolerance).sum())
