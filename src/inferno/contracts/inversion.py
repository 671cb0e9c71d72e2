"""Inverts dialects: where a file of another format stores a model's tensor, and how."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from attrs import frozen

from inferno.contracts.dialect import Dialect

if TYPE_CHECKING:
    from torch import Tensor


@frozen
class StoredPlace:
    """Where a file stores a tensor of the model."""

    stored: str
    """Name of the stored tensor."""
    member: int | None
    """Index in a stack; None: not a stack."""
    part: int
    """Index among the modules whose rows the stored matrix holds."""


def place_of(dialect: Dialect, name: str, fused: Collection[str] = ()) -> StoredPlace | None:
    """Return where a tensor of the model is stored; None if the dialect has no name for it. `fused`
    are those of its `rows` that the file stores as one matrix, although it could store several."""
    path, _, part = name.rpartition(".")
    for stored, ours in dialect.modules.items():
        if ours is not None:
            if (place := _matched(stored, ours, name, 0)) is not None:
                return place
    modules = {stored: (ours,) for stored, ours in dialect.modules.items() if ours is not None}
    rows = {stored: tuple(split.shares) for stored, split in dialect.rows.items()}
    for stored, targets in {
        **{stored: rows[stored] for stored in fused},
        **modules,
        **{stored: targets for stored, targets in rows.items() if stored not in modules},
    }.items():
        for number, ours in enumerate(targets):
            if (place := _matched(f"{stored}.{part}", ours, path, number)) is not None:
                return place
    return None


def module_pattern(name: str) -> str:
    """Return a tensor's module, with `{n}` for the layer's number: "blk.{n}.attn_q"."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "{n}", name.rpartition(".")[0] + ".", count=1).rstrip(".")


def tensor_pattern(name: str) -> str:
    """Return a tensor's name, or a module's, with `{n}` for the layer's number."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "{n}", name, count=1)


def rotary_heads(dialect: Dialect, config: Mapping[str, Any], name: str) -> int:
    """Return the number of heads of a tensor of the model whose rows files store as rotary pairs; 0
    if its rows keep their order. `config` has the dialect's fields."""
    keys = {dialect.modules[path]: key for path, key in dialect.rotary_pairs.items()}
    key = keys.get(module_pattern(name))
    if key is None:
        return 0
    [field] = [ours for ours, theirs in dialect.fields.items() if theirs == key]
    heads = config.get(field) or config["num_attention_heads"]
    if isinstance(heads, Sequence):  # one for each layer
        number = re.search(r"(?<=\.)\d+(?=\.)", name)
        heads = heads[int(number[0])] if number else max(heads)
    return int(heads)


def in_pairs(rows: Tensor, heads: int) -> Tensor:
    """Reorder rows (head, side, pair) to (head, pair, side), as files with rotary pairs have
    them. Packed rows move whole."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def _matched(stored: str, ours: str, name: str, part: int) -> StoredPlace | None:
    if (match := _pattern(ours).fullmatch(name)) is None:
        return None
    groups = match.groupdict()
    member = int(groups["e"]) if "e" in groups else None
    return StoredPlace(stored.replace("{n}", groups.get("n") or ""), member, part)


@cache
def _pattern(ours: str) -> re.Pattern[str]:
    pattern = re.escape(ours).replace(r"\{n\}", r"(?P<n>\d+)").replace(r"\{e\}", r"(?P<e>\d+)")
    return re.compile(pattern)
