"""`inferno eval` computes transformers' perplexity on the same windows, and the divergence of the
whole distributions, which is nothing for the same model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import attrs
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tests.toy_states import ToyConfig, catalog_with_toy, naive_logits, write_toy
from torch import Tensor

from inferno.cli import cli
from inferno.errors import CheckpointError, InfernoError, OptionError
from inferno.plan import Options, open_model
from inferno.testing import alike
from inferno_demo import path as demo_path
from inferno_eval import spool
from inferno_eval.command import table
from inferno_eval.evaluate import evaluate
from inferno_eval.forward import Scorer
from inferno_eval.groups import groups_of
from inferno_eval.plot import plot
from inferno_eval.report import Report, report_to_json
from inferno_eval.windows import windows_of

HELDOUT = demo_path().parent / "heldout.txt"
EXACT = Options(dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with noise in its layers, the last one's most."""
    folder = tmp_path_factory.mktemp("noisy") / "model"
    shutil.copytree(demo_path(), folder)
    draw = torch.Generator().manual_seed(0)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and ".layers." in name:
            share = 0.3 if ".layers.3." in name else 0.1
            noise = torch.randn(tensor.shape, generator=draw) * share * tensor.float().std()
            tensors[name] = tensor + noise.to(tensor.dtype)
    save_file(tensors, folder / "model.safetensors")
    return folder


