"""In-situ quantization: names, rules, fallbacks, what the plan says, and what is loaded."""

from __future__ import annotations

import io
import logging
import os
import struct
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.test_replay import EXPERTS, UNTIED, made
from tests.weights.test_packed_weights import folder, small_models_count, started

from inferno.cli.render import explained
from inferno.errors import OptionError
from inferno.nn import Stack, Weight
from inferno.plan import (
    Options,
    Plan,
    open_model,
    plan_from_json,
    plan_to_json,
    reopen,
    resolve,
)
from inferno.plan.isq import described, spelled
from inferno.weights import kernels, loading
from inferno.weights.loading import build, fill
from inferno.weights.pairing import checkpoint_path
from inferno.weights.quantizing import Progress, Quantizing

pytest.importorskip("inferno_gguf")
__all__ = ["folder", "small_models_count"]  # fixtures

WIDE: dict[str, Any] = {
    **UNTIED,
    "hidden_size": 256,
    "intermediate_size": 288,
    "num_hidden_layers": 4,
    "head_dim": 64,
}
"""Inner width 288: down projections have no whole blocks of 256."""
Q, DOWN = "model.layers.{}.self_attn.q_proj", "model.layers.{}.mlp.down_proj"


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(WIDE, tmp_path_factory.mktemp("wide"))


def options(isq: str | None, **more: Any) -> Options:
    given = {"device": "cpu", "dtype": "bfloat16", "max_model_len": 64, "packed_cache": "none"}
    return Options(isq=isq, **{**given, **more})


def schemes_of(plan: Plan, *paths: str) -> list[str | None]:
    assert plan.isq is not None
    return [plan.isq.scheme_of(path) for path in paths]


def loaded(path: Path, isq: str | None, **more: Any) -> dict[str, Weight]:
    """The matrices of a loaded model, by path, before kernels repack them."""
    with open_model(str(path), options(isq, **more)) as opened:
        model = build(opened)
        fill(model, opened)
    return {
        checkpoint_path(name): module.weight
        for name, module in model.named_modules()
        if isinstance(getattr(module, "weight", None), Weight)
    }


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        *((name, name) for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q6_k", "iq4_nl")),
        *((name, name) for name in ("int4_g32", "int4_g64", "int4_g128", "fp8")),
        *((name, "q2_k") for name in ("q2k", "Q2_K")),
        *((name, "q3_k") for name in ("q3k", "Q3_K_S", "q3_k_m", "q3-k-l")),
        *((name, "q4_k") for name in ("q4k", "Q4K", "Q4_K", "q4_k_m", "Q4-K-M", "q4_k_s")),
        *((name, "q5_k") for name in ("q5k", "Q5_K_M", "q5_k_s")),
        *((name, "q8_0") for name in ("Q8_0", "q80", "q8")),
        ("q4", "q4_0"),
        ("q40", "q4_0"),
        ("int4", "int4_g128"),
        ("IQ4_NL", "iq4_nl"),
        ("FP8", "fp8"),
        ("float8", "fp8"),
    ],
)
def test_every_spelling_is_understood(name: str, scheme: str, wide: Path) -> None:
    plan = resolve(str(wide), options(name))
    assert schemes_of(plan, "model.layers.1.mlp.gate_proj") == [scheme]


@settings(max_examples=100, deadline=None)
@given(st.text("qQ4_ kKmM-", max_size=8))
def test_spelling_ignores_case_and_separators_only(name: str) -> None:
    assert spelled(name) == spelled(name.upper()) == spelled(spelled(name))
    assert not set(spelled(name)) & set("_- QKM")


@settings(max_examples=40, deadline=None)
@given(text=st.text("q4_0k=,.*? model", max_size=24))
def test_any_text_is_a_plan_or_an_error_with_a_way_out(text: str, wide: Path) -> None:
    try:
        plan = resolve(str(wide), options(text))
    except OptionError as error:
        assert error.cause and error.remedy
    else:
        assert plan.isq is not None and plan.isq.uses


# --- rules ----------------------------------------------------------------------------------------


def test_the_first_rule_that_matches_counts(wide: Path) -> None:
    isq = f"q4_0,{Q.format(0)}=none,model.layers.0.*=q8_0,{Q.format('*')}=q5_k"
    plan = resolve(str(wide), options(isq))
    assert schemes_of(plan, *(Q.format(i) for i in range(3))) == [None, "q5_k", "q5_k"]
    assert schemes_of(plan, DOWN.format(0), DOWN.format(1)) == ["q8_0", "q4_0"]
    assert schemes_of(plan, "lm_head", "model.embed_tokens") == ["q6_k", "q4_0"]


