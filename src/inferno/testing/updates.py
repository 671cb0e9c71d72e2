"""Weights that replace a loaded model's: it computes what one that is loaded with them does."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inferno.catalog import Catalog
from inferno.errors import InfernoError
from inferno.plan import open_model
from inferno.testing.alike import alike
from inferno.testing.tiny import Outcome, Toy, generate, load_toy, plan_of, small_options
from inferno.weights.resident import Resident

TOKENS = 4


class UpdateTests:
    """Part of `ArchitectureTests`."""

    @alike
    @pytest.mark.slow
    @pytest.mark.parametrize("isq", [None, "q8_0"])
    def test_updated_weights_compute_what_they_do_in_a_model_that_is_loaded_with_them(
        self, isq: str | None, checkpoint: Path, catalog: Catalog, tmp_path: Path
    ) -> None:
        """What is merged, absorbed, tied or quantized while loading is made of the new
        ones, from all tensors and from some; and the old ones come back."""
        options = {} if isq is None else {"isq": isq}
        try:
            plan_of(checkpoint, catalog, **options)
        except InfernoError as error:
            pytest.skip(f"{isq}: {error.cause}")
        assert_updated(checkpoint, catalog, tmp_path, **options)


def assert_updated(checkpoint: Path, catalog: Catalog | None, folder: Path, **options: Any) -> None:
    """A model computes what one with other numbers does once it has these, in one update and in
    two, and then its own again. `folder` is for files."""
    other = _changed(checkpoint, folder)
    prompts = [[(5 + 7 * i) % 60 for i in range(length)] for length in (3, 21)]

    def loaded(path: Path) -> Any:
        return generate(load_toy(path, catalog, **options), prompts, TOKENS)

    first, second = loaded(checkpoint), loaded(other)
    assert not same_answers(first, second)
    with open_model(str(checkpoint), small_options(options), catalog) as opened:
        plan, resident = opened.plan, Resident.load(opened)

    def updated(*paths: Path) -> Any:
        for path in paths:
            resident.apply(resident.checked(path))
        return generate(Toy(plan, resident.present.model), prompts, TOKENS)

    assert same_answers(updated(), first)
    assert same_answers(updated(other), second), "all tensors of a folder"
    assert same_answers(updated(checkpoint), first), "back again"
    halves = _halves(other)
    assert same_answers(updated(*halves), second), "in two parts"
    resident.close()


def same_answers(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> bool:
    """Bits may differ: the order of torch's sums depends on where a matrix lies in memory."""
    return all(
        a.token_ids == b.token_ids and torch.allclose(a.logits_NV, b.logits_NV, 1e-4, 1e-4)
        for a, b in zip(ours, theirs, strict=True)
    )


def _changed(checkpoint: Path, folder: Path) -> Path:
    """Write a model of the same config with other numbers, each about as large: of matrices that
    are stored packed, their scales."""
    other = folder / "other"
    shutil.copytree(checkpoint, other)
    draw = torch.Generator().manual_seed(1)
    for file in other.glob("*.safetensors"):
        tensors = load_file(file)
        for name, each in tensors.items():
            plain = each.dtype in (torch.float32, torch.bfloat16, torch.float16)
            if plain and not name.endswith("quant_map"):  # a table of codes is as its scheme says
                factors = 1 + 0.3 * torch.randn(each.shape, generator=draw)
                tensors[name] = each * factors.to(each.dtype)
        save_file(tensors, file)
    return other


def _halves(folder: Path) -> list[Path]:
    """Write the tensors of a folder to two files beside it, in turn."""
    tensors = {n: t for file in folder.glob("*.safetensors") for n, t in load_file(file).items()}
    files = [folder.parent / f"half {i}.safetensors" for i in range(2)]
    for i, file in enumerate(files):
        save_file({name: tensors[name] for name in sorted(tensors)[i::2]}, file)
    return files
