"""Adapters in PEFT's format for the models of tests, and the models with them merged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ALPHA = 2.0


def matrices(model: Path, targets: tuple[str, ...] = TARGETS) -> dict[str, Tensor]:
    """Return the matrices of a model's linear layers, by module path."""
    tensors = load_file(model / "model.safetensors")
    names = [name for name in tensors if name.endswith(".weight")]
    paths = [name.removesuffix(".weight") for name in names]
    return {path: tensors[f"{path}.weight"] for path in paths if path.split(".")[-1] in targets}


def pairs(weights: Mapping[str, Tensor], seed: int, rank: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return A and B for each matrix: a product about as large as the matrix."""
    draw, factors = torch.Generator().manual_seed(seed), {}
    for path, weight_OI in weights.items():
        outputs, inputs = weight_OI.shape
        size = float(weight_OI.float().std()) * rank**0.5 / ALPHA
        a = torch.randn(rank, inputs, generator=draw)
        factors[path] = a, torch.randn(outputs, rank, generator=draw) * size
    return factors


def write_peft(folder: Path, given: Mapping[str, tuple[Tensor, Tensor]], **config: Any) -> Path:
    """Write an adapter as PEFT does."""
    folder.mkdir(parents=True, exist_ok=True)
    [rank, *_] = [len(a) for a, _ in given.values()]
    written = {"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(written))
    tensors = {}
    for path, (a, b) in given.items():
        tensors[f"base_model.model.{path}.lora_A.weight"] = a.contiguous()
        tensors[f"base_model.model.{path}.lora_B.weight"] = b.contiguous()
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def write_merged(model: Path, folder: Path, given: Mapping[str, tuple[Tensor, Tensor]]) -> Path:
    """Write the model with an adapter merged into it."""
    shutil.copytree(model, folder)
    tensors = load_file(model / "model.safetensors")
    for path, (a, b) in given.items():
        weight = tensors[f"{path}.weight"]
        tensors[f"{path}.weight"] = (weight.float() + ALPHA / len(a) * b @ a).to(weight.dtype)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder
