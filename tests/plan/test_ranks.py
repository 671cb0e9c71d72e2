"""What several ranks hold of a model, and what the plan refuses to divide among them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from tests.divisions import local_of

from inferno.contracts import (
    DECODER,
    Architecture,
    AttentionSpec,
    Device,
    HeldMatrix,
    Shard,
    divides_heads,
)
from inferno.errors import OptionError, UnsupportedError
from inferno.plan import Options, Plan, plan_from_json, plan_to_json, resolve
from inferno.plan.addresses import address_of
from inferno.plan.ranks import Division, check_ranks

pytest.importorskip("inferno_demo")

DENSE = Architecture(
    name="Toy", config=lambda config: None, build=lambda config: None, divides=DECODER
)
LAYER = "model.layers.0"
CPU = Device(kind="cpu", index=0, name="CPU", total=1 << 30, free=1 << 30)


def plan_of(**options: Any) -> Plan:
    return resolve("demo", Options(device="cpu", max_model_len=256, memory="2GiB", **options))


def held(shape: tuple[int, int], unit: tuple[int, int] | None = (1, 1)) -> HeldMatrix:
    return HeldMatrix(shape=shape, nbytes=2 * shape[0] * shape[1], unit=unit)


def matrices(
    *, hidden: int = 64, heads: int = 8, kv_heads: int = 2, dim: int = 16, inner: int = 96
) -> dict[str, HeldMatrix]:
    attention, mlp = f"{LAYER}.self_attn", f"{LAYER}.mlp"
    return {
        f"{attention}.q_proj": held((heads * dim, hidden)),
        f"{attention}.k_proj": held((kv_heads * dim, hidden)),
        f"{attention}.v_proj": held((kv_heads * dim, hidden)),
        f"{attention}.o_proj": held((hidden, heads * dim)),
        f"{mlp}.gate_proj": held((inner, hidden)),
        f"{mlp}.up_proj": held((inner, hidden)),
        f"{mlp}.down_proj": held((hidden, inner)),
        "lm_head": held((1000, hidden)),
    }


def spec(heads: int = 8, kv_heads: int = 2, dim: int = 16) -> AttentionSpec:
    return AttentionSpec(num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, scale=1.0)


def divided(
    held: dict[str, HeldMatrix], ranks: int = 2, attention: AttentionSpec | None = None
) -> Division:
    return Division.of(DENSE, [attention or spec()], held, ranks)


# --- shares ---------------------------------------------------------------------------------------


@given(st.integers(1, 5000), st.integers(1, 9), st.sampled_from([1, 16, 32, 100, 256]))
def test_shares_cover_all_in_whole_units_and_are_even(size: int, ranks: int, unit: int) -> None:
    shares = Shard(ranks=ranks, unit=unit).shares(size)
    assert [start for start, _ in shares[1:]] == [stop for _, stop in shares[:-1]]
    assert (shares[0][0], shares[-1][1]) == (0, size)
    assert all(start % unit == 0 for start, stop in shares if stop > start)
    widths = [stop - start for start, stop in shares]
    assert max(widths) - min(widths) < 2 * unit
    if Shard(ranks=ranks, unit=unit).divides(size):
        assert min(widths) > 0


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3, 4, 6, 8]), st.integers(1, 8))
def test_each_query_head_is_on_one_rank_with_its_keys(
    kv_heads: int, group: int, ranks: int
) -> None:
    attention = spec(kv_heads * group, kv_heads)
    if not divides_heads(attention, ranks):
        return
    seen = list[int]()
    for rank in range(ranks):
        shard = Shard(rank=rank, ranks=ranks)
        (first, stop), (first_kv, stop_kv) = shard.heads(attention)
        local = shard.local(attention)
        assert (local.num_heads, local.num_kv_heads) == (stop - first, stop_kv - first_kv)
        assert local.num_heads % local.num_kv_heads == 0, "groups of one size"
        each = local.num_heads // local.num_kv_heads
        for head in range(first, stop):
            assert first_kv + (head - first) // each == head // group
        seen += range(first, stop)
    assert seen == list(range(attention.num_heads))


# --- what is divided ------------------------------------------------------------------------------


def test_matrices_are_divided_by_heads_inner_width_and_tokens() -> None:
    division = divided(matrices())
    local = {path.rpartition(".")[2]: local_of(division, path) for path in division.held}
    assert {name: each.shape for name, each in local.items()} == {
        "q_proj": (64, 64),
        "k_proj": (16, 64),
        "v_proj": (16, 64),
        "o_proj": (64, 64),
        "gate_proj": (48, 64),
        "up_proj": (48, 64),
        "down_proj": (64, 48),
        "lm_head": (500, 64),
    }
    assert all(2 * local[p.rpartition(".")[2]].nbytes == m.nbytes for p, m in division.held.items())


def test_blocks_of_any_matrix_are_the_unit_of_inner_widths() -> None:
    mlp = f"{LAYER}.mlp"
    by_path = matrices(inner=768)
    by_path[f"{mlp}.down_proj"] = held((64, 768), (1, 256))
    by_path[f"{mlp}.up_proj"] = held((768, 64), (96, 1))
    division = divided(by_path)
    assert division.shard.unit == 768 and division.kind(f"{mlp}.down_proj") is None
    by_path[f"{mlp}.up_proj"] = held((768, 64), (64, 1))
    division = divided(by_path)
    assert division.shard.unit == 256
    assert local_of(division, f"{mlp}.down_proj").shape == (64, 512), "that of the largest rank"


def test_gate_and_up_in_one_matrix_are_divided_as_each_of_them_would_be() -> None:
    mlp = f"{LAYER}.mlp"
    for inner, kinds in ((256, ("two inner", "from inner")), (128, (None, None))):
        by_path = matrices(inner=inner)
        del by_path[f"{mlp}.gate_proj"], by_path[f"{mlp}.up_proj"]
        by_path[f"{mlp}.gate_up_proj"] = held((2 * inner, 64), (128, 1))
        division = divided(by_path)
        names = (f"{mlp}.gate_up_proj", f"{mlp}.down_proj")
        assert tuple(division.kind(name) for name in names) == kinds


@pytest.mark.parametrize(
    ("attention", "unit", "why"),
    [
        (spec(9, 3), 1, "9 query heads over 3 of keys and values are not divisible by 2 ranks"),
        (spec(6, 2), 256, "heads of 16 do not fill the blocks of 256"),
    ],
)
def test_attention_that_cannot_be_divided_is_whole_and_says_why(
    attention: AttentionSpec, unit: int, why: str
) -> None:
    by_path = matrices(heads=attention.num_heads, kv_heads=attention.num_kv_heads)
    path = f"{LAYER}.self_attn.o_proj"
    by_path[path] = evolve(by_path[path], unit=(1, unit))
    division = divided(by_path, attention=attention)
    assert local_of(division, path) == by_path[path] and not division.shard.attention
    use = division.use("processes", "inferno", resolve_config(), "float32")
    [whole] = use.whole
    assert why in whole.why and "self_attn.q_proj" in whole.modules
    assert use.copied == (f"the cache, whole on every rank: {whole.why}",)
    assert use.num_sums == 2, "the embedding's and the MLP's"


def resolve_config() -> Any:
    class Config:
        vocab_size = 1000

    return Config()


def test_a_matrix_that_cannot_be_cut_is_refused_by_name() -> None:
    path = f"{LAYER}.mlp.down_proj"
    by_path = matrices() | {path: held((64, 96), None)}
    with pytest.raises(UnsupportedError, match=path) as caught:
        divided(by_path)
    assert "act-order" in caught.value.remedy


def test_what_is_cut_by_rows_only_is_divided_by_outputs() -> None:
    """As with act-order: inputs are gathered, then results, of all that would be summed."""
    by_path = {path: evolve(each, unit=(1, 0)) for path, each in matrices().items()}
    division = divided(by_path)
    assert not division.shard.columns and division.shard.attention
    shapes = {path.rpartition(".")[2]: local_of(division, path).shape for path in by_path}
    assert (shapes["q_proj"], shapes["o_proj"]) == ((64, 64), (32, 128))
    assert (shapes["up_proj"], shapes["down_proj"]) == ((48, 64), (32, 96))
    use = division.use("processes", "inferno", resolve_config(), "float32")
    assert (use.num_sums, use.num_gathers) == (1, 4)
    gathered = 4 * (64 + 128 + 64 + 96) // 2
    assert use.wire_bytes == 4 * 64 + gathered + 4 * 1000 // 2
    experts = {path.replace(".mlp.", ".mlp.experts.0."): each for path, each in by_path.items()}
    with pytest.raises(UnsupportedError, match=r"experts\.0\.gate_proj"):
        divided(experts)


def test_modules_that_do_not_know_of_ranks_have_their_results_gathered() -> None:
    """What a config says of its matrices, by path, is by which they are divided."""
    path = "model.layers.0.self_attn.q_proj"

    class Config:
        vocab_size = 1000
        divides: ClassVar = {path: "outputs", "model.embed": "vocabulary"}

    stranger = evolve(DENSE, divides={})
    by_path = {path: held((100, 64), (16, 1)), "model.embed": held((1000, 64))}
    division = Division.of(stranger, [spec()], by_path, 2, Config)
    assert local_of(division, path).shape == (52, 64), "in whole blocks of 16 rows"
    assert not division.shard.attention
    use = division.use("processes", "inferno", cast(Any, Config), "float32")
    assert (use.num_sums, use.num_gathers) == (1, 1)
    assert use.copied == ("the cache, whole on every rank: its matrices are not divided by heads",)
    with pytest.raises(UnsupportedError, match="cannot be divided"):
        check_ranks(Options(tp=2), CPU, "Toy", stranger)
    check_ranks(Options(tp=2), CPU, "Toy", stranger, Config)


def test_a_model_of_which_nothing_can_be_divided_is_refused() -> None:
    by_path = {f"{LAYER}.mlp.down_proj": held((64, 3))}
    with pytest.raises(UnsupportedError, match="no matrix of this model"):
        divided(by_path, 4, spec(3, 3)).use("processes", "inferno", resolve_config(), "float32")


# --- the plan -------------------------------------------------------------------------------------


def test_one_rank_is_no_ranks() -> None:
    assert plan_of().ranks is None and plan_of(tp=1) == plan_of()


def test_a_plan_with_ranks_has_the_sizes_of_one_rank() -> None:
    alone, shared = plan_of(), plan_of(tp=2)
    assert shared.ranks is not None and shared.ranks.count == 2
    assert shared.ranks.weight_bytes == sum(use.nbytes for use in alone.schemes)
    weights = [plan.memory[0].nbytes for plan in (alone, shared)]
    assert 0.5 <= weights[1] / weights[0] < 0.6
    assert [2 * use.need.num_heads for use in shared.attention] == [
        use.need.num_heads for use in alone.attention
    ]
    assert 2 * shared.kv_bytes_per_token == alone.kv_bytes_per_token
    assert 2 * shared.memory_limit == alone.memory_limit
    assert shared.num_parameters == alone.num_parameters
    assert plan_from_json(plan_to_json(shared)) == shared


def test_a_rank_receives_sums_and_logits() -> None:
    shared = plan_of(tp=2, dtype="bfloat16").ranks
    config = json.loads((resolve_path() / "config.json").read_text())
    layers, hidden, vocabulary = (
        config[name] for name in ("num_hidden_layers", "hidden_size", "vocab_size")
    )
    assert shared is not None and shared.num_sums == 2 * layers + 1
    assert shared.wire_bytes == shared.num_sums * hidden * 2 + vocabulary * 4 // 2


def resolve_path() -> Path:
    return Path(plan_of().path)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"prefill_for": "shm://x"},
            r"--nodes 2: .* not linked through shm://x\n.*tcp://HOST\+HOST",
        ),
        ({"decode_with": "tcp://a+b:1,shm://x"}, "--nodes 2: .* not linked through shm://x"),
        ({"prefill_for": "tcp://a:1"}, r"names 1 of 2 machines.*\n.*tcp://\*:PORT"),
        ({"decode_with": "tcp://a+b:1", "nodes": 1, "tp": 1}, "several hosts of one instance"),
    ],
)
def test_ranks_of_several_machines_are_linked_by_all_hosts(
    options: dict[str, Any], match: str
) -> None:
    with pytest.raises((OptionError, UnsupportedError), match=match):
        plan_of(**{"tp": 2, "nodes": 2} | options)


def test_each_rank_of_several_machines_has_a_port_of_a_link(tmp_path: Path) -> None:
    pytest.importorskip("inferno_disaggregated")
    token = tmp_path / "token"
    token.write_text("x" * 32)
    token.chmod(0o600)
    given: dict[str, Any] = {"tp": 2, "nodes": 2, "pd_token_file": str(token)}
    for name, url in (("prefill_for", "a+b"), ("prefill_for", "*"), ("decode_with", "a+b")):
        store = plan_of(**given, **{name: f"tcp://{url}:7000"}).store
        assert store is not None
        assert store.addresses() == [f"tcp://{url}:7000", f"tcp://{url}:7001"]


def test_each_rank_has_an_address_of_a_link() -> None:
    pytest.importorskip("inferno_disaggregated")

    def urls(**options: Any) -> list[str]:
        store = plan_of(tp=2, **options).store
        assert store is not None
        return store.addresses()

    assert urls(prefill_for="shm://a") == ["shm://a", "shm://a.1"]
    assert urls(prefill_for="shm://a", dp=2) == ["shm://a", "shm://a.1", "shm://a-1", "shm://a-1.1"]
    assert urls(decode_with="shm://a-1", dp=2) == ["shm://a-1", "shm://a-1.1"] * 2
    both = "shm://a,shm://a-1"
    assert urls(decode_with=both, dp=2) == urls(prefill_for="shm://a", dp=2)
    assert urls(decode_with="shm://a,shm://b") == ["shm://a", "shm://b", "shm://a.1", "shm://b.1"]
    with pytest.raises(OptionError, match=r"shm://a\.1 would be an address of two instances"):
        urls(decode_with="shm://a,shm://a.1")
    token = {"pd_token_file": str(Path(__file__).parent / "token")}
    with pytest.raises(UnsupportedError, match="token"):
        urls(prefill_for="tcp://h:7000", **token)
    with pytest.raises(UnsupportedError, match=r"--decode-with shm://a{40}\.1: .*no address"):
        urls(decode_with=f"shm://{'a' * 40}")


def test_ports_of_a_link_are_counted_over_engines_and_ranks() -> None:
    ports = [address_of("tcp://h:7000", engine, 2, rank) for engine in (0, 1) for rank in (0, 1)]
    assert ports == ["tcp://h:7000", "tcp://h:7001", "tcp://h:7002", "tcp://h:7003"]


def test_ranks_on_other_devices_are_refused() -> None:
    device = Device(kind="mps", index=0, name="GPU", total=1 << 30, free=1 << 30)
    with pytest.raises(UnsupportedError, match="CPUs and CUDA devices only"):
        check_ranks(Options(tp=2), device, "Toy", DENSE)


def test_a_family_that_does_not_divide_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="Toy cannot be divided among ranks yet"):
        check_ranks(Options(tp=2), CPU, "Toy", evolve(DENSE, divides={}))