def test_rules_alone_leave_the_rest(wide: Path) -> None:
    plan = resolve(str(wide), options("*.mlp.*=q8_0"))
    assert schemes_of(plan, Q.format(0), DOWN.format(0), "lm_head") == [None, "q8_0", None]
    assert {use.name for use in plan.schemes} == {"dense", "q8_0"}


def test_schemes_without_a_mix_leave_embedding_and_head(wide: Path) -> None:
    plan = resolve(str(wide), options("int4_g32"))
    paths = ("model.embed_tokens", "lm_head", Q.format(3))
    assert schemes_of(plan, *paths) == [None, None, "int4_g32"]


@pytest.mark.parametrize(
    ("isq", "bits"),
    [
        ("q2_k", "2.6"),
        ("int4_g32", "5.0"),
        ("q5_k", "5.5"),
        ("q5_1", "6.0"),
        ("q6_k", None),
        ("q8_0", None),
    ],
)
def test_schemes_of_few_bits_are_named(isq: str, bits: str | None, wide: Path) -> None:
    """On a trained model of 135 million parameters q2_k costs 47 % of perplexity, q5_1 11 %, q6_k
    less than 1 %, q8_0 nothing."""
    notes = [note for note in resolve(str(wide), options(isq)).notes if "bits a weight" in note]
    assert [note.split()[2] for note in notes if note.startswith(f"{isq} has")] == [bits] * bool(
        bits
    )


def test_a_shape_that_does_not_fit_gets_the_next_best_scheme(wide: Path) -> None:
    plan = resolve(str(wide), options("q4_k_m"))
    assert schemes_of(plan, DOWN.format(1), DOWN.format(3)) == ["q5_0", "q8_0"]
    reasons = [use for use in plan.isq.uses if use.why.startswith("instead of")] if plan.isq else []
    assert [use.modules for use in reasons] == ["down_proj 0-1", "down_proj 2-3"]
    assert "q4_k: 288 columns are not divisible" in explained(plan)
    plan = resolve(str(wide), options("int4_g128"))
    assert schemes_of(plan, Q.format(0), DOWN.format(0)) == ["int4_g128", "int4_g32"]


def test_a_shape_that_fits_nothing_stays(tmp_path: Path) -> None:
    odd = made({**UNTIED, "intermediate_size": 100}, tmp_path)
    plan = resolve(str(odd), options("q4_k_m"))
    assert schemes_of(plan, DOWN.format(0), Q.format(0)) == [None, "q5_0"]
    notes = [note for note in plan.notes if "as they are" in note]
    assert {note.partition(":")[0] for note in notes} == {
        "model.layers.0.mlp.down_proj as they are",
        "model.layers.1.mlp.down_proj as they are",
    }


def test_routers_stay(tmp_path: Path) -> None:
    experts = made(EXPERTS, tmp_path)
    for isq in ("q8_0", "int4_g32", "*=q8_0"):
        plan = resolve(str(experts), options(isq))
        assert schemes_of(plan, "model.layers.0.mlp.gate") == [None]
        assert schemes_of(plan, "model.layers.0.mlp.experts.3.up_proj") != [None]