def logprobs(folder: Path, windows: list[Any]) -> tuple[Tensor, Tensor]:
    """Transformers' log-probabilities at the scored positions, (P, V), and the text's tokens."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    chunks, targets = [], list[int]()
    for window in windows:
        with torch.no_grad():
            logits_NV = model(torch.tensor([window.token_ids])).logits[0].double()
        chunks.append(logits_NV[window.first : -1].log_softmax(-1))
        targets += window.targets
    return torch.cat(chunks), torch.tensor(targets)


def windows(count: int, window: int, stride: int | None = None) -> list[Any]:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(demo_path() / "tokenizer.json"))
    ids = tokenizer.encode(HELDOUT.read_text().removesuffix("\n")).ids
    return windows_of(ids, window=window, stride=stride, limit=count)


# --- windows --------------------------------------------------------------------------------------


def test_windows_follow_each_other_and_their_second_halves_are_scored() -> None:
    first, second = windows_of(range(100, 121), window=8, limit=2, bos=7)
    assert first.token_ids == (7, *range(101, 108)) and second.token_ids == (7, *range(109, 116))
    assert first.targets == (105, 106, 107), "the prediction of a window's half is not scored"
    assert len(windows_of(range(24), window=8)) == 3 and len(windows_of(range(23), window=8)) == 2


def test_with_a_stride_every_token_is_scored_once() -> None:
    result = windows_of(range(40), window=8, stride=4, bos=99)
    assert all(len(window.token_ids) == 10 for window in result)
    scored = [token for window in result for token in window.targets]
    assert scored == list(range(6, 6 + 4 * len(result))) and scored[-1] < 40


@pytest.mark.parametrize(
    "given", [{"window": 3}, {"stride": 0}, {"window": 8, "stride": 9}, {"window": 16}]
)
def test_windows_that_cannot_be_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(OptionError) as caught:
        windows_of(range(15), **given)
    assert "stride" not in given or f"a stride of {given['stride']}" in caught.value.cause


# --- one model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [None, 48])
def test_perplexity_is_that_of_transformers_on_the_same_windows(stride: int | None) -> None:
    report = evaluate("demo", text=HELDOUT, window=128, stride=stride, limit=3, options=EXACT)
    logprob_PV, target_P = logprobs(demo_path(), windows(3, 128, stride))
    nll_P = -logprob_PV.gather(-1, target_P[:, None])[:, 0].numpy()
    assert report.num_tokens == len(nll_P) and report.num_windows == 3
    assert report.perplexity.value == pytest.approx(np.exp(nll_P.mean()), rel=1e-5)
    error = np.exp(nll_P.mean()) * np.sqrt((np.mean(nll_P**2) - nll_P.mean() ** 2) / len(nll_P[1:]))
    assert report.perplexity.error == pytest.approx(error, rel=1e-4)
    assert report.divergence is None and report.groups == ()


def test_packed_weights_are_measured_as_they_are_served() -> None:
    plain = evaluate("demo", text=HELDOUT, window=128, limit=2)
    packed = evaluate("demo", text=HELDOUT, window=128, limit=2, options=Options(isq="q4_0"))
    assert packed.perplexity != plain.perplexity
    assert packed.perplexity.value == pytest.approx(plain.perplexity.value, rel=0.2)


@pytest.mark.parametrize(
    "layers", [["state", "attention", "state"], ["window", "state", "attention", "window"]]
)
def test_recurrent_and_sliding_window_layers_are_scored_alike(
    layers: list[str], tmp_path: Path
) -> None:
    path = write_toy(tmp_path, layers)
    options = Options(
        dtype="float32",
        device="cpu",
        max_model_len=64,
        max_num_batched_tokens=64,
        max_num_seqs=1,
        cache_policy="none",
        block_size=8,
    )
    draw = torch.Generator().manual_seed(1)
    cut = windows_of(torch.randint(0, 64, (192,), generator=draw).tolist(), window=64)
    tensors = load_file(Path(path) / "model.safetensors")
    with open_model(path, options, catalog_with_toy()) as opened:
        config, scorer = opened.config, Scorer(opened)
    assert isinstance(config, ToyConfig)
    for window, scored in zip(cut, scorer.score(cut, 64), strict=True):
        wanted_NV = naive_logits(tensors, config, window.token_ids)
        torch.testing.assert_close(
            scored.logits_PV.double(), wanted_NV[window.first : -1], rtol=1e-3, atol=1e-3
        )
        assert tuple(scored.target_P.tolist()) == window.targets


# --- two models -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_does_not_differ_from_itself() -> None:
    """Not even by rounding, nor with any group swapped."""
    report = evaluate("demo", against="demo", text=HELDOUT, window=128, limit=2, groups=2)
    assert report.divergence is not None and report.perplexity == report.reference_perplexity
    assert [group.name for group in report.groups] == [
        "model.layers.0 to 1",
        "model.layers.2 to 3",
        "model.embed_tokens",
    ]
    for shift in (report.divergence, *(group.divergence for group in report.groups)):
        assert shift is not None
        assert (shift.mean, shift.max, shift.top1, shift.flips) == (0.0, 0.0, 1.0, 0)


@alike
@pytest.mark.parametrize("kept", [4096, 512])
def test_the_divergence_is_that_of_the_whole_distributions(
    kept: int, noisy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all of the reference's is kept; else it is less, by about the probability outside."""
    monkeypatch.setattr(spool, "KEPT", kept)
    report = evaluate(
        str(noisy), against="demo", text=HELDOUT, window=128, limit=3, by="none", options=EXACT
    )
    (ours_PV, target_P), (theirs_PV, _) = (
        logprobs(folder, windows(3, 128)) for folder in (noisy, demo_path())
    )
    kl_P = (theirs_PV.exp() * (theirs_PV - ours_PV)).sum(-1).numpy()
    shift, outside = report.divergence, report.outside
    assert shift is not None and outside is not None
    assert (outside == 0.0) == (kept == 4096)
    tolerance = 1e-4 + 2 * outside
    assert shift.mean == pytest.approx(kl_P.mean(), rel=tolerance)
    assert shift.mean <= kl_P.mean() * (1 + 1e-4)
    assert shift.median == pytest.approx(np.median(kl_P), rel=tolerance)
    assert shift.p99 == pytest.approx(np.quantile(kl_P, 0.99), rel=tolerance)
    assert shift.max == pytest.approx(kl_P.max(), rel=tolerance)
    assert shift.error == pytest.approx(kl_P.std() / np.sqrt(len(kl_P) - 1), rel=tolerance)
    rest_P = theirs_PV.exp().sort(-1, descending=True).values[:, kept:].sum(-1)
    assert outside == pytest.approx(float(rest_P.mean()), rel=1e-3, abs=1e-9)
    best_P, other_P = ours_PV.argmax(-1), theirs_PV.argmax(-1)
    assert shift.flips == int((best_P != other_P).sum()) > 0
    assert shift.top1 == 1 - shift.flips / len(kl_P)
    lost = (best_P != other_P) & (other_P == target_P)
    assert (shift.lost, shift.gained) == (
        int(lost.sum()),
        int(((best_P != other_P) & (best_P == target_P)).sum()),
    )
    reference_nll = -theirs_PV.gather(-1, target_P[:, None]).mean()
    ratio = report.perplexity.value / float(reference_nll.exp())
    assert shift.perplexity_ratio == pytest.approx(ratio, rel=1e-4)


