"""What several ranks hold of latent attention and of recurrent layers."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from tests.divisions import local_of

from inferno.configs import mamba2_state
from inferno.contracts import (
    DECODER,
    MAMBA2,
    Architecture,
    AttentionSpec,
    CacheTensor,
    HeldMatrix,
    Shard,
    StateSpec,
    divides_heads,
)
from inferno.nn import Cut
from inferno.plan.ranks import Division

LAYER = "model.layers.0"
MIXED = Architecture(
    name="Toy",
    config=lambda config: None,
    build=lambda config: None,
    divides={**DECODER, **MAMBA2, "in_proj_ba": "state heads", "attn.out_proj": "from heads"},
)
LATENT = Architecture(
    name="Toy",
    config=lambda config: None,
    build=lambda config: None,
    divides={**DECODER, **dict.fromkeys(("q_proj", "q_b_proj", "kv_b_proj"), "query heads")},
)


def held(rows: int, columns: int, unit: tuple[int, int] = (1, 1)) -> HeldMatrix:
    return HeldMatrix(shape=(rows, columns), nbytes=2 * rows * columns, unit=unit)


def state_of(heads: int, groups: int) -> StateSpec:
    return mamba2_state(heads=heads, width=4, state_size=16, groups=groups, taps=4)


def recurrent(heads: int, groups: int, unit: int = 1, rows: int = 1) -> dict[str, HeldMatrix]:
    inner = heads * 4
    mixer = f"{LAYER}.mamba"
    return {
        f"{mixer}.in_proj": held(2 * inner + 2 * groups * 16 + heads, 64, (rows, 1)),
        f"{mixer}.in_proj_ba": held(2 * heads, 64),
        f"{mixer}.out_proj": held(64, inner, (1, unit)),
        "lm_head": held(1000, 64),
    }


def divided(found: dict[str, HeldMatrix], spec: StateSpec, ranks: int) -> Division:
    return Division.of(MIXED, [spec], found, ranks)


def use_of(division: Division) -> Any:
    class Config:
        vocab_size = 1000

    return division.use("processes", "inferno", Config(), "float32")  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", range(2, 9))
@pytest.mark.parametrize("groups", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("shared", [1, 2, 3, 4])
def test_each_head_of_a_state_is_on_one_rank_with_its_group(
    groups: int, shared: int, ranks: int
) -> None:
    spec = state_of(groups * shared, groups)
    if not divides_heads(spec, ranks):
        return
    seen = list[int]()
    for rank in range(ranks):
        shard = Shard(rank=rank, ranks=ranks)
        (first, stop), (first_group, stop_group) = shard.heads(spec)
        local = shard.local(spec)
        assert (local.heads, local.groups) == (stop - first, stop_group - first_group)
        assert local == state_of(local.heads, local.groups), "that of a smaller layer"
        each = local.heads // local.groups
        assert [first_group + i // each for i in range(local.heads)] == [
            head // shared for head in range(first, stop)
        ]
        seen += range(first, stop)
    assert seen == list(range(spec.heads))


def test_channels_without_heads_are_divided_one_by_one() -> None:
    spec = StateSpec(tensors={"conv": CacheTensor((2, 64), "compute")}, heads=64)
    local = Shard(rank=1, ranks=4).local(spec)
    assert local.tensors == {"conv": CacheTensor((2, 16), "compute")}
    assert Shard(rank=1, ranks=4).heads(spec)[0] == (16, 32)
    assert Shard(ranks=4, states=False).local(spec) == spec


@pytest.mark.parametrize(
    ("heads", "groups", "ranks", "rows"),
    [(8, 4, 2, 2 * 16 + 2 * 2 * 16 + 4), (8, 1, 4, 2 * 8 + 2 * 16 + 2)],
    ids=["groups", "shared group"],
)
def test_matrices_of_states_are_divided_by_heads_and_groups(
    heads: int, groups: int, ranks: int, rows: int
) -> None:
    division = divided(recurrent(heads, groups), state_of(heads, groups), ranks)
    mixer = f"{LAYER}.mamba"
    local = {name: local_of(division, f"{mixer}.{name}").shape for name in ("in_proj", "out_proj")}
    assert local == {"in_proj": (rows, 64), "out_proj": (64, heads * 4 // ranks)}
    assert local_of(division, f"{mixer}.in_proj_ba").shape == (2 * heads // ranks, 64)
    use = use_of(division)
    assert use.num_sums == 2 and not use.whole, "the state's and the embedding's"
    copied = ["1 groups of heads of states: each is on 4 ranks"] if groups == 1 else []
    assert list(use.copied) == copied


@pytest.mark.parametrize(
    ("found", "spec", "why"),
    [
        (recurrent(9, 3), state_of(9, 3), "9 heads of states in 3 groups are not divisible by 2"),
        (recurrent(6, 6, 16), state_of(6, 6), "do not fill the blocks of 16"),
        (recurrent(8, 2, rows=2), state_of(8, 2), "do not fill the blocks of 2"),
        (recurrent(8, 2), evolve(state_of(8, 2), heads=0), "do not say what their heads are"),
    ],
    ids=["uneven", "columns of a block", "rows of a block", "none"],
)
def test_states_that_cannot_be_divided_are_whole_and_say_why(
    found: dict[str, HeldMatrix], spec: StateSpec, why: str
) -> None:
    division = divided(found, spec, 2)
    path = f"{LAYER}.mamba.out_proj"
    assert local_of(division, path) == found[path] and not division.shard.states
    assert division.shard.local(spec) == spec
    [whole] = use_of(division).whole
    assert why in whole.why and "mamba.in_proj" in whole.modules


def test_states_of_two_sizes_are_whole() -> None:
    division = Division.of(MIXED, [state_of(8, 2), state_of(4, 2)], recurrent(8, 2), 2)
    assert division.refused_states == "states of several sizes are not divided"


def test_the_last_two_parts_of_a_path_say_what_one_cannot() -> None:
    spec = AttentionSpec(num_heads=4, num_kv_heads=4, head_dim=16, scale=1.0)
    matrices = recurrent(8, 2) | {f"{LAYER}.attn.out_proj": held(64, 64)}
    division = Division.of(MIXED, [spec, state_of(8, 2)], matrices, 2)
    kinds = [division.kind(f"{LAYER}.{name}.out_proj") for name in ("attn", "mamba")]
    assert kinds == ["from heads", "from state"]
    assert use_of(division).num_sums == 3, "of attention, of a state, and of the embedding"


def test_latent_attention_is_divided_by_heads_of_any_width_and_its_cache_is_whole() -> None:
    spec = AttentionSpec(num_heads=8, num_kv_heads=1, head_dim=72, latent_dim=64, scale=1.0)
    attention = f"{LAYER}.self_attn"
    matrices = {
        f"{attention}.q_b_proj": held(8 * 40, 32),
        f"{attention}.kv_a_proj_with_mqa": held(72, 64),
        f"{attention}.kv_b_proj": held(8 * 56, 64),
        f"{attention}.o_proj": held(64, 8 * 24, (1, 16)),
    }
    division = Division.of(LATENT, [spec], matrices, 4)
    shapes = {path.rpartition(".")[2]: local_of(division, path).shape for path in matrices}
    assert shapes == {
        "q_b_proj": (2 * 40, 32),
        "kv_a_proj_with_mqa": (72, 64),
        "kv_b_proj": (2 * 56, 64),
        "o_proj": (64, 48),
    }
    local = division.shard.local(spec)
    assert (local.num_heads, local.num_kv_heads, local.head_dim) == (2, 1, 72)
    [copied] = use_of(division).copied
    assert copied == "the cache, whole on every rank: all heads share one latent"
    matrices[f"{attention}.o_proj"] = held(64, 8 * 24, (1, 32))
    assert "heads of 24 do not fill" in Division.of(LATENT, [spec], matrices, 4).refused


def test_ranges_that_follow_each_other_are_one() -> None:
    cut = Cut.rows((0, 4), (4, 4), (4, 6), (8, 8), (9, 12))
    assert cut == Cut(0, ((0, 6), (9, 12))) and cut.size == 9
