"""Maps stored tensors to transformers' parameters, by transformers' own declarations.

Since version 5 its modules keep some weights differently from checkpoints: all experts of a layer
as one tensor, a few modules under other names. The declarations describe the conversion.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from inferno.errors import UnsupportedError
from inferno_transformers import skeleton
from inferno_transformers.headed import conversions
from inferno_transformers.refusals import REMEDY

KNOWN = ("MergeModulelist", "Concatenate", "Transpose")
"""Operations that `adapt.Recipe` supports, beside those that divide one tensor (`_divided`)."""


def recipes(question: str) -> dict[str, Any]:
    """From {"config": config.json, "names": stored tensors}: for each parameter its sources and
    operations, as [[[name, ...], ...], [[operation, number, ...], ...]]. Stored tensors that
    transformers does not read are omitted; unknown ones keep their names."""
    request = json.loads(question)
    outline = skeleton.build(request["config"])
    model, wanted = outline.model, dict.fromkeys(outline.parameters, True)
    transforms = [
        *get_model_conversion_mapping(model),
        *conversions(model.config.model_type),
    ]
    renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
    converters = [t for t in transforms if isinstance(t, WeightConverter)]
    sources: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in sorted(request["names"], key=dot_natural_key):
        target, pattern = rename_source_key(
            name, renamings, converters, model.base_model_prefix, wanted
        )
        if target not in wanted:
            if pattern and _ignored(model, target):
                continue
            plain, _ = rename_source_key(name, [], [], model.base_model_prefix, wanted)
            target, pattern = (plain, None) if plain in wanted or pattern else (target, None)
        if target in wanted or not _ignored(model, name):
            sources[target][pattern or name].append(name)
    return {
        name: recipe
        for target, found_sources in sources.items()
        for name, recipe in _recipes(target, found_sources, converters, outline.parameters)
    }


def _recipes(
    target: str,
    sources: dict[str, list[str]],
    converters: Collection[WeightConverter],
    shapes: Mapping[str, Sequence[int]],
) -> Iterator[tuple[str, list[Any]]]:
    """What a converter makes of stored tensors, by parameter: `target` is the first."""
    for converter in converters:
        if sources.keys() <= set(converter.source_patterns):
            first, *_ = patterns = converter.target_patterns
            names = [target.replace(first, pattern) for pattern in patterns]
            found = [sources[p] for p in converter.source_patterns if p in sources]
            if len(names) > 1:
                yield from _divided(names, found, converter, shapes)
                return
            operations = [_numbers(operation) for operation in converter.operations]
            if unknown := sorted({name for name, *_ in operations} - set(KNOWN)):
                raise _unsupported(", ".join(unknown))
            yield target, [found, operations]
            return
    yield target, [list(sources.values()), []]


def _numbers(operation: Any) -> list[Any]:
    """An operation and the dimensions it is about."""
    name = type(operation).__name__
    if name == "Transpose":
        return [
            "Transpose" if not operation.check_dims else f"{name} of some",
            operation.dim0,
            operation.dim1,
        ]
    return [name, getattr(operation, "dim", 0)]


def _divided(
    names: list[str],
    sources: list[list[str]],
    converter: WeightConverter,
    shapes: Mapping[str, Sequence[int]],
) -> Iterator[tuple[str, list[Any]]]:
    """The recipes of parameters that share stored tensors: parts of one, or of each list of
    experts as many as each kind has. Those that the model does not have are left out."""
    [operation, *others] = converter.operations
    kind = type(operation).__name__
    if others or kind not in ("Split", "Chunk", "ErnieFuseAndSplitTextVisionExperts"):
        told = ", ".join(type(each).__name__ for each in converter.operations)
        raise _unsupported(f"{told} of one tensor to several")
    split = kind == "Split"  # chunks are all of one size
    if split and not all(name in shapes for name in names):
        raise _unsupported("Split of one tensor, some parts of which the model lacks")
    for place, name in enumerate(names):
        if kind.startswith("Ernie"):
            each = -(-len(sources[0]) // len(names))
            rows = [stored[place * each : (place + 1) * each] for stored in sources]
            fused: list[Any] = ["MergeModulelist", operation.stack_dim]  # type: ignore[attr-defined]
            joined = ["Concatenate", operation.concat_dim]  # type: ignore[attr-defined]
            recipe = [rows, [fused, joined]]
        else:
            dim = operation.dim  # type: ignore[attr-defined]
            sizes = [shapes[each if split else names[0]][dim] for each in names]
            start = sum(sizes[:place])
            recipe = [sources, [["Narrow", dim, start, sizes[place], sum(sizes)]]]
        if name in shapes:
            yield name, recipe


def _unsupported(conversion: str) -> UnsupportedError:
    return UnsupportedError(f"its checkpoints need transformers' conversion {conversion}", REMEDY)


def _ignored(model: Any, name: str) -> bool:
    patterns = {*(model._keys_to_ignore_on_load_unexpected or ()), r"rotary_emb\.inv_freq"}
    return any(re.search(pattern, name) for pattern in patterns)