@pytest.mark.slow
def test_a_group_is_what_an_override_of_its_modules_gives(noisy: Path) -> None:
    """And the layer with the most noise costs the most."""
    given: dict[str, Any] = {"text": HELDOUT, "against": "demo", "window": 128, "limit": 2}
    report = evaluate(str(noisy), **given)
    *layers, embedding = report.groups
    costs = [group.divergence.mean for group in layers if group.divergence is not None]
    assert len(costs) == 4 and max(costs) == costs[3]
    assert embedding.divergence is not None and embedding.divergence.mean == 0.0
    override = Options(overrides={layers[3].patterns[0]: str(noisy)})
    alone = evaluate("demo", **given, options=override)
    assert alone.divergence == layers[3].divergence and alone.perplexity == layers[3].perplexity
    assert alone.groups == () and "--override" in alone.notes[0]


@pytest.mark.slow
def test_a_group_is_quantized_in_situ_alone() -> None:
    """By rules that leave the others as they are, in front of the user's own."""
    given: dict[str, Any] = {"text": HELDOUT, "against": "demo", "window": 128, "limit": 2}
    rules = "q4_0,model.layers.1.*=q8_0,model.layers.*.k_proj=none"
    report = evaluate("demo", **given, groups=2, options=Options(isq=rules))
    first, second, _ = report.groups
    assert first.divergence is not None and second.divergence is not None
    assert first.name == "model.layers.0 to 1" and first.saved > 0
    only = (
        "q4_0,model.layers.[23].*=none,model.embed_tokens=none,model.layers.1.*=q8_0,*.k_proj=none"
    )
    alone = evaluate("demo", **given, by="none", options=Options(isq=only))
    assert alone.divergence == first.divergence != report.divergence
    plain = evaluate("demo", **given, by="none")
    assert plain.weights - alone.weights == first.saved


