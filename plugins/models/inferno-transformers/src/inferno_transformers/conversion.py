"""Maps stored tensors to transformers' parameters, by transformers' own declarations.

Since version 5 its modules keep some weights differently from checkpoints: all experts of a layer
as one tensor, a few modules under other names. The declarations describe the conversion.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection
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

KNOWN = ("MergeModulelist", "Concatenate")
"""Operations that `adapt.Recipe` supports."""


def recipes(question: str) -> dict[str, Any]:
    """From {"config": config.json, "names": stored tensors}: for each parameter its sources and
    operations, as [[[name, ...], ...], [[operation, dim], ...]]. Stored tensors that transformers
    does not read are omitted; unknown ones keep their names."""
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
            plain, _ = rename_source_key(name, [], [], model.base_model_prefix, wanted)
            target, pattern = (plain, None) if plain in wanted or pattern else (target, None)
        if target in wanted or not _ignored(model, name):
            sources[target][pattern or name].append(name)
    return {target: _recipe(found_sources, converters) for target, found_sources in sources.items()}


def _recipe(sources: dict[str, list[str]], converters: Collection[WeightConverter]) -> list[Any]:
    for converter in converters:
        if sources.keys() <= set(converter.source_patterns):
            operations = [[type(op).__name__, getattr(op, "dim", 0)] for op in converter.operations]
            if (
                unknown := sorted({name for name, _ in operations} - set(KNOWN))
                or len(converter.target_patterns) > 1
            ):
                told = ", ".join(unknown) if isinstance(unknown, list) else "one tensor to several"
                raise UnsupportedError(
                    f"its checkpoints need transformers' conversion {told}", REMEDY
                )
            return [[sources[p] for p in converter.source_patterns if p in sources], operations]
    return [list(sources.values()), []]


def _ignored(model: Any, name: str) -> bool:
    patterns = {*(model._keys_to_ignore_on_load_unexpected or ()), r"rotary_emb\.inv_freq"}
    return any(re.search(pattern, name) for pattern in patterns)
