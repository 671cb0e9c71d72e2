"""Ranks that have some experts each, in every scheme: the tokens are those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file
from tests.process.toy_mixture import write_mixture

from inferno.catalog import Catalog, load_catalog
from inferno.cli.render import explained
from inferno.contracts import WriteOptions
from inferno.errors import UnsupportedError
from inferno.plan import Gpu, Machine, Options, open_model, plan_from_json, plan_to_json, resolve
from inferno.testing.adapters import MOST, MemoryAdapter, serving, stored_matrices
from inferno.testing.thread_ranks import GREEDY, SEEDED, answers, load_shared, tokens_of
from inferno.testing.tiny import without_kernels
from inferno.weights import packing
from inferno_convert.convert import convert

pytest.importorskip("transformers")

PROMPTS = [[107, 32, 79], list(range(30, 70)), [5]]
SCHEMES: dict[str, dict[str, Any]] = {
    "gptq-int4": {"group": 32},
    "awq-int4": {"group": 32},
    "compressed-tensors": {"group": 32},
    "fp8": {},
    "q8_0": {},
}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return without_kernels(load_catalog())


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy")
    write_mixture(path)
    return path


def tokens(path: Path, catalog: Catalog, ranks: int, **options: Any) -> list[list[Any]]:
    engine = load_shared(path, catalog, ranks, ep=ranks > 1, **options)
    params = [evolve(each, max_tokens=8) for each in (GREEDY, SEEDED)]
    rows = [tokens_of(answers(engine, PROMPTS, each)) for each in params]
    shared = engine.plan.ranks
    assert (shared is None) == (ranks == 1)
    if shared is not None:
        [experts] = shared.experts
        assert len(experts.counts) == ranks and sum(experts.counts) == 6
    engine.close()
    return rows


@pytest.mark.parametrize(
    "scheme", ["gptq-int4", *(pytest.param(s, marks=pytest.mark.slow) for s in SCHEMES)]
)
def test_experts_on_the_host_are_those_of_the_device_in_every_scheme(
    scheme: str, toy: Path, catalog: Catalog, tmp_path: Path
) -> None:
    path = tmp_path / ("toy.gguf" if scheme == "q8_0" else "toy")
    convert(str(toy), scheme, path, WriteOptions(**SCHEMES[scheme]))
    assert tokens(path, catalog, 1, experts_on_host=4) == tokens(path, catalog, 1)


def test_ranks_keep_experts_on_the_host(toy: Path, catalog: Catalog) -> None:
    """Of the whole ones that each has, or a part of each."""
    expected = tokens(toy, catalog, 1)
    assert tokens(toy, catalog, 2, experts_on_host=3) == expected, "all that each has"
    engine = load_shared(toy, catalog, 2, experts_on_host=5)
    params = [evolve(each, max_tokens=8) for each in (GREEDY, SEEDED)]
    assert [tokens_of(answers(engine, PROMPTS, each)) for each in params] == expected
    engine.close()


@pytest.mark.parametrize(
    ("ranks", "more"), [pytest.param(1, {}, marks=pytest.mark.slow), (2, {"ep": True})]
)
def test_the_host_holds_experts_of_a_stages_layers(
    ranks: int, more: dict[str, Any], toy: Path, catalog: Catalog
) -> None:
    engine = load_shared(toy, catalog, ranks, pp=2, experts_on_host=2, **more)
    whole = load_shared(toy, catalog, ranks, experts_on_host=2, **more)
    params = [evolve(each, max_tokens=8) for each in (GREEDY, SEEDED)]
    rows = [tokens_of(answers(engine, PROMPTS, each)) for each in params]
    assert rows == tokens(toy, catalog, 1)
    planned = [each.plan.host_experts for each in (engine, whole)]
    engine.close()
    whole.close()
    assert planned[0] is not None and planned[1] is not None
    assert 2 * planned[0].layers == planned[1].layers
    assert 2 * planned[0].nbytes == planned[1].nbytes


@pytest.mark.parametrize("isq", ["q4_0"])
def test_experts_on_the_host_are_quantized_while_loading(
    isq: str, toy: Path, catalog: Catalog
) -> None:
    assert tokens(toy, catalog, 1, isq=isq, experts_on_host=2) == tokens(toy, catalog, 1, isq=isq)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", list(SCHEMES))
def test_ranks_give_the_tokens_of_one_process(
    scheme: str, toy: Path, catalog: Catalog, tmp_path: Path
) -> None:
    path = tmp_path / ("toy.gguf" if scheme == "q8_0" else "toy")
    convert(str(toy), scheme, path, WriteOptions(**SCHEMES[scheme]))
    assert tokens(path, catalog, 4) == tokens(path, catalog, 1)


@pytest.mark.slow
@pytest.mark.parametrize("isq", ["int4_g32", "q4_0"])
def test_experts_quantized_while_loading_are_those_of_one_process(
    isq: str, toy: Path, catalog: Catalog
) -> None:
    rows = tokens(toy, catalog, 2, isq=isq)
    assert tokens(toy, catalog, 2) != rows == tokens(toy, catalog, 1, isq=isq)


def test_experts_with_columns_in_another_order_are_whole(
    toy: Path, catalog: Catalog, tmp_path: Path
) -> None:
    """GPTQ with act-order, whose experts ranks cannot cut."""
    text = tmp_path / "text.txt"
    text.write_text("The columns of the largest activations come first. " * 40)
    path, options = tmp_path / "toy", WriteOptions(group=32, act_order=True)
    convert(str(toy), "gptq-int4", path, options, calibrate=text)
    stored = load_file(path / "model.safetensors")
    assert (stored["model.layers.0.mlp.experts.0.up_proj.g_idx"].diff() < 0).any()
    with pytest.raises(UnsupportedError, match="cannot be divided among ranks"):
        load_shared(path, catalog)
    assert tokens(path, catalog, 2) == tokens(path, catalog, 1)


@pytest.mark.slow
def test_stages_deal_out_the_experts_of_their_layers(toy: Path, catalog: Catalog) -> None:
    assert tokens(toy, catalog, 2, pp=2) == tokens(toy, catalog, 1)


def test_adapters_of_experts_are_those_of_their_rank(toy: Path, catalog: Catalog) -> None:
    """Two adapters and none in one batch, beside every matrix; also of experts on the host."""
    given = [
        MemoryAdapter.random(i, stored_matrices(toy, catalog, 16), rank)
        for i, rank in enumerate((4, 7), 1)
    ]
    served, runs = serving(catalog, given), list[list[list[int | None]]]()
    for ranks, on_host in ((1, 0), (2, 0), (1, 2)):
        options: dict[str, Any] = {"max_loras": 2, "max_lora_rank": MOST, "lora_targets": "all"}
        options["experts_on_host"] = on_host
        engine = load_shared(toy, served, ranks, ep=ranks > 1, **options)
        refs = [None, *(each.ref for each in given)]
        params = evolve(GREEDY, max_tokens=8)
        runs.append(tokens_of(answers(engine, [PROMPTS[1]] * 3, params, refs)))
        engine.close()
    assert runs[0] == runs[1] == runs[2] and len({str(each) for each in runs[0]}) == 3


def test_packed_weights_of_dealt_experts_are_their_own(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those of ranks that share each expert, nor those of experts in two groups."""
    monkeypatch.setattr("inferno.plan.stages.KEPT_FROM", 0)
    keys = list[str]()
    cases: list[dict[str, Any]] = [{"tp": 2}, {"tp": 2, "ep": True}, {}, {"experts_on_host": 2}]
    cases.append({"dp": 2, "ep": True})
    for each in cases:
        options = Options(
            device="cpu", max_model_len=64, packed_cache=str(tmp_path), threads=1, **each
        )
        with open_model(str(toy), options) as opened:
            if opened.plan.packed_cache is None:
                pytest.skip("no installed kernel provider packs weights")
            packed = packing.PackedWeights.of(opened)
            assert packed is not None
            keys.append(str(packed._key))
    assert len({*keys}) == len(keys)