@pytest.mark.slow
def test_modules_of_one_name_are_a_group(noisy: Path) -> None:
    report = evaluate(str(noisy), against="demo", text=HELDOUT, window=64, limit=1, by="modules")
    names = {group.name for group in report.groups}
    assert names == {
        *(f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")),
        "model.embed_tokens",
    }
    assert all(group.divergence for group in report.groups)


def test_layers_are_split_evenly_and_named_by_their_range() -> None:
    paths = [f"blocks.{i}.mlp.{name}" for i in range(10) for name in ("up", "experts.3.down")]
    groups = groups_of([*paths, "embed", "head"], "layers", 4)
    assert [group.name for group in groups] == [
        "blocks.0 to 1",
        "blocks.2 to 4",
        "blocks.5 to 6",
        "blocks.7 to 9",
        "embed",
        "head",
    ]
    assert groups[0].patterns == ("blocks.0.*", "blocks.1.*")
    assert [group.name for group in groups_of(paths[:2], "layers", 4)] == ["blocks.0"]
    assert groups_of(paths, "none", 4) == []


@pytest.mark.slow
def test_a_group_that_cannot_be_swapped_says_why(noisy: Path, tmp_path: Path) -> None:
    """The model's head is tied, the reference's is stored."""
    folder = tmp_path / "untied"
    shutil.copytree(demo_path(), folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    report = evaluate(str(noisy), against=str(folder), text=HELDOUT, window=64, limit=1, groups=1)
    [head] = [group for group in report.groups if group.name == "lm_head"]
    assert head.divergence is None and report.divergence is not None
    assert "the model has and" in head.note


# --- refusals -------------------------------------------------------------------------------------


def without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def with_another_vocabulary(folder: Path) -> None:
    document = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = document["model"]["vocab"]
    one, two = list(vocabulary)[300:302]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (folder / "tokenizer.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"text": "missing.txt"}, OptionError, "cannot read"),
        ({"text": "latin.txt"}, OptionError, "cannot read"),
        ({"text": "short.txt"}, OptionError, "the text has 3 tokens"),
        ({"window": 4000}, OptionError, "windows of 4000 tokens do not fit demo"),
        ({"by": "heads"}, OptionError, "by 'heads'"),
        ({"groups": 0}, OptionError, "0 groups"),
        ({"ref": without_tokenizer}, CheckpointError, "has no tokenizer"),
        ({"against": with_another_vocabulary}, OptionError, "different vocabularies"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_a_model_is_loaded(
    given: dict[str, Any],
    error: type[InfernoError],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    (tmp_path / "short.txt").write_text("a b c")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("inferno_eval.passes.Passage.through", None)
    for key in ("ref", "against"):
        change: Callable[[Path], None] | None = given.get(key)
        if change is not None:
            shutil.copytree(demo_path(), tmp_path / key)
            change(tmp_path / key)
            given = {**given, key: str(tmp_path / key)}
    ref = given.get("ref", "demo")
    rest = {key: value for key, value in given.items() if key != "ref"}
    with pytest.raises(error, match=said) as caught:
        evaluate(ref, **{"text": HELDOUT, **rest})
    assert caught.value.remedy.endswith(".")


def test_a_full_disk_is_noticed_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr("inferno_eval.spool.shutil.disk_usage", lambda folder: usage)
    with pytest.raises(OptionError, match="has 1000 B free"):
        evaluate("demo", against="demo", text=HELDOUT, window=64, limit=1)


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(noisy: Path) -> Report:
    return evaluate(str(noisy), against="demo", text=HELDOUT, window=64, limit=2, groups=2)


@pytest.mark.slow
def test_the_command_prints_a_table_or_json_and_draws_a_chart(
    report: Report, noisy: Path, tmp_path: Path
) -> None:
    given = ["eval", str(noisy), "--against", "demo", "--text", str(HELDOUT)]
    given += ["--window", "64", "--limit", "2", "--groups", "2"]
    drawn = tmp_path / "chart.svg"
    shown = CliRunner().invoke(cli, [*given, "--json", "--plot", str(drawn)])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout) == json.loads(report_to_json(report))
    assert drawn.read_text() == plot(report)
    printed = CliRunner().invoke(cli, [*given, "--by", "none"]).stdout
    assert f"perplexity  {report.perplexity.value:.4f} ±" in printed
    rows = "\n".join(table(report))
    assert all(group.name in rows for group in report.groups) and "saves" in rows


@pytest.mark.slow
def test_columns_of_the_table_do_not_touch(report: Report) -> None:
    groups = tuple(attrs.evolve(group, saved=1023 * 1024 + 900) for group in report.groups)
    rows = [row for row in table(attrs.evolve(report, groups=groups)) if "KiB" in row]
    assert rows and all(" 1023.9 KiB" in row for row in rows)


def test_the_chart_has_a_bar_for_each_group(report: Report) -> None:
    drawn = ElementTree.fromstring(plot(report))
    bars = [each for each in drawn.iter() if str(each.get("class")).startswith("series-")]
    assert len(bars) == 2 * (1 + len(report.groups))
    longest = max(float(each.get("width", 0)) for each in bars)
    assert all(0 < float(each.get("width", 0)) <= longest for each in bars)
    assert f"all modules {report.divergence.mean:.4f}" in str(drawn.find("{*}desc").text)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "given", [["eval"], ["eval", "--text", str(HELDOUT), "--plot", "chart.svg"]]
)
def test_what_the_command_lacks_is_said(given: list[str]) -> None:
    done = CliRunner().invoke(cli, given)
    assert done.exit_code == 2 and "Error" in done.output
