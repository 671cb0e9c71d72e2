"""Whether a file that is to be written describes the model: its header is read back, and the model
that it makes is compared with the original."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from inferno.configs import RopeConfig
from inferno.contracts import DenseCheckpoint, module_pattern
from inferno.errors import InfernoError, UnsupportedError
from inferno_gguf.checkpoint import GgufCheckpoint
from inferno_gguf.header import StoredTensor, header
from inferno_gguf.vocabulary import WHOLE, check_alike

if TYPE_CHECKING:
    from torch import Tensor, nn

OTHERWISE = "Convert to safetensors or to a scheme of it instead."


def check(
    source: DenseCheckpoint,
    names: Sequence[str],
    metadata: Mapping[str, Any],
    targets: Sequence[StoredTensor],
    tables: Mapping[str, Tensor],
    *,
    is_gguf: bool,
) -> None:
    """Raise UnsupportedError unless the file has the source's model, the tensors of these names,
    and its tokenizer. `tables` are the tensors that are configuration. If the source `is_gguf`,
    its tokenizer is copied and not compared."""
    plain = {key: value for key, value in metadata.items() if key != WHOLE}
    start, places, nbytes = header(plain, targets)
    try:
        with tempfile.TemporaryDirectory(prefix="inferno-") as folder:
            path = Path(folder) / "header.gguf"
            with path.open("wb") as stream:
                stream.write(start)
                for name, tensor in tables.items():
                    stream.seek(places[name][0])
                    stream.write(tensor.numpy().tobytes())
                stream.truncate(nbytes)  # takes no room
            checkpoint = GgufCheckpoint.open(path, [source.architecture])
            adapt = source.architecture.adapt
            adapted = checkpoint if adapt is None else adapt(checkpoint)
            model = source.architecture.config(adapted.config)
            patterns = {module_pattern(name) for name in checkpoint.tensors}
            written = checkpoint.text().tokenizer_json
            checkpoint.close()
    except InfernoError as error:
        raise UnsupportedError(
            f"a GGUF file of {source.architecture.name} would not be read: {error.cause}", OTHERWISE
        ) from error
    different = _different(source, model)
    if not different and patterns != {module_pattern(name) for name in names}:
        different = ["names of tensors"]
    if different:
        raise UnsupportedError(
            f"GGUF files cannot describe this {source.architecture.name}: they would change its "
            f"{', '.join(different[:4])}",
            OTHERWISE,
        )
    original = source.text().tokenizer_json
    if original is not None and written is not None and not is_gguf:
        check_alike(original, written)


def _different(source: DenseCheckpoint, model: Any) -> list[str]:
    """Return the fields in which two configs differ, if the models differ that are built of
    them."""
    if source.model == model:
        return []
    import torch

    with torch.device("meta"):
        ours, theirs = (source.architecture.build(config) for config in (source.model, model))
    if same_models(ours, theirs) and list(source.model.cache_specs()) == list(model.cache_specs()):
        return []
    original: Any = source.model
    if not attrs.has(type(model)) or type(model) is not type(original):
        return ["config"]
    one, other = (attrs.asdict(each, recurse=False) for each in (original, model))
    fields = [name for name, value in one.items() if not _same(value, other[name])]
    return fields or [name for name, value in one.items() if value != other[name]]


def same_models(ours: nn.Module, theirs: nn.Module) -> bool:
    """Whether two models that were built on meta compute the same: their modules, what these hold,
    and their tables, up to float32's precision."""
    one, other = dict(ours.named_modules()), dict(theirs.named_modules())
    return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)


def _alike(one: nn.Module, other: nn.Module) -> bool:
    if type(one) is not type(other):
        return False
    fields = [
        {k: v for k, v in vars(each).items() if not k.startswith("_") and not callable(v)}
        for each in (one, other)
    ]
    tensors = [
        dict([*each.named_buffers(recurse=False), *each.named_parameters(recurse=False)])
        for each in (one, other)
    ]
    return (
        fields[0].keys() == fields[1].keys()
        and tensors[0].keys() == tensors[1].keys()
        and all(_same(value, fields[1][name]) for name, value in fields[0].items())
        and all(_same(value, tensors[1][name]) for name, value in tensors[0].items())
    )


def _same(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = (one.shape, one.dtype) == (other.shape, other.dtype)
        return same and (one.is_meta or torch.allclose(one, other, rtol=1e-5, atol=0))
    if isinstance(one, RopeConfig) and isinstance(other, RopeConfig):
        # A module's tables are compared as tensors, but for longrope's other factors.
        long = "longrope"
        if one.rope_type != long or other.rope_type != long:
            return True
        return _same(_factors(one), _factors(other))
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or abs(one - other) <= 1e-6 * abs(one)  # infinities, too
    return bool(one == other)


def _factors(rope: RopeConfig) -> tuple[Any, ...]:
    return rope.short_factor, rope.long_factor, rope.original_max_position_embeddings