@pytest.mark.slow
def test_processes_give_the_tokens_of_one(toy: Path) -> None:
    from inferno import LLM, SamplingParams

    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    runs = []
    shapes: list[dict[str, Any]] = [{}, {"tp": 2, "ep": True}, {"experts_on_host": 4}]
    for options in shapes:
        llm = LLM(str(toy), device="cpu", dtype="float32", max_model_len=128, **options)
        runs.append([output.outputs[0].token_ids for output in llm.generate(PROMPTS, params)])
        llm.close()
    assert runs[0] == runs[1] == runs[2]
    assert torch.tensor(runs[0]).shape == (3, 8)


def test_a_gpus_memory_is_planned_without_the_experts_on_the_host(toy: Path) -> None:
    """From headers, for a machine with a GPU."""
    gpu = Gpu(
        uuid="GPU-1", name="a GPU", capability=(9, 0), total=8 << 30, free=8 << 30, bus="0000:01:00"
    )
    machine = Machine(gpus=lambda: (gpu,), environ={}, elsewhere=True)
    whole, some = (
        resolve(str(toy), Options(device="cuda", experts_on_host=count), machine=machine)
        for count in (0, 4)
    )
    use = some.host_experts
    assert whole.host_experts is None and use is not None and use.moved_bytes > 0
    assert whole.memory[0].nbytes - some.memory[0].nbytes == use.nbytes > 0
    assert some.capture is None
    text = explained(some)
    assert "4 of 6 in each of" in text and "host's memory" in text and "host link" in text
    assert plan_from_json(plan_to_json(some)) == some
