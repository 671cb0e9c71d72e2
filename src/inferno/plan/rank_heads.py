"""Which part of a model's heads a rank has: of attention, and of recurrent states."""

from __future__ import annotations

from collections.abc import Sequence

from inferno.contracts import (
    ATTENTION,
    COLUMNS,
    STATE,
    AttentionSpec,
    Divided,
    Shard,
    StateSpec,
    counts,
    divides_heads,
)

Stored = tuple[Divided, int, int]
"""Of a matrix that is divided: by what, its rows or columns, how many of which keep together."""


def attended(kind: Divided, size: int, spec: AttentionSpec, shard: Shard) -> tuple[int, ...]:
    """Return the rows or columns that a rank has of a matrix of attention: those of its queries,
    keys and values, if it is one for all."""
    local = shard.local(spec)
    heads, kv_heads, width = local.num_heads, local.num_kv_heads, spec.head_dim
    if kind != "heads":
        return (size // spec.num_heads * heads,)
    for whole, part in (
        (spec.num_heads, (heads,)),
        (spec.num_kv_heads, (kv_heads,)),
        (spec.num_heads + 2 * spec.num_kv_heads, (heads, kv_heads, kv_heads)),
    ):
        if size == whole * width:
            return tuple(count * width for count in part)
    return (size,)


def of_state(kind: Divided, size: int, spec: StateSpec, shard: Shard) -> int:
    """Return the rows or columns that a rank has of a matrix of a recurrent layer."""
    heads, groups = counts(shard.local(spec))
    if kind == "state inputs":
        return spec.sized(size, heads, groups)
    return size // spec.heads * heads


def whole_attention(specs: Sequence[AttentionSpec], stored: Sequence[Stored], ranks: int) -> str:
    """Return why attention cannot be divided; an empty string if it can."""
    if not specs:
        return ""
    if not any(kind in ATTENTION for kind, *_ in stored):
        return "its matrices are not divided by heads"
    heads = {(spec.num_heads, spec.num_kv_heads, spec.head_dim) for spec in specs}
    if len(heads) > 1 or specs[0].output_dim != (specs[0].latent_dim or specs[0].head_dim):
        return "heads of several sizes are not divided"
    spec, shard = specs[0], Shard(ranks=ranks)
    if not divides_heads(spec, ranks):
        return (
            f"{spec.num_heads} query heads over {spec.num_kv_heads} of keys and values are not "
            f"divisible by {ranks} ranks"
        )
    for kind, size, unit in stored:
        if kind in ATTENTION and any(n % unit for n in attended(kind, size, spec, shard)):
            width = size // spec.num_heads if kind != "heads" else spec.head_dim
            return f"heads of {width} do not fill the blocks of {unit} in which they are stored"
    return ""


def whole_states(specs: Sequence[StateSpec], stored: Sequence[Stored], ranks: int) -> str:
    """Return why recurrent states cannot be divided; an empty string if they can."""
    if len(set(specs)) > 1:
        return "states of several sizes are not divided"
    for spec in specs[:1]:
        if not spec.heads or not any(kind in STATE for kind, *_ in stored):
            return "its states do not say what their heads are"
        if not divides_heads(spec, ranks):
            groups = f" in {spec.groups} groups" if spec.groups else ""
            return f"{spec.heads} heads of states{groups} are not divisible by {ranks} ranks"
        for kind, size, unit in stored:
            if kind not in STATE or unit == 1:
                continue
            # How the rows of one head lie in a block of rows, only the model knows.
            count = of_state(kind, size, spec, Shard(ranks=ranks))
            if kind not in COLUMNS or count % unit:
                return f"heads of states do not fill the blocks of {unit} in which they are stored"
    return ""
