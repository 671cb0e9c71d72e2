"""What must be the same on all machines, because sums depend on it: inferno, torch and what it
computes with, and the model. Plugins and their levels are in the plan, which each rank compares
(`plan.agree`, `following.agree_on_levels`).

What may differ: the processor, as long as torch and the kernels run the same code on it; the number
of cores; Python; plugins that the plan does not name; where the model is, and in how many files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from importlib import metadata

from inferno.contracts import Checkpoint
from inferno.errors import CheckpointError, InfernoError, PluginError

_SAMPLES = 16
"""Tensors of which some values are compared: models of one architecture differ in nothing else."""
_SAMPLE_BYTES = 4096


def versions() -> dict[str, str]:
    """Return what this machine computes with, by name. Imports torch."""
    import torch

    return {
        "inferno": metadata.version("inferno"),
        "torch": str(torch.__version__),
        "torch's instructions": torch.backends.cpu.get_cpu_capability(),
    }


def agree_on_versions(
    theirs: Mapping[str, str], ours: Mapping[str, str], host: str
) -> InfernoError | None:
    """Return the error that names what differs on a machine, if anything does."""
    differ = [name for name in ours if theirs.get(name) != ours[name]]
    if not differ:
        return None
    there = ", ".join(f"{name} {theirs.get(name, 'nothing')}" for name in differ)
    here = ", ".join(f"{name} {ours[name]}" for name in differ)
    remedy = "Install the same versions on all machines."
    if differ == ["torch's instructions"]:
        remedy = "Set ATEN_CPU_CAPABILITY to the lesser of both on all machines."
    return PluginError(f"{host} has {there}, and the first machine {here}", remedy)


def model_identity(checkpoint: Checkpoint) -> dict[str, str]:
    """Return hashes of a model's parts: its config, its tensors' names, types and shapes, and some
    values of some of them."""
    config = json.dumps(checkpoint.config, sort_keys=True, default=str)
    tensors = sorted((name, i.dtype, list(i.shape)) for name, i in checkpoint.tensors.items())
    names = [name for name, _, shape in tensors if 0 not in shape]
    values = blake2b(digest_size=16)
    for name in names[:: max(1, len(names) // _SAMPLES)][:_SAMPLES]:
        values.update(_sample(checkpoint, name))
    return {
        "config": _hash(config.encode()),
        "tensors": _hash(json.dumps(tensors).encode()),
        "values": values.hexdigest(),
    }


def _sample(checkpoint: Checkpoint, name: str) -> bytes:
    import torch

    flat = checkpoint.read(name).reshape(-1)
    some = flat[: max(1, _SAMPLE_BYTES // flat.element_size())].contiguous()
    return some.view(torch.uint8).numpy().tobytes()


def _hash(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def agree_on_model(
    theirs: Mapping[str, str], ours: Mapping[str, str], there: str, here: str
) -> None:
    """Raise CheckpointError if the model is another one on the first machine. `there` and `here`
    are its names."""
    differ = [name for name in theirs if ours.get(name) != theirs[name]]
    if differ:
        raise CheckpointError(
            f"{here} is not the first machine's {there}: other {' and '.join(differ)}",
            "Copy the first machine's model here, and name it: --model PATH.",
        )


def machine_name() -> str:
    """Return this machine's name, for messages."""
    import platform

    with suppress(OSError):
        return platform.node() or "a machine"
    return "a machine"
