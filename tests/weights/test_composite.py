"""Composite checkpoints: modules of other files give what a checkpoint with the same values gives,
and what does not belong together is refused by headers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from inferno.cli.render import explained
from inferno.errors import CheckpointError, InfernoError, OptionError
from inferno.llm.preprocessor import Preprocessor
from inferno.plan import Options, Plan, open_model, plan_from_json, plan_to_json, reopen
from inferno.testing import (
    TOY_MOE_SIZES,
    TOY_SIZES,
    Toy,
    generate,
    gguf_dialect,
    load_catalog,
    load_toy,
    plan_of,
    ragged_prompts,
    random_tensors,
    torch_only,
    write_gguf,
    write_twins,
)
from inferno.weights.loading import load_model

gptq_files: Any = pytest.importorskip("gptq_files", reason="the helpers of a plugin's tests")
LLAMA = {**TOY_SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
MOE = {**TOY_MOE_SIZES, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
PROMPTS = ragged_prompts(TOY_SIZES["vocab_size"])


def written(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    folder.mkdir()
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    return folder


def model(folder: Path, config: Mapping[str, Any] = LLAMA) -> Path:
    return written(folder, config, random_tensors(config, folder.with_suffix(".source")))


def another(path: Path, to: Path) -> Path:
    """A model with the same config and other values."""
    draw = torch.Generator().manual_seed(7)
    tensors = load_file(path / "model.safetensors")
    noisy = {n: t + 0.05 * torch.randn(t.shape, generator=draw) for n, t in tensors.items()}
    return written(to, json.loads((path / "config.json").read_text()), noisy)


def tokens(toy: Toy) -> list[tuple[int, ...]]:
    return [outcome.token_ids for outcome in generate(toy, PROMPTS, 16)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    one = model(folder / "one")
    return one, another(one, folder / "other")


def test_a_model_whose_modules_are_all_overridden_is_the_other_model(
    pair: tuple[Path, Path],
) -> None:
    one, other = pair
    composite = load_toy(one, overrides={"*": str(other)})
    assert tokens(composite) == tokens(load_toy(other)) != tokens(load_toy(one))


def test_every_module_comes_from_the_last_pattern_that_matches(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    one, other = pair
    ours, theirs = (load_file(path / "model.safetensors") for path in pair)
    patterns = ["model.layers.*", "model.layers.*.mlp.*"]
    mixed = {
        name: theirs[name] if fnmatchcase(name, patterns[0]) and ".mlp." not in name else tensor
        for name, tensor in ours.items()
    }
    twin = written(tmp_path / "twin", LLAMA, mixed)
    given = [f"{patterns[0]}={other}", f"{patterns[1]}={one}"]
    assert tokens(load_toy(one, overrides=given)) == tokens(load_toy(twin))


@pytest.mark.parametrize("config", [LLAMA, MOE], ids=["dense", "experts"])
def test_dense_gguf_and_gptq_modules_give_the_tokens_of_their_dense_twin(
    config: dict[str, Any], tmp_path: Path
) -> None:
    """Within a layer too, where the matrices of one product are of three kinds."""
    main = model(tmp_path / "main", config)
    tensors = load_file(main / "model.safetensors")
    form = gptq_files.Format(bits=4, group=32, act_order=True)

    def gptq(name: str, number: int, tensor: Tensor) -> Any:
        quantized = "_proj" in name and tensor.shape[1] % 32 == 0
        return gptq_files.encode(tensor, form, number) if quantized else None

    packed, plain = write_twins(tmp_path, config, form.config, gptq, tensors=tensors)
    dialect = gguf_dialect(load_catalog(), config["architectures"][0])
    assert dialect is not None
    known = json.loads((tmp_path / "main.source" / "config.json").read_text())
    weights = write_gguf(tmp_path / "q8.gguf", dialect, {**known, **config}, tensors, "Q8_0")
    overrides = {
        "model.layers.0.*": tmp_path / "q8.gguf",
        "model.layers.1.*": packed,
        "model.layers.1.*.[ku]*_proj": tmp_path / "q8.gguf",
        "model.layers.1.*.v_proj": main,
        "lm_head": tmp_path / "q8.gguf",
    }
    values = {"q8.gguf": weights, "packed": load_file(plain / "model.safetensors"), "main": tensors}
    mixed = dict(tensors)
    for pattern, path in overrides.items():
        names = [name for name in tensors if fnmatchcase(name.rpartition(".")[0], pattern)]
        mixed |= {name: values[path.name][name] for name in names}
    twin = written(tmp_path / "twin", config, mixed)
    exact, given = torch_only(), {pattern: str(path) for pattern, path in overrides.items()}
    ours, theirs = load_toy(main, exact, overrides=given), load_toy(twin, exact)
    assert {use.name for use in ours.plan.schemes} == {"dense", "q8_0", "gptq"}
    assert tokens(ours) == tokens(theirs)


def test_the_plan_says_where_each_module_comes_from_and_is_opened_again(
    pair: tuple[Path, Path],
) -> None:
    one, other = pair
    plan = plan_of(one, overrides=[f"model.layers.1.*={other}", f"lm_head={other}"])
    layer, head = plan.overrides
    assert layer.path == head.path == str(other) and layer.format == "safetensors"
    assert (layer.count, layer.tokens) == (9, False) and (head.count, head.tokens) == (1, True)
    assert layer.schemes["model.layers.*.mlp.up_proj"] == "dense"
    assert f"model.layers.1.* from {other}, 9 modules: dense (" in explained(plan)
    again = plan_from_json(plan_to_json(plan))
    with reopen(again) as opened:
        assert tokens(Toy(again, load_model(opened))) == tokens(
            load_toy(one, overrides={"model.layers.1.*": str(other), "lm_head": str(other)})
        )


def test_a_model_may_be_overridden_with_its_own_modules(pair: tuple[Path, Path]) -> None:
    one, _ = pair
    assert tokens(load_toy(one, overrides={"*": str(one)})) == tokens(load_toy(one))


@pytest.mark.parametrize(
    ("override", "error", "said"),
    [
        ("model.layers.0.*", OptionError, "is not PATTERN=REF"),
        ("=demo", OptionError, "is not PATTERN=REF"),
        ("model.layers.0={other}", OptionError, "no module of the model matches"),
        ("*={missing}", InfernoError, "missing"),
        ("*={wider}", CheckpointError, "in the model"),
        ("model.embed_tokens={longer}", CheckpointError, "(192, 64) in .*, and (160, 64)"),
        ("*={longer}", CheckpointError, "(192, 64) in .*, and (160, 64)"),
        ("*={tied}", CheckpointError, "which the model has and .* has not"),
        ("*={deeper}", CheckpointError, "model.layers.2.* more, which .* has and the model has"),
        ("*={foreign}", CheckpointError, "is a Qwen3ForCausalLM"),
        ("*={unnamed}", CheckpointError, 'unnamed: config.json has neither "architectures"'),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_read(
    override: str,
    error: type[InfernoError],
    said: str,
    pair: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    changed: dict[str, dict[str, Any]] = {
        "wider": {"hidden_size": 96, "head_dim": 24},
        "longer": {"vocab_size": 192},
        "tied": {"tie_word_embeddings": True},
        "deeper": {"num_hidden_layers": 3},
        "foreign": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    }
    paths = {"other": pair[1], "missing": tmp_path / "missing"}
    for name, fields in changed.items():
        if f"{{{name}}}" in override:
            paths[name] = model(tmp_path / name, {**LLAMA, **fields})
    if "unnamed" in override:
        paths["unnamed"] = written(tmp_path / "unnamed", {}, {"model.norm.weight": torch.zeros(1)})
    pattern = said.replace("(192, 64)", r"\(192, 64\)").replace("(160, 64)", r"\(160, 64\)")
    with pytest.raises(error, match=pattern) as caught:
        plan_of(pair[0], overrides=[override.format(**paths)])
    assert caught.value.remedy.endswith(".")


def test_layers_of_a_deeper_model_may_be_taken(pair: tuple[Path, Path], tmp_path: Path) -> None:
    deeper = model(tmp_path / "deeper", {**LLAMA, "num_hidden_layers": 3})
    plan = plan_of(pair[0], overrides={"model.layers.[01].*": str(deeper)})
    assert plan.overrides[0].count == 18


def test_tokens_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    from inferno_demo import path

    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((path() / name).read_bytes())
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = document["model"]["vocab"]
    one, two = list(vocabulary)[300:302]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with open_model("demo", Options(overrides=(f"model.layers.0.*={tmp_path}",))) as opened:
        Preprocessor.open(opened)
    with (
        open_model("demo", Options(overrides=(f"model.*={tmp_path}",))) as opened,
        pytest.raises(OptionError, match="another vocabulary"),
    ):
        Preprocessor.open(opened)


def test_plans_of_models_without_overrides_have_none(pair: tuple[Path, Path]) -> None:
    plan: Plan = plan_of(pair[0])
    assert plan.overrides == ()
