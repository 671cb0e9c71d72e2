"""Damage for tests: what a broken or foreign checkpoint may have in its tensors and its config."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor


def damages(part: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Copies of a part with a wrong shape or type."""
    yield "with an extra dimension", part[None]
    yield "as float64", part.double()
    yield "as bytes", torch.zeros(math.prod(part.shape), dtype=torch.uint8).view(part.shape)
    if not part.ndim:
        return
    yield "without its last row", part[:-1]
    yield "without rows", part[:0]
    yield (
        "with an extra row",
        torch.cat([part.view(torch.uint8), part[-1:].view(torch.uint8)]).view(part.dtype),
    )
    yield "without its last column", part[..., :-1]
    yield "without columns", part[..., :0]
    yield "in one dimension", part.flatten()
    yield "as a scalar", part.flatten()[0]


_VALUES = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 1, 2, 3, 4, 7, 8, 16, 32, 64, 128, 1 << 40, 4.0]),
    st.sampled_from(["", "odd", "re:[", "-:.*", "fp8", "int", "float", "group", "channel"]),
    st.recursive(
        st.none() | st.integers(-9, 300) | st.floats() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
        ),
        max_leaves=4,
    ),
)
"""JSON that a damaged or foreign config may have in any place."""


def _places(config: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a JSON value, as its object or list, and its key there."""
    items = config.items() if isinstance(config, dict) else enumerate(config)
    for key, value in list(items):
        yield config, key
        if isinstance(value, dict | list):
            yield from _places(value)


@st.composite
def changed(draw: st.DrawFn, config: Mapping[str, Any]) -> dict[str, Any]:
    """Draw a JSON object with some of its values replaced, removed or exchanged, at any depth."""
    document: dict[str, Any] = json.loads(json.dumps(config))
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(document))
        if not places:
            return document
        holder, key = draw(st.sampled_from(places))
        change = draw(st.sampled_from(["replace", "replace", "replace", "remove", "exchange"]))
        if change == "remove":
            del holder[key]
        elif change == "exchange":
            other, its = draw(st.sampled_from(places))
            holder[key] = json.loads(json.dumps(other[its]))
        else:
            holder[key] = draw(_VALUES)
    return document
