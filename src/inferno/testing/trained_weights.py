"""Weights with the statistics of trained ones, and what every architecture must do with them.

Random weights have flat attention, small activations and equal logits. Those of trained models have
a channel that is thousands of times the others, attention of about a bit of entropy with a sink at
the first token, keys with large offsets in some channels, and sharp logits.

Suffixes: N generated tokens, V vocabulary.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
import torch
from torch import Tensor, nn

from inferno.catalog import Catalog
from inferno.errors import UnsupportedError
from inferno.testing.alike import alike
from inferno.testing.reference import transformers_model
from inferno.testing.tiny import DEVICE, Outcome, Toy, generate, load_toy, ragged_prompts

FIRST = 1
"""The token that prompts begin with: the sink of attention."""
_CHANNEL = 5
"""The hidden channel whose values are massive."""
_SHARP = ("q_proj.weight", "k_proj.weight", "q_b_proj.weight", "qkv_proj.weight")
_SHARP_NORMS = ("q_norm.weight", "k_norm.weight", "q_layernorm.weight", "k_layernorm.weight")
_ROUTERS = ("router.weight", "mlp.gate.weight", "router.layer.weight")
_RUNS = (
    ("float32", "auto", 4.0),
    ("bfloat16", "auto", 1.5),
    ("bfloat16", "int8", 1.75),
    ("bfloat16", "fp8", 8.0),
)
"""Compute type, cache type, and the most that log-probabilities may differ from float64's, beside
transformers' own in that compute type, whose cache is not rounded."""
_LENGTHS = (2, 40, 300, 600)
_TOKENS = 8


