"""Models of published sizes with random weights, made on the device: nothing is downloaded, nothing
is written but a config."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
from attrs import frozen
from torch import Tensor

from inferno.catalog import Catalog, Offer
from inferno.contracts import (
    Architecture,
    CheckpointFormat,
    QuantScheme,
    TensorInfo,
    TextAssets,
)
from inferno.nn import Unloaded, Weight
from inferno.plan import Opened, Options, open_model
from inferno.weights.pairing import checkpoint_path, join
from inferno_gpu_report.declared import sizes_of
from inferno_gpu_report.job import Job
from inferno_gpu_report.products import packed

_MARK = "random-weights.json"
"""File beside config.json that tells a folder of this format from others."""
_TINY = {
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
}
"""Of a run on a CPU. Widths are those that quantization schemes can pack."""


@frozen
class RandomCheckpoint:
    """A checkpoint without files: see `contracts.Checkpoint`. Every matrix has values of the size
    that keeps activations at theirs; norms are 1."""

    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    device: str

    def text(self) -> TextAssets:
        return TextAssets()

    def read(self, name: str) -> Tensor:
        shape, options = self.tensors[name].shape, {"device": self.device, "dtype": torch.bfloat16}
        if len(shape) == 1:
            return torch.ones(shape, **options)  # type: ignore[call-overload, no-any-return]
        drawn: Tensor = torch.randn(shape, **options)  # type: ignore[call-overload]
        return drawn.mul_(shape[-1] ** -0.5)

    def close(self) -> None:
        """Nothing is open."""


def size_of(job: Job, size: str) -> tuple[str, Mapping[str, Any]]:
    """Return a name and the config of an installed architecture of that size. In a run on a CPU the
    model is tiny, and its name says so. Raises NotInstalled."""
    for offer in job.catalog.of("inferno_architectures"):
        architecture: Architecture = offer.item
        if (config := sizes_of(offer).get(size)) is not None:
            if job.small:
                return f"{architecture.name} (tiny, not {size})", {**config, **_TINY}
            return f"{architecture.name} {size}", config
    job.need("size", size)
    raise AssertionError("need always raises")


def opened(job: Job, config: Mapping[str, Any], options: Options) -> Opened:
    """Plan a model of this config with random weights. The caller closes it."""
    folder = job.folder / f"random-{abs(hash(json.dumps(config, sort_keys=True)))}"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / _MARK).write_text("{}")
    return open_model(str(folder), options, _catalog(job))


def _catalog(job: Job) -> Catalog:
    """Return the installed plugins' catalog with a format of random weights, and with schemes that
    quantize a few rows and repeat them: in-situ quantization of a large model takes seconds."""
    device = job.device.torch_name
    format = CheckpointFormat(
        name="random weights",
        matches=lambda path: (path / _MARK).is_file(),
        open=partial(_open, device=device),
    )
    quick = tuple(
        attrs.evolve(offer, item=_quick(offer.item, device))
        for offer in job.catalog.of("inferno_quant_schemes")
    )
    formats = "inferno_checkpoint_formats"
    given = {
        formats: (*job.catalog.of(formats), Offer(format, "inferno")),
        "inferno_quant_schemes": quick,
    }
    return attrs.evolve(job.catalog, offers={**job.catalog.offers, **given})


def _quick(scheme: QuantScheme, device: str) -> QuantScheme:
    if scheme.pack is None:
        return scheme

    def pack(weight_OI: Tensor, **ignored: Any) -> Weight:
        rows, columns = weight_OI.shape
        return packed(scheme, rows, columns, device)

    return attrs.evolve(scheme, pack=pack)


def _open(path: Path, architectures: Sequence[Architecture], *, device: str) -> RandomCheckpoint:
    config = json.loads((path / "config.json").read_text())
    [name] = config["architectures"]
    architecture = next(each for each in architectures if each.name == name)
    with torch.device("meta"):
        model = architecture.build(architecture.config(config))
    tensors = {
        name: TensorInfo("bfloat16", shape, 2 * math.prod(shape)) for name, shape in _stored(model)
    }
    return RandomCheckpoint(config, tensors, device)


def _stored(model: torch.nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the shape of every tensor that a checkpoint stores for the model."""
    for path, module in model.named_modules():
        at = checkpoint_path(path)
        for part, parameter in module.named_parameters(recurse=False):
            yield join(at, part), tuple(parameter.shape)
        matrix = getattr(module, "weight", None)
        if isinstance(matrix, Unloaded):
            yield join(at, "weight"), matrix.shape
