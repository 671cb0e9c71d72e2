"""Tests that every encoder must pass: a model that attends to all of a prompt, and generates
nothing.

Suffixes: L tokens of a sequence, D hidden, P prompts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, cast

import attrs
import pytest
import torch
from torch import Tensor, nn

from inferno.catalog import Catalog, find_architecture
from inferno.core.types import Step
from inferno.errors import OptionError, RequestError
from inferno.nn import Attention, TokenTypes
from inferno.request.requests import Pooling, Request
from inferno.testing.alike import alike
from inferno.testing.encoder_gguf import EncoderGguf
from inferno.testing.pooled import embedded
from inferno.testing.reference import assert_torch_free, transformers_model
from inferno.testing.tiny import Toy, assert_close, load_toy, plan_of, ragged_prompts

_CHANNEL = 5
"""The hidden channel whose values are massive in weights like trained ones."""
_SHARP = ("query.weight", "key.weight", "q_proj.weight", "k_proj.weight", "q_lin.weight")
_TRAINED_LENGTHS = (2, 3, 9, 16, 20, 33, 50, 70, 90, 110, 130, 150)
_RUNS = (("float32", 2.0), ("bfloat16", 1.5))
"""Compute type, and the most that vectors may be off float64's, beside transformers' own in it: the
geometric mean of the distances, as the one channel that is massive decides each alone, and those of
like exactness are an order of magnitude apart."""


class EncoderTests(EncoderGguf):
    """Set `config` to a toy `config.json`: its "architectures", its "model_type", small sizes, a
    context of at least 160 tokens. The reference is transformers' model of that config."""

    config: ClassVar[dict[str, Any]]
    trained: ClassVar[bool] = True
    """Whether weights can be made like trained ones by the names of the parameters."""

    @classmethod
    def classifies(cls) -> bool:
        return str(cls.config["architectures"][0]).endswith("ForSequenceClassification")

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls) -> nn.Module:
        head = "AutoModelForSequenceClassification" if cls.classifies() else "AutoModel"
        return transformers_model(cls.config, head)

    @pytest.fixture(scope="class")
    @classmethod
    def checkpoint(cls, reference: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A folder with the reference's weights and `config`."""
        return _saved(reference, tmp_path_factory.mktemp("toy"), cls.config)

    @pytest.fixture(scope="class")
    @classmethod
    def toy(cls, checkpoint: Path, catalog: Catalog) -> Toy:
        return load_toy(checkpoint, catalog)

    @pytest.fixture(scope="class")
    @classmethod
    def prompts(cls, toy: Toy) -> list[list[int]]:
        return ragged_prompts(toy.plan.vocab_size, (1, 5, 16, 17, 70, 17))

    # --- values -----------------------------------------------------------------------------------

    def test_embeddings_equal_the_reference(
        self, toy: Toy, reference: nn.Module, prompts: list[list[int]]
    ) -> None:
        kinds: tuple[Pooling, ...] = ("first", "last", "mean", "max")
        theirs = [_states(reference, prompt) for prompt in prompts]
        for how in kinds:
            ours = embedded(toy, prompts, how)
            assert_close(ours, torch.stack([_reduced(x_LD, how) for x_LD in theirs]))

    def test_the_second_text_of_a_pair_has_types_of_its_own(
        self, toy: Toy, reference: nn.Module, prompts: list[list[int]]
    ) -> None:
        """Beside prompts of one text, and whatever the row was before."""
        if not any(isinstance(module, TokenTypes) for module in toy.model.modules()):
            pytest.skip("this model has no token types")
        seconds = [0, 2, 0, 9, 30, 16]
        ours = embedded(toy, prompts, "mean", seconds=seconds)
        for prompt, second, our_D in zip(prompts, seconds, ours, strict=True):
            types = [int(0 < second <= i) for i in range(len(prompt))]
            assert_close(our_D, _states(reference, prompt, types).mean(0))
        assert not torch.allclose(ours[4], embedded(toy, prompts[4:5], "mean")[0], atol=1e-3)

    def test_labels_equal_the_reference(
        self, toy: Toy, reference: nn.Module, prompts: list[list[int]]
    ) -> None:
        if not self.classifies():
            pytest.skip("this model has no head for labels")
        ours = embedded(toy, prompts, "score")
        for prompt, our_N in zip(prompts, ours, strict=True):
            with torch.inference_mode():
                assert_close(our_N, cast(Any, reference)(torch.tensor([prompt])).logits[0])

    @alike
    def test_weights_like_trained_ones_are_as_exact_as_in_transformers(
        self,
        reference: nn.Module,
        toy: Toy,
        catalog: Catalog,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> None:
        if not self.trained:
            pytest.skip("its parameters have other names")
        model = deepcopy(reference)
        like_trained_encoder(model)
        path = _saved(model, tmp_path_factory.mktemp("trained"), self.config)
        prompts = ragged_prompts(toy.plan.vocab_size, _TRAINED_LENGTHS)
        exact = _means(deepcopy(model).double(), prompts)
        problems = []
        for dtype, most in _RUNS:
            theirs = _means(deepcopy(model).to(getattr(torch, dtype)), prompts).float()
            ours = embedded(load_toy(path, catalog, dtype=dtype), prompts, "mean")
            far, usual = (
                float((x_PD.double() - exact).norm(dim=1).log().mean().exp())
                for x_PD in (ours, theirs)
            )
            if not far <= most * usual + 1e-9:
                problems.append(f"{dtype}: {far:.2g} from float64, transformers {usual:.2g}")
        assert not problems, problems

    @alike
    def test_the_config_as_transformers_writes_it_means_the_same(
        self, toy: Toy, reference: Any, catalog: Catalog, prompts: list[list[int]], tmp_path: Path
    ) -> None:
        reference.save_pretrained(tmp_path)
        ours, theirs = (embedded(t, prompts, "mean") for t in (load_toy(tmp_path, catalog), toy))
        assert_close(ours, theirs)

    # --- what must change nothing -----------------------------------------------------------------

    def test_neighbours_in_the_batch_change_nothing(
        self, toy: Toy, prompts: list[list[int]]
    ) -> None:
        together = embedded(toy, prompts, "mean")
        for prompt, our_D in zip(prompts, together, strict=True):
            assert_close(our_D, embedded(toy, [prompt], "mean")[0], 1e-5)
        assert_close(embedded(toy, prompts[::-1], "mean").flip(0), together, 1e-5)

    def test_prompts_are_computed_whole(self, toy: Toy, prompts: list[list[int]]) -> None:
        """However little room a step has: a prompt that does not fit waits for the next one."""
        longest = max(map(len, prompts))
        tight = Toy(
            attrs.evolve(toy.plan, max_num_batched_tokens=longest, max_model_len=longest), toy.model
        )
        steps: list[Step] = []
        assert_close(
            embedded(tight, prompts, "mean", steps=steps), embedded(toy, prompts, "mean"), 1e-5
        )
        slices = [s for step in steps for s in step.slices]
        assert all(step.num_tokens <= longest for step in steps) and len(steps) > 1
        assert [s.start for s in slices] == [0] * len(prompts)
        assert sorted(s.num_tokens for s in slices) == sorted(map(len, prompts))

    # --- what it does not do ----------------------------------------------------------------------

    def test_a_prompt_may_be_as_long_as_the_context_and_no_longer(self, toy: Toy) -> None:
        longest = toy.plan.max_model_len
        [whole] = ragged_prompts(toy.plan.vocab_size, (longest,))
        assert embedded(toy, [whole], "mean").isfinite().all()
        with pytest.raises(RequestError, match=f"holds {longest}"):
            embedded(toy, [[*whole, 1]], "mean")

    def test_it_generates_nothing(self, toy: Toy) -> None:
        with pytest.raises(RequestError, match="encoder generates no text"):
            toy.engine().submit(Request(id="1", token_ids=(1, 2)))

    def test_the_plan_says_that_it_caches_nothing(
        self, toy: Toy, checkpoint: Path, catalog: Catalog
    ) -> None:
        plan = toy.plan
        assert plan.whole_prompts and plan.kv_bytes == 0 and plan.cache_policy == "none"
        assert plan.capture is None and any("an encoder" in note for note in plan.notes)
        with pytest.raises(OptionError, match="kv_cache_dtype"):
            plan_of(checkpoint, catalog, kv_cache_dtype="int8")
        with pytest.raises(OptionError, match="in one step"):
            plan_of(checkpoint, catalog, max_model_len=100, max_num_batched_tokens=99)

    # --- the declarations -------------------------------------------------------------------------

    @pytest.mark.slow
    def test_discovery_and_config_import_no_torch(self) -> None:
        """Checked for all classes of a test file in one process."""
        module = vars(sys.modules[type(self).__module__]).values()
        classes = [c for c in module if isinstance(c, type) and issubclass(c, EncoderTests)]
        configs = [c.config for c in {type(self), *classes} if hasattr(c, "config")]
        assert_torch_free(tuple(sorted(map(json.dumps, configs))))

    def test_declared_cache_specs_are_those_it_builds(self, toy: Toy, catalog: Catalog) -> None:
        architecture = find_architecture(catalog, self.config).item
        specs = [m.spec for m in toy.model.modules() if isinstance(m, Attention)]
        assert specs == list(architecture.config(self.config).cache_specs())


def like_trained_encoder(model: nn.Module, seed: int = 0) -> None:
    """Change random weights (`randomize`) to have what trained encoders have: a channel that norms
    make larger than the others, sharp attention, keys with large offsets. All values are exact in
    bfloat16."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if "norm" in name.lower() and name.endswith("weight"):
                param.copy_(1 + 0.2 * torch.randn(param.shape, generator=generator))
                param[_CHANNEL] *= 8
            elif "embeddings" in name and param.ndim == 2:
                param.copy_(torch.randn(param.shape, generator=generator) * 0.2)
                param[:, _CHANNEL] = 2
            elif name.endswith(_SHARP):
                param.mul_(2)
            elif name.endswith("qkv.weight"):
                param[: 2 * len(param) // 3].mul_(2)
            elif name.endswith("key.bias"):
                param[:: param.numel() // 2] += 20
        for param in model.parameters():
            param.copy_(param.bfloat16())


def _saved(model: Any, path: Path, config: Mapping[str, Any]) -> Path:
    model.save_pretrained(path)
    (path / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    return path


def _states(model: nn.Module, prompt: Sequence[int], types: Sequence[int] | None = None) -> Tensor:
    """Return transformers' final hidden states, (L, D)."""
    given: dict[str, Any] = {"input_ids": torch.tensor([prompt])}
    if types is not None:
        given["token_type_ids"] = torch.tensor([types])
    with torch.inference_mode():
        outputs = model(**given, output_hidden_states=True)
    last = getattr(outputs, "last_hidden_state", None)
    states_LD: Tensor = (outputs.hidden_states[-1] if last is None else last)[0]
    return states_LD


def _means(model: nn.Module, prompts: Sequence[Sequence[int]]) -> Tensor:
    return torch.stack([_states(model, prompt).double().mean(0) for prompt in prompts])


def _reduced(x_LD: Tensor, how: Pooling) -> Tensor:
    if how in ("mean", "max"):
        return x_LD.mean(0) if how == "mean" else x_LD.amax(0)
    return x_LD[0 if how == "first" else -1]