def test_a_model_whose_matrices_are_packed_cannot_be_packed_again(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    demo = resolve("demo", Options(device="cpu")).path
    assert gguf and demo
    from inferno.catalog import load_catalog
    from inferno.testing.gguf import gguf_dialect, write_gguf

    dialect = gguf_dialect(load_catalog(), "LlamaForCausalLM")
    assert dialect is not None
    with open_model(str(made(UNTIED, tmp_path / "model")), Options(device="cpu")) as opened:
        tensors = {name: opened.checkpoint.read(name) for name in opened.checkpoint.tensors}
        config = dict(opened.checkpoint.config)
    matrices = {k: v for k, v in tensors.items() if "bias" not in k}
    write_gguf(tmp_path / "m.gguf", dialect, {**config, "attention_bias": False}, matrices, "Q8_0")
    file = str(tmp_path / "m.gguf")
    with pytest.raises(OptionError, match="quantized already .* in q8_0.* both errors") as caught:
        resolve(file, options("q4_0"))
    assert "--requantize, as for `inferno convert`" in caught.value.remedy
    assert not [n for n in resolve("demo", options("q4_0", requantize=True)).notes if "second" in n]
    with pytest.raises(OptionError, match="requantize is set without isq"):
        options(None, requantize=True)
    with open_model(file, options("q4_0", requantize=True)) as opened:
        assert any("a second time" in note and "in q8_0" in note for note in opened.plan.notes)
        stored = {path for path, name in opened.plan.modules.items() if name == "q8_0"}
        model = build(opened)
        fill(model, opened)
    layouts = {m.source: m.layout for m in model.modules() if isinstance(m, Weight) and m.source}
    assert stored and set(layouts.values()) >= {"q4_0"}


# --- what is loaded -------------------------------------------------------------------------------


@pytest.mark.parametrize("isq", ["q4_k_m", "q2_k", "int4_g64", "fp8", "q8_0,lm_head=q6_k"])
def test_the_plan_knows_what_is_loaded(isq: str, wide: Path) -> None:
    plan, weights = resolve(str(wide), options(isq)), loaded(wide, isq)
    sizes: dict[str, int] = {}
    for path, weight in weights.items():
        assert weight.layout == next(
            use.layout for use in plan.schemes if use.name == (schemes_of(plan, path)[0] or "dense")
        )
        nbytes = sum(tensor.nbytes for tensor in weight.buffers())
        sizes[weight.layout] = sizes.get(weight.layout, 0) + nbytes
    assert sizes == {use.layout: use.nbytes for use in plan.schemes}
    assert all(use.in_situ == (use.name != "dense") for use in plan.schemes)


def test_a_plan_survives_its_file(wide: Path) -> None:
    plan = resolve(str(wide), options("q4_k_m,lm_head=q8_0"))
    assert plan_from_json(plan_to_json(plan)) == plan


@pytest.mark.parametrize("isq", ["q4_k_m", "int4_g32", "fp8"])
def test_tied_embeddings_and_experts_generate(isq: str, tmp_path: Path) -> None:
    tied = made({**WIDE, "tie_word_embeddings": True}, tmp_path / "tied")
    experts = made({**EXPERTS, "hidden_size": 256}, tmp_path / "experts")
    for model in (tied, experts):
        ids, _ = started(model, "none", isq=isq)
        assert len(ids) == 12


# --- importance -----------------------------------------------------------------------------------


def imatrix(file: Path, seed: int, columns: int = 256) -> Path:
    """An importance matrix of the first two query projections, in the old form."""
    out = struct.pack("<i", 2)
    for layer in (0, 1):
        name = f"blk.{layer}.attn_q.weight".encode()
        values = torch.rand(columns, generator=torch.Generator().manual_seed(seed)) ** 4
        out += struct.pack("<i", len(name)) + name + struct.pack("<ii", 1, columns)
        out += values.numpy().tobytes()
    file.write_bytes(out)
    return file


def test_importance_changes_the_matrices_that_it_covers(wide: Path, tmp_path: Path) -> None:
    file = str(imatrix(tmp_path / "imatrix.dat", 1))
    plain, weighed = loaded(wide, "q4_k_m"), loaded(wide, "q4_k_m", imatrix=file)
    changed = {
        path
        for path, weight in plain.items()
        if not torch.equal(next(weight.buffers()), next(weighed[path].buffers()))
    }
    assert changed == {Q.format(0), Q.format(1)}
    plan = resolve(str(wide), options("q4_k_m", imatrix=file))
    assert any("has no importance for 28 matrices" in note for note in plan.notes)
    assert file in explained(plan)


def test_a_file_that_is_no_importance_matrix_is_refused(wide: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no importance at all, but long enough")
    with pytest.raises(OptionError, match="can read the importance matrix") as caught:
        resolve(str(wide), options("q4_k_m", imatrix=str(tmp_path / "text")))
    assert "gguf" in caught.value.remedy
    with pytest.raises(OptionError, match="128 values"):
        file = imatrix(tmp_path / "imatrix.dat", 1, columns=128)
        resolve(str(wide), options("q4_k_m", imatrix=str(file)))


def test_a_plan_is_not_loaded_with_another_importance_matrix(wide: Path, tmp_path: Path) -> None:
    file = imatrix(tmp_path / "imatrix.dat", 1)
    plan = resolve(str(wide), options("q4_k_m", imatrix=str(file)))
    imatrix(file, 2)
    with reopen(plan) as opened, pytest.raises(OptionError, match="not the file") as caught:
        fill(build(opened), opened)
    assert caught.value.remedy
    os.remove(file)
    with reopen(plan) as opened, pytest.raises(OptionError, match="not the file"):
        fill(build(opened), opened)


# --- memory ---------------------------------------------------------------------------------------


def test_a_packed_matrix_is_freed_before_the_next_layer_is_repacked(
    wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peak is the packed weights, and one layer of them a second time."""
    pytest.importorskip("inferno_cpu._native", reason="the native kernels are not compiled here")
    packed: list[weakref.ref[Weight]] = []
    late: list[int] = []
    quantize, stack_of = Quantizing.__call__, kernels.stack_of

    def noted(self: Quantizing, path: str, weight: Weight, *cut: Any) -> Weight:
        result = quantize(self, path, weight, *cut)
        packed.append(weakref.ref(result))
        return result

    def counting(*given: Any) -> Stack:
        stack, done = stack_of(*given), 0

        def counted(weights: Sequence[Weight], **how: Any) -> Weight | None:
            nonlocal done
            late.append(done - sum(each() is None for each in packed))
            done += len(weights)
            return stack(weights, **how)

        return counted

    monkeypatch.setattr(Quantizing, "__call__", noted)
    monkeypatch.setattr(loading, "stack_of", counting)
    with open_model(str(wide), options("q4_k_m")) as opened:
        loading.load_model(opened)
    of_a_layer = 7
    assert len(packed) == 4 * of_a_layer + 2 and len(late) > 8
    assert max(late) <= of_a_layer


# --- the cache ------------------------------------------------------------------------------------


def test_packed_weights_are_kept_by_rules_and_importance(
    wide: Path, folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("inferno_cpu._native", reason="the native kernels are not compiled here")
    one, two = (str(imatrix(tmp_path / f"{seed}.dat", seed)) for seed in (1, 2))
    cases: list[dict[str, Any]] = [
        {"isq": "q4_k_m"},
        {"isq": "q4_k_m,lm_head=q8_0"},
        {"isq": "q4_k_m", "imatrix": one},
        {"isq": "q4_k_m", "imatrix": two},
    ]
    firsts = [started(wide, folder, **which) for which in cases]
    assert [hit for _, hit in firsts] == [False] * 4
    for which, (ids, _) in zip(cases, firsts, strict=True):
        assert started(wide, folder, **which) == (ids, True)
    assert started(wide, folder, isq="Q4-K-M")[1], "another spelling of the same"
    imatrix(Path(one), 3)
    assert not started(wide, folder, isq="q4_k_m", imatrix=one)[1], "its content has changed"


def test_a_second_start_quantizes_nothing(
    wide: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("inferno_cpu._native", reason="the native kernels are not compiled here")
    ids, _ = started(wide, folder, isq="q4_k_m")

    def never(self: Progress, weights: int) -> None:
        raise AssertionError("a matrix was quantized")

    monkeypatch.setattr(Progress, "add", never)
    assert started(wide, folder, isq="q4_k_m") == (ids, True)


# --- progress -------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar() -> None:
    to = Terminal()
    progress = Progress("q4_k_m", 4_000_000, to)
    for _ in range(4):
        progress.add(1_000_000)
    *_, last = to.getvalue().split("\r")
    assert last.endswith(f"[{'#' * 30}]\n")
    assert "4 of 4 million weights" in last and "million/s" in last


def test_elsewhere_one_line_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    to = io.StringIO()
    progress = Progress("q4_k_m", 2_000_000, to)
    with caplog.at_level(logging.INFO, logger="inferno.weights.quantizing"):
        progress.add(1_000_000)
        assert not caplog.records
        progress.add(1_000_000)
    assert not to.getvalue() and len(caplog.records) == 1
    assert "quantizing to q4_k_m: 2 of 2 million weights" in caplog.text


def test_modules_are_described_briefly() -> None:
    paths = [f"model.layers.{i}.self_attn.v_proj" for i in (0, 1, 2, 5, 7)]
    assert described([*paths, "lm_head"]) == "v_proj 0-2 5 7, lm_head"


def test_a_scheme_that_tells_no_sizes_still_quantizes(
    wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of version 1 of the contract."""
    from inferno.catalog import load_catalog

    catalog = load_catalog()
    offers = {
        hook: tuple(
            attrs.evolve(offer, item=attrs.evolve(offer.item, packs=None))
            if hook == "inferno_quant_schemes" and offer.item.name == "q8_0"
            else offer
            for offer in each
        )
        for hook, each in catalog.offers.items()
    }
    plan = resolve(str(wide), options("*.mlp.*=q8_0"), attrs.evolve(catalog, offers=offers))
    assert any("before they become q8_0" in note for note in plan.notes)
