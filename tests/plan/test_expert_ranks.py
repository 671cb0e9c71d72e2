"""How experts are dealt out to ranks, and what the plan says of it."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from inferno.contracts import DECODER, Architecture, AttentionSpec, Device, HeldMatrix, Shard
from inferno.errors import OptionError, UnsupportedError
from inferno.plan import Options
from inferno.plan.rank_experts import Dealt
from inferno.plan.ranks import Division, check_ranks

TOY = Architecture(
    name="Toy", config=lambda config: None, build=lambda config: None, divides=DECODER
)
HEADS = AttentionSpec(num_heads=8, num_kv_heads=2, head_dim=16, scale=1.0)
MODEL = type("Model", (), {"vocab_size": 1000})
CPU = Device(kind="cpu", index=0, name="CPU", total=1 << 30, free=1 << 30)
NAMES = "gate_proj", "up_proj", "down_proj"


def held(
    rows: int, columns: int, unit: tuple[int, int] | None = (1, 1), nbytes: int = 0
) -> HeldMatrix:
    return HeldMatrix(shape=(rows, columns), nbytes=nbytes or 2 * rows * columns, unit=unit)


def matrices(
    experts: int, layers: int = 2, unit: tuple[int, int] | None = (1, 1)
) -> dict[str, HeldMatrix]:
    """Of mixtures with shared experts: 64 hidden, experts of 24."""
    by_path = {"lm_head": held(1000, 64)}
    for layer in range(layers):
        path = f"model.layers.{layer}"
        by_path |= {f"{path}.self_attn.{name}": held(128, 64) for name in ("q_proj",)}
        by_path |= {f"{path}.self_attn.{name}": held(32, 64) for name in ("k_proj", "v_proj")}
        by_path[f"{path}.self_attn.o_proj"] = held(64, 128)
        for name in NAMES:
            shape = (64, 24) if name == "down_proj" else (24, 64)
            by_path[f"{path}.mlp.shared_experts.{name}"] = held(*shape)
            for expert in range(experts):
                by_path[f"{path}.mlp.experts.{expert}.{name}"] = held(*shape, unit)
    return by_path


def dealt(held: dict[str, HeldMatrix], ranks: int = 2) -> Division:
    return Division.of(TOY, [HEADS], held, ranks, experts=True)


@given(st.integers(1, 9), st.integers(0, 60))
def test_each_expert_is_on_one_rank_and_every_rank_has_some(ranks: int, more: int) -> None:
    count, shard = ranks + more, Shard(ranks=ranks, experts=True)
    names = [f"layers.0.experts.{n}.up_proj" for n in range(count)]
    deal = Dealt.of(shard, {name: held(1, 1) for name in names})
    owners = [deal.ranks[name] for name in names]
    assert owners == sorted(owners) and {*owners} == {*range(ranks)}
    counts = tuple(map(owners.count, range(ranks)))
    assert deal.counts == {"layers.0.experts": counts} and max(counts) - min(counts) <= 1
    for rank in range(ranks):
        first, stop = evolve(shard, rank=rank).share(count, 1)
        assert [n for n, owner in enumerate(owners) if owner == rank] == [*range(first, stop)]


def test_a_rank_has_some_experts_whole_and_a_part_of_all_else() -> None:
    division = dealt(matrices(5))
    path = "model.layers.1.mlp"
    numbers = [n for n in range(5) if division.local(f"{path}.experts.{n}.down_proj") is not None]
    assert numbers == [2, 3, 4], "those of the largest rank"
    whole, shared = (
        division.local(f"{path}.{name}.down_proj") for name in ("experts.2", "shared_experts")
    )
    assert whole is not None and whole.shape == (64, 24)
    assert shared is not None and shared.shape == (64, 12)
    use = division.use("processes", "inferno", MODEL(), "bfloat16")
    [experts] = use.experts
    assert (experts.modules, experts.counts) == ("model.layers.*.mlp.experts", (2, 3))
    assert experts.nbytes == 2 * 3 * 3 * 2 * 64 * 24
    assert not any(".experts." in name for name in use.divided) and not use.whole


def test_experts_cost_no_sum_more_than_shared_ones() -> None:
    alike = matrices(4)
    shared = Division.of(TOY, [HEADS], alike, 2).use("processes", "inferno", MODEL(), "bfloat16")
    use = dealt(alike).use("processes", "inferno", MODEL(), "bfloat16")
    assert (use.num_sums, use.wire_bytes) == (shared.num_sums, shared.wire_bytes)
    assert use.num_sums == 2 * 2 + 1, "attention and the mixture of each layer, and the embedding"


@pytest.mark.parametrize("unit", [None, (1, 0), (1, 256)])
def test_experts_that_cannot_be_cut_can_be_dealt_out(unit: tuple[int, int] | None) -> None:
    by_path = matrices(4, unit=unit)
    division = dealt(by_path)
    assert division.shard.unit == 1 and division.shard.columns, "experts do not matter to others"
    if unit is None or not unit[1]:
        with pytest.raises(UnsupportedError, match="experts.* cannot be divided among ranks"):
            Division.of(TOY, [HEADS], by_path, 2)


def test_the_largest_rank_is_that_of_most_bytes() -> None:
    by_path = matrices(4)
    for name in NAMES:
        by_path[f"model.layers.0.mlp.experts.0.{name}"] = held(64, 24, nbytes=1 << 20)
    assert dealt(by_path).dealt.largest == 0


def test_what_has_too_few_experts_is_refused_with_a_remedy() -> None:
    with pytest.raises(UnsupportedError, match="3 experts cannot be dealt out to 4") as refused:
        dealt(matrices(3), 4)
    assert "--tp 3" in refused.value.remedy
    with pytest.raises(UnsupportedError, match="no routed experts"):
        dealt(matrices(0))


def test_options_that_do_not_deal_out_experts_are_refused_by_name() -> None:
    with pytest.raises(OptionError, match="ep is set without tp or dp"):
        Options(ep=True)
    assert Options(tp=2, pp=2, ep=True).shared_by == "--tp 2 --pp 2 --ep"
    config = type("Config", (), {"divides": {"a": "outputs"}})()
    with pytest.raises(UnsupportedError, match="--ep: Toy is computed by transformers"):
        check_ranks(Options(tp=2, ep=True), CPU, "Toy", evolve(TOY, divides={}), config)