def like_trained(model: nn.Module, seed: int = 0, *, key_offset: float = 100.0) -> None:
    """Change a transformers model's random weights (`randomize`) to have the statistics of trained
    ones: where it has them, key biases of `key_offset` in two channels. All values are exact in
    bfloat16. Names are Hugging Face's."""
    generator = torch.Generator().manual_seed(seed)
    auto: Any = model
    embeddings: Tensor = auto.get_input_embeddings().weight
    head: Tensor = auto.get_output_embeddings().weight
    tied = head is embeddings
    with torch.no_grad():
        embeddings.copy_(torch.randn(embeddings.shape, generator=generator) * 0.2)
        embeddings[:, _CHANNEL] = 2
        if tied:  # a massive embedding would be a massive logit
            for name, param in model.named_parameters():
                if "layers.0." in name and ("down_proj" in name or "out_proj.weight" in name):
                    if param.ndim > 1:
                        param.select(-2, _CHANNEL).mul_(100)
        else:
            embeddings[FIRST, _CHANNEL] = 3000
            embeddings[FIRST, _CHANNEL + 1] = -1000
            head.mul_(3)
        for name, param in model.named_parameters():
            if name.endswith((*_SHARP, *_SHARP_NORMS)):
                param.mul_(2.5)
            elif name.endswith("k_proj.bias"):
                param[:: param.numel() // 2] += key_offset
            elif name.endswith(_ROUTERS):
                param.mul_(4)
        for param in model.parameters():
            if param.is_floating_point():
                param.copy_(param.bfloat16())


class TrainedTests:
    """The part of `ArchitectureTests` with weights like trained ones. An architecture's first class
    in a file runs it."""

    config: ClassVar[dict[str, Any]]
    trained: ClassVar[Mapping[str, Any]] = {}
    """Fields of `config` that are others here."""
    trained_error: ClassVar[float] = 1.0
    """How many times the usual bound its error may be, beside transformers'."""

    @pytest.fixture(scope="class")
    @classmethod
    def trained_config(cls) -> dict[str, Any]:
        first = next(
            member
            for name, member in vars(sys.modules[cls.__module__]).items()
            if name.startswith("Test") and isinstance(member, type)
            if issubclass(member, TrainedTests) and hasattr(member, "config")
            if member.config["architectures"] == cls.config["architectures"]
        )
        if first is not cls:
            pytest.skip(f"{first.__name__} tests this architecture")
        if "model_type" not in cls.config:
            pytest.skip("transformers has no such model to compare with")
        return _for_long_contexts({**cls.config, **cls.trained})

    @pytest.fixture(scope="class")
    @classmethod
    def trained_model(cls, trained_config: dict[str, Any]) -> nn.Module:
        model = transformers_model(trained_config)
        like_trained(model)
        return model

    @pytest.fixture(scope="class")
    @classmethod
    def trained_checkpoint(
        cls,
        trained_config: dict[str, Any],
        trained_model: Any,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> Path:
        path = tmp_path_factory.mktemp("trained")
        trained_model.save_pretrained(path)
        (path / "config.json").write_text(json.dumps({**trained_config, "dtype": "float32"}))
        return path

    @alike
    def test_weights_like_trained_ones_are_as_exact_as_in_transformers(
        self, trained_model: nn.Module, trained_checkpoint: Path, catalog: Catalog
    ) -> None:
        """Beside float64, after prompts of up to 600 tokens and while decoding; in chunks and after
        a prefix hit, it is the same."""
        problems = []
        for dtype, cache, usual in _RUNS:
            most = usual * self.trained_error
            try:
                toy = load_toy(
                    trained_checkpoint,
                    catalog,
                    dtype=dtype,
                    kv_cache_dtype=cache,
                    max_model_len=640,
                    max_num_batched_tokens=1024,
                )
            except UnsupportedError:
                assert cache != "auto"
                continue
            prompts = ragged_prompts(toy.plan.vocab_size, _LENGTHS)
            prompts = [[FIRST, *prompt[1:]] for prompt in prompts]
            whole = generate(toy, prompts, _TOKENS)
            exact_NV, theirs_NV = (
                _expected(trained_model, wanted, prompts, whole)
                for wanted in (torch.float64, getattr(torch, dtype))
            )
            ours, theirs = (_distance(x, exact_NV) for x in (_logits(whole), theirs_NV))
            run = f"{dtype}, {cache} cache"
            if not ours <= most * theirs:
                problems.append(f"{run}: {ours:.2g} from float64, transformers {theirs:.2g}")
            same = self._computed_alike(toy)
            chunked = Toy(attrs.evolve(toy.plan, max_num_batched_tokens=100), toy.model)
            engine = toy.engine()
            generate(toy, prompts, engine=engine)
            for what, again in (
                ("in chunks", generate(chunked, prompts, _TOKENS)),
                ("after a prefix hit", generate(toy, prompts, _TOKENS, engine=engine)),
            ):
                off = _distance(*_comparable(again, whole))
                if not (
                    torch.equal(_logits(again), _logits(whole)) if same else off <= most * theirs
                ):
                    problems.append(f"{run}, {what}: {off:.2g} from the whole prompt")
        assert not problems, problems

    def _computed_alike(self, toy: Toy) -> bool:
        """Whether a token is computed alike whatever is beside it: not where torch multiplies, as
        its sums depend on the number of rows, as on GPUs, nor where states go from chunk to
        chunk."""
        exact = toy.plan.dtype == "bfloat16" and not toy.plan.states and DEVICE == "cpu"
        return exact and all(use.name != "torch" for use in toy.plan.attention)


def _logits(outcomes: Sequence[Outcome]) -> Tensor:
    return torch.cat([outcome.logits_NV for outcome in outcomes])


def _comparable(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> tuple[Tensor, Tensor]:
    """Return the logits up to the first token that differs, with which the contexts do: where two
    are nearly as likely, rounding decides."""
    ours_N, theirs_N = list[Tensor](), list[Tensor]()
    for one, other in zip(ours, theirs, strict=True):
        pairs = zip(one.token_ids, other.token_ids, strict=True)
        same = next((n for n, (a, b) in enumerate(pairs) if a != b), len(one.token_ids) - 1)
        ours_N.append(one.logits_NV[: same + 1])
        theirs_N.append(other.logits_NV[: same + 1])
    return torch.cat(ours_N), torch.cat(theirs_N)


def _distance(ours_NV: Tensor, exact_NV: Tensor) -> float:
    """The difference of log-probabilities, root mean square; NaN if any is not finite."""
    ours_NV, exact_NV = (x.double().log_softmax(-1) for x in (ours_NV, exact_NV))
    return float((ours_NV - exact_NV).square().mean().sqrt())


def _for_long_contexts(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with a context of 1024 tokens, if it limits its own; the text side's, where it is
    a part of it."""
    fields = dict(config)
    if "max_position_embeddings" in fields:
        fields["max_position_embeddings"] = 1024
    if "text_config" in fields:
        fields["text_config"] = _for_long_contexts(fields["text_config"])
    return fields


def _expected(
    model: nn.Module, dtype: torch.dtype, prompts: Sequence[Sequence[int]], ours: list[Outcome]
) -> Tensor:
    """Transformers' logits of the tokens that were generated, (N, V), in float64."""
    model, parts = deepcopy(model).to(dtype), []
    auto: Any = model
    if dtype == torch.float64 and hasattr(auto, "set_experts_implementation"):
        auto.set_experts_implementation("eager")
    with torch.inference_mode():
        for prompt, outcome in zip(prompts, ours, strict=True):
            sequence = torch.tensor([[*prompt, *outcome.token_ids]])
            logits_NV: Tensor = model(sequence, use_cache=False).logits[0, len(prompt) - 1 : -1]
            parts.append(logits_NV.double())
    return torch.cat(parts)
