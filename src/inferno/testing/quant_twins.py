"""What a quantized checkpoint must do: give the tokens of its twin, which stores the same values
without a scheme."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file, save_file
from torch import Tensor

from inferno.catalog import Catalog, load_catalog
from inferno.errors import UnsupportedError
from inferno.nn import Experts
from inferno.testing.reference import transformers_model
from inferno.testing.thread_ranks import GREEDY, RANKS, answers, load_shared, tokens_of
from inferno.testing.tiny import generate, load_toy, plan_of, ragged_prompts
from inferno.testing.updates import assert_updated

VOCAB = 160
TOY_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
"""Fields of a `config.json` whose matrices have rows and columns that are divisible by 32. Add
`architectures` and `model_type`."""
TOY_MOE_SIZES: dict[str, Any] = {
    **TOY_SIZES,
    "head_dim": 16,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
}
"""The same with routed experts."""

Encoded: TypeAlias = tuple[Mapping[str, Tensor], Tensor] | None
Encode: TypeAlias = Callable[[str, int, Tensor], Encoded]
"""encode(name, number, tensor) -> the parts that store it, by the end of their names, and the
values that these represent; None if it is stored as it is. `number` counts the tensors."""


def random_tensors(config: Mapping[str, Any], folder: Path) -> dict[str, Tensor]:
    """Return the tensors that transformers saves of a random model, as it writes them into the
    folder."""
    model: Any = transformers_model(config)
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def write_twins(
    folder: Path,
    config: Mapping[str, Any],
    quant_config: Mapping[str, Any],
    encode: Encode,
    *,
    tensors: Mapping[str, Tensor] | None = None,
    extra: Mapping[str, Tensor] | None = None,
) -> tuple[Path, Path]:
    """Write a checkpoint with its matrices as `encode` stores them, and the `extra` tensors; and
    one with their values. `tensors` are random ones by default. Returns the two folders."""
    stored, plain = dict(extra or {}), dict[str, Tensor]()
    if tensors is None:
        tensors = random_tensors(config, folder / "source")
    for number, (name, tensor) in enumerate(tensors.items()):
        if (encoding := encode(name, number, tensor)) is None:
            stored[name] = plain[name] = tensor
            continue
        parts, plain[name] = encoding
        stored |= {f"{name.removesuffix('weight')}{part}": value for part, value in parts.items()}
    packed = {"quantization_config": quant_config}
    for kind, content, more in (("packed", stored, packed), ("plain", plain, {})):
        (folder / kind).mkdir()
        save_file(content, folder / kind / "model.safetensors")
        (folder / kind / "config.json").write_text(
            json.dumps({**config, **more, "dtype": "float32"})
        )
    return folder / "packed", folder / "plain"


def assert_same_tokens(
    twins: Sequence[Path],
    catalog: Catalog | None = None,
    *,
    updates: bool = True,
) -> None:
    """Both give the same greedy tokens, and logits within 1e-4. Kernels may round activations: then
    give `torch_only()`. So do two ranks that share the matrices of the first, and have some of its
    experts each, if it has any. And the first, if it is a
    folder, takes `updates` of its tensors, unless its scheme reads them under other names."""
    prompts = ragged_prompts(VOCAB)
    toys = [load_toy(path, catalog) for path in twins]
    ours, theirs = (generate(toy, prompts, 16) for toy in toys)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.logits_NV, other.logits_NV, rtol=1e-4, atol=1e-4)
        assert mine.token_ids == other.token_ids
    routed = any(isinstance(module, Experts) for module in toys[0].model.modules())
    assert_same_in_ranks(twins[0], [mine.token_ids for mine in ours], catalog, ep=routed)
    if updates and twins[0].is_dir():
        with TemporaryDirectory() as folder:
            assert_updated(twins[0], catalog, Path(folder))


def assert_same_in_ranks(
    path: Path,
    wanted: Sequence[Sequence[int]],
    catalog: Catalog | None = None,
    ranks: int = RANKS,
    **shared: Any,
) -> None:
    """Ranks that share a model give the 16 greedy tokens that are wanted after each of
    `ragged_prompts`: as many for each pipeline stage, with more options in `shared`."""
    engine = load_shared(path, catalog or load_catalog(), ranks, **shared)
    params = evolve(GREEDY, max_tokens=16, ignore_eos=False)
    tokens = tokens_of(answers(engine, ragged_prompts(VOCAB), params))
    engine.close()
    assert tokens == [[*each] for each in wanted]


def assert_kernels(twins: Sequence[Path], layout: str) -> None:
    """Every matrix of the packed one has a kernel, and `assert_near`. Skips the test where no
    kernel for the layout is installed."""
    plan = plan_of(twins[0])
    if not any(use.layout == layout for use in plan.kernels):
        pytest.skip(f"no kernels for {layout} here")
    assert not any("slowly" in note for note in plan.notes)
    assert_near(twins)


def change_quant_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a checkpoint's `quantization_config` in place."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    change(config["quantization_config"])
    file.write_text(json.dumps(config))


def assert_refused(folder: Path, reason: str) -> None:
    """No scheme reads the checkpoint: the error has the reason, and does not tell to install
    one."""
    with pytest.raises(UnsupportedError) as caught:
        plan_of(folder)
    assert reason in caught.value.remedy and "pip" not in caught.value.remedy


def assert_near(twins: Sequence[Path]) -> None:
    """With the kernels that are installed, logits differ by less than 5 %."""
    prompts = ragged_prompts(VOCAB)
    toys = (load_toy(path) for path in twins)
    for ours, theirs in zip(*(generate(toy, prompts, 1) for toy in toys), strict=True):
        error = (ours.logits_NV - theirs.logits_NV).norm() / theirs.logits_NV.norm()
        assert error < 0.05, "activations are rounded to int8"
