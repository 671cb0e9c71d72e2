"""Pipeline stages in the plan: how layers are shared out, and what each stage has."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from types import SimpleNamespace
from typing import Any, cast

import pytest
from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from inferno.builtin.first_come import FirstCome
from inferno.catalog import load_catalog
from inferno.contracts import (
    DECODER,
    Architecture,
    AttentionSpec,
    Device,
    HeldMatrix,
    QueueNeed,
    QueuePolicy,
)
from inferno.errors import OptionError, UnsupportedError
from inferno.plan import Options, Plan, plan_from_json, plan_of_stage, plan_to_json, resolve
from inferno.plan.pipeline import divide_layers, share_model
from inferno.plan.ranks import check_ranks
from inferno.plan.schemes import Matrices, StoredMatrices
from inferno.plan.speculation import MTPUse
from inferno.plan.turns import in_turns
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing.tiny import without_kernels

CPU = Device(kind="cpu", index=0, name="CPU", total=1 << 34, free=1 << 34)
PLAIN = without_kernels(load_catalog())


def plan_of(**options: Any) -> Plan:
    pytest.importorskip("inferno_demo")
    return resolve("demo", Options(device="cpu", **options), PLAIN)


# --- layers ---------------------------------------------------------------------------------------


def largest(cuts: Sequence[int], sizes: Sequence[int], before: int, after: int) -> int:
    edges = [0, *cuts, len(sizes)]
    stages = [sum(sizes[a:b]) for a, b in zip(edges, edges[1:], strict=False)]
    stages[0] += before
    stages[-1] += after
    return max(stages)


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=7),
    st.integers(0, 40),
    st.integers(0, 40),
    st.data(),
)
def test_the_largest_stage_is_as_small_as_it_can_be(
    sizes: list[int], before: int, after: int, data: st.DataObject
) -> None:
    count = len(sizes)
    stages = data.draw(st.integers(1, count))
    spans = divide_layers(sizes, before, after, stages)
    assert [first for first, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
    assert spans[-1][1] == count and all(first < stop for first, stop in spans)
    every = combinations(range(1, count), stages - 1)
    best = min(largest(cuts, sizes, before, after) for cuts in every)
    assert largest([stop for _, stop in spans[:-1]], sizes, before, after) == best


def test_the_embedding_and_the_head_count_and_a_tied_one_is_at_both_ends() -> None:
    alone, staged = plan_of(), plan_of(pp=4)
    assert staged.ranks is not None and staged.ranks.count == 4
    first, *inner, last = staged.ranks.pipeline
    embedding = alone.vocab_size * 256 * 2
    for use in inner:
        assert first.weight_bytes - use.weight_bytes == pytest.approx(embedding, rel=0.01)
        assert last.weight_bytes - use.weight_bytes == pytest.approx(embedding, rel=0.01)
    assert staged.memory[0].nbytes == max(use.weight_bytes for use in staged.ranks.pipeline)
    assert sum(use.weight_bytes for use in staged.ranks.pipeline) == pytest.approx(
        alone.memory[0].nbytes + embedding, rel=0.01
    )


@frozen
class Config:
    """A model of three layers, of which the second keeps nothing and the third two things."""

    vocab_size: int = 1000
    max_position_embeddings: int = 128
    hidden_size: int = 64
    num_hidden_layers: int = 3
    spec_layers: tuple[int, ...] = (0, 2, 2)
    residual_in_fp32: bool = False

    def cache_specs(self) -> list[AttentionSpec]:
        return [AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25)] * 3


@frozen
class Stored:
    """Matrices as they are held."""

    own: dict[str, HeldMatrix]
    plain: dict[str, int]

    def held(self, packed: Any) -> dict[str, HeldMatrix]:
        return self.own

    def loaded(self, packed: Any, dtype: str, part: Any = None) -> Matrices:
        return Matrices((), {}, {}, {}, (), sum(self.plain.values()))


def shared(config: Any, paths: Sequence[str], stages: int) -> Any:
    matrices = {path: HeldMatrix(layout="", shape=(1000, 64), nbytes=100) for path in paths}
    plain = {"model.norm": 5, "model.layers.1.norm": 7}
    toy = Architecture(name="Toy", config=Config, build=Config, divides=DECODER)
    stored = cast(StoredMatrices, Stored(matrices, plain))
    whole = stored.loaded({}, "bfloat16")
    return share_model(Options(pp=stages), toy, config, stored, {}, whole, "bfloat16", MTPUse())


PATHS = ["model.embed_tokens", *(f"model.layers.{n}.mlp.up_proj" for n in range(3))]


def test_what_a_layer_keeps_is_with_it() -> None:
    split = shared(Config(), [*PATHS, "lm_head"], 3).pipeline
    assert [use.caches for use in split.stages] == [(0,), (), (1, 2)]
    assert [use.weight_bytes for use in split.stages] == [200, 114, 210]
    assert (split.matrix_bytes, split.num_plain) == (200, 5)
    assert split.count((0, 1, 2)) == 2 and split.count((0, 1)) == 1
    assert split.passed_bytes == 64 * 2
    single = shared(Config(residual_in_fp32=True), [*PATHS, "lm_head"], 3).pipeline
    assert single.passed_bytes == 64 * 4


@frozen
class Sharing(Config):
    """One whose third layer reads what the second keeps, and that is given inputs and images."""

    spec_layers: tuple[int, ...] = (0, 0, 1)
    stage_starts: tuple[int, ...] = (0, 1)
    first_modules: tuple[str, ...] = ("inputs",)
    passed_size: int = 100
    image_encoder: str = "visual"


@frozen
class Deep(Sharing):
    """One whose first two layers add features of images."""

    vision: Any = SimpleNamespace(deepstack_visual_indexes=(5, 6))


def test_layers_that_read_of_others_are_in_one_stage_with_them() -> None:
    split = shared(Sharing(), [*PATHS, "lm_head"], 2).pipeline
    assert [(use.span.first, use.span.stop) for use in split.stages] == [(0, 1), (1, 3)]
    assert split.passed_bytes == 100 * 2
    with pytest.raises(OptionError, match="3 layers, and 1 cannot begin a stage") as refused:
        shared(Sharing(), PATHS, 3)
    assert "--pp 2" in refused.value.remedy


def test_what_is_before_the_layers_is_on_the_first_stage() -> None:
    """An encoder with as many layers as the model, and what makes inputs of layers."""
    encoder, usual = [f"visual.layers.{n}.fc" for n in range(3)], [*PATHS, "lm_head"]

    def added(config: Config, *paths: str) -> list[int]:
        bytes_of = [
            [use.weight_bytes for use in shared(config, each, 2).pipeline.stages]
            for each in (usual, [*paths, *usual])
        ]
        return [more - less for less, more in zip(*bytes_of, strict=True)]

    assert added(Sharing(), *encoder, "model.inputs") == [400, 0]
    assert added(Deep(), *encoder) == [300, 300], "its second layer adds features of images"
    assert shared(Sharing(), [*encoder, *usual], 2).pipeline.inside == "model.layers"


def test_sizes_by_path_are_those_of_the_largest_stage() -> None:
    split = shared(Sharing(), [*PATHS, "lm_head"], 2)
    sizes = dict.fromkeys(PATHS, 10) | {"lm_head": 5}
    assert split.largest(sizes) == 15 + 20, "what is in no layer counts in each"


def test_a_model_whose_layers_are_not_known_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="of which layer"):
        shared(evolve(Config(), spec_layers=(0, 1)), PATHS, 2)
    with pytest.raises(UnsupportedError, match="of which layer"):
        shared(Config(), [*PATHS[:-1], "model.block.2.up_proj"], 2)


# --- the plan -------------------------------------------------------------------------------------


def test_a_stage_keeps_the_blocks_of_its_own_layers() -> None:
    alone, staged = plan_of(), plan_of(pp=2)
    for stage in (0, 1):
        part = plan_of_stage(staged, stage)
        assert [use.layers for use in part.attention] == [(2 * stage, 2 * stage + 1)]
        assert part.num_blocks == staged.num_blocks == alone.num_blocks
        assert 2 * part.kv_bytes == alone.kv_bytes and part.kv_bytes == staged.kv_bytes
    assert plan_of_stage(alone, 0) is alone
    assert plan_from_json(plan_to_json(staged)) == staged


def test_the_first_ranks_have_the_last_stage_and_stages_have_as_many() -> None:
    ranks = plan_of(pp=2, tp=2).ranks
    assert ranks is not None and (ranks.count, ranks.stages, ranks.shard.ranks) == (4, 2, 2)
    assert [ranks.stage_of(rank) for rank in range(4)] == [1, 1, 0, 0]


def test_memory_and_machines_are_shared_by_all_ranks() -> None:
    alone, staged = plan_of(), plan_of(pp=2, tp=2)
    assert 4 * staged.memory_limit == pytest.approx(alone.memory_limit, abs=4)
    options = Options(pp=4, nodes=2)
    assert (options.ranks, options.ranks_here) == (4, 2)
    with pytest.raises(OptionError, match="3 ranks cannot be dealt out"):
        Options(pp=3, nodes=2)


def test_more_stages_than_layers_are_refused_with_the_number_that_works() -> None:
    with pytest.raises(OptionError, match="has 4 layers") as refused:
        plan_of(pp=5)
    assert "--pp 4" in refused.value.remedy


def test_families_without_stages_are_refused_by_name() -> None:
    toy = Architecture(name="Toy", config=Config, build=Config, divides=DECODER)
    check_ranks(Options(pp=2), CPU, "Toy", toy)
    settings = type("Own", (), {"divides": {"a": "outputs"}})
    with pytest.raises(UnsupportedError, match="not those of inferno.nn") as refused:
        check_ranks(Options(pp=2), CPU, "Toy", evolve(toy, divides={}), settings)
    assert "--tp 2" in refused.value.remedy
    gpu = evolve(CPU, kind="mps", index=0)
    with pytest.raises(
        UnsupportedError, match="--pp 2: several ranks compute on CPUs and CUDA devices only"
    ):
        check_ranks(Options(pp=2), gpu, "Toy", toy)


# --- turns ----------------------------------------------------------------------------------------


@frozen
class Running:
    """A request that runs."""

    arrival: int
    num_unknown: int = 0
    num_computed: int = 0
    request: Request = Request(id="x", token_ids=(1,), params=SamplingParams())


def test_a_step_has_its_share_of_the_requests_whose_tokens_are_known() -> None:
    policy = in_turns(QueuePolicy(name="first come", build=FirstCome), 3)
    queue = policy.build(QueueNeed(max_num_seqs=8, seconds=lambda *work: None))
    running = [Running(i, num_unknown=i % 2) for i in range(8)]
    assert [each.arrival for each in queue.turn(running)] == [0, 2, 4]
    assert [each.arrival for each in queue.turn(running, everyone=True)] == [0, 2, 4]
    assert [each.arrival for each in queue.turn(running[:2])] == [0]
    assert queue.victim(running).arrival == 7 and queue.displaced(running) is None
    for each in (first := Running(1), Running(0)):
        queue.push(each)
    assert len(queue) == 2 and queue.first() == Running(0)
    queue.pop()
    queue.remove(first)
    assert queue.first() is None
    queue.computed([(first, 1)], 0.1)
    assert in_turns(policy, 1) is policy
