"""`inferno explain` on a checkpoint and an architecture made by the test: the plan, its memory, and
the refusals."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

Inferno = Callable[..., subprocess.CompletedProcess[str]]

TOY = """
from attrs import frozen
from inferno import hookimpl
from inferno.contracts import Architecture, AttentionBackend, AttentionSpec

@frozen
class Config:
    vocab_size: int = 32
    max_position_embeddings: int = 256

    def cache_specs(self):
        return [AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, scale=1.0)] * 3

@hookimpl
def inferno_architectures():
    config = lambda config: Config()
    return [Architecture(name="ToyForCausalLM", config=config, build="toy_model:build")]

@hookimpl
def inferno_attention_backends():
    refuses = lambda need: "it wants 128 heads"
    return [AttentionBackend(name="picky", refuses=refuses, build="toy_model:build",
                             cache=lambda need, size: {}, priority=50)]
"""


@pytest.fixture
def model(tmp_path: Path, install: Callable[[str, str], None]) -> Path:
    install("toy-model", TOY)
    return checkpoint(tmp_path / "toy", "ToyForCausalLM")


def checkpoint(folder: Path, architecture: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"architectures": [architecture], "vocab_size": 32})
    )
    tensors = {
        "embed_tokens.weight": (32, 32),
        "layers.0.q_proj.weight": (32, 32),
        "norm.weight": (32,),
    }
    save_file(
        {name: np.zeros(shape, np.float32) for name, shape in tensors.items()},
        folder / "model.safetensors",
    )
    return folder


def test_explain_names_every_decision_and_its_distribution(inferno: Inferno, model: Path) -> None:
    done = inferno("explain", str(model), "--only", "toy-model")
    assert done.returncode == 0, done.stderr
    lines = {
        line.split()[0]: line
        for line in reversed(done.stdout.splitlines())
        if line.startswith("  ")
    }
    assert "ToyForCausalLM" in lines["architecture"] and "[toy-model 2.5]" in lines["architecture"]
    assert "safetensors" in lines["format"] and "[inferno 1.0.0]" in lines["format"]
    assert "dense: 2 matrices of float32, 8.0 KiB (embed_tokens, q_proj)" in lines["weights"]
    assert "torch: 4 query heads over 2 of 8, layers 0 to 2" in lines["attention"]
    assert "float32 on cpu" in lines["compute"]
    assert "lru" in lines["cache"]


def test_explain_says_how_tokens_are_sampled(inferno: Inferno, model: Path) -> None:
    args = ("explain", str(model), "--only", "toy-model")
    usual = "temperature 0.8, top_k 40, top_p 0.95, min_p 0.05 in the terminal and on the page"
    assert usual in inferno(*args).stdout
    (model / "generation_config.json").write_text('{"temperature": 0.6}')
    output = inferno(*args).stdout
    assert usual not in output
    assert "temperature 0.6, top_k 0, top_p 1, min_p 0, repetition_penalty 1, as" in output


def test_explain_says_why_a_candidate_was_not_chosen(inferno: Inferno, model: Path) -> None:
    shown = inferno("explain", str(model), "--only", "toy-model").stdout
    refused = shown.partition("Not chosen")[2]
    assert re.search(r"picky +it wants 128 heads +\[toy-model\]", refused)


def test_explain_adds_up_the_memory_and_says_what_fits(inferno: Inferno, model: Path) -> None:
    args = [
        "explain",
        str(model),
        "--only",
        "toy-model",
        "--max-model-len",
        "64",
        "--max-num-seqs",
        "4",
    ]
    shown = inferno(*args).stdout
    assert re.search(r"KV cache .* 16 blocks of 16 tokens", shown)
    assert "4 of 64 tokens at once" in shown


def test_the_whole_plan_is_json(inferno: Inferno, model: Path) -> None:
    plan = json.loads(inferno("explain", str(model), "--only", "toy-model", "--json").stdout)
    assert (plan["architecture"], plan["format"], plan["max_model_len"]) == (
        "ToyForCausalLM",
        "safetensors",
        256,
    )


def test_explain_imports_no_torch(new_inferno: Inferno, model: Path, site: Path) -> None:
    (site / "torch.py").write_text("raise SystemExit('torch was imported')")
    done = new_inferno("explain", str(model), "--only", "toy-model")
    assert done.returncode == 0, done.stderr


def test_lock_writes_the_plan_that_locked_reads(
    inferno: Inferno, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferno.cli import lock
    from inferno.plan import plan_from_json

    args = ["explain", str(model), "--only", "toy-model", "--max-num-seqs", "3"]
    printed = json.loads(inferno(*args, "--json", "--lock").stdout)
    monkeypatch.chdir(tmp_path)
    plan = lock.read(str(model), {"dtype": None, "disable": ()})
    assert plan.max_num_seqs == printed["max_num_seqs"] == 3
    assert plan == plan_from_json(json.dumps(printed))


@pytest.mark.parametrize("ref, values", [("other", {}), (None, {"dtype": "float32"})])
def test_locked_takes_no_other_model_and_no_options(
    inferno: Inferno,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ref: str | None,
    values: Any,
) -> None:
    from inferno.cli import lock
    from inferno.errors import OptionError

    inferno("explain", str(model), "--only", "toy-model", "--lock")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError):
        lock.read(ref, values)


def test_locked_without_a_lock_says_how_to_make_one(inferno: Inferno) -> None:
    done = inferno("serve", "--locked")
    assert done.returncode == 2
    assert "explain REF --lock" in done.stderr


def test_an_unknown_architecture_is_named(inferno: Inferno, tmp_path: Path) -> None:
    done = inferno(
        "explain", str(checkpoint(tmp_path / "alien", "AlienForCausalLM")), "--only", "qwen3"
    )
    assert done.returncode == 3
    assert "AlienForCausalLM" in done.stderr
    assert "Install a plugin that provides it. Installed: " in done.stderr
    assert "Qwen3ForCausalLM, Qwen3ForSequenceClassification" in done.stderr


def test_a_corrupt_checkpoint_is_no_traceback(inferno: Inferno, model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    done = inferno("explain", str(model))
    assert done.returncode == 3
    assert "model.safetensors" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "flags",
    [
        ["--isq", "q9_k"],
        ["--gpu-memory-utilization", "0.5", "--device", "cpu"],
        ["--attention-backend", "warp"],
        ["--cache-policy", "elephant"],
        ["--enable-prefix-caching", "--cache-policy", "none"],
        ["--memory", "lots"],
        ["--max-model-len", "4096"],
        ["--max-num-seqs", "0"],
        ["--disable", "nobody"],
        ["--revision", "main"],
    ],
)
def test_a_flag_that_cannot_be_honoured_is_an_error(
    inferno: Inferno, model: Path, flags: list[str]
) -> None:
    done = inferno("explain", str(model), *flags)
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith("Error: ") and len(done.stderr.splitlines()) == 2


def test_a_budget_that_is_too_small_says_what_is_needed(inferno: Inferno, model: Path) -> None:
    done = inferno("explain", str(model), "--memory", "1MB")
    assert done.returncode == 4
    assert "--memory" in done.stderr


@pytest.mark.slow
def test_check_finds_a_tensor_that_headers_alone_do_not_miss(
    inferno: Inferno, tmp_path: Path
) -> None:
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 32, **sizes}
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(config))
    save_file(
        {"model.norm.weight": np.zeros(32, np.float32)}, tmp_path / "llama" / "model.safetensors"
    )
    assert inferno("explain", "llama").returncode == 0
    done = inferno("explain", "llama", "--check")
    assert done.returncode == 3
    assert "model.embed_tokens.weight is missing" in done.stderr


@pytest.mark.slow
def test_check_builds_no_model_of_which_hardly_anything_is_stored(
    inferno: Inferno, tmp_path: Path
) -> None:
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 9000,
        "num_attention_heads": 4,
        "head_dim": 8,
    }
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "vocab_size": 32,
        "num_experts": 9000,
        **sizes,
    }
    (tmp_path / "vast").mkdir()
    (tmp_path / "vast" / "config.json").write_text(json.dumps(config))
    save_file(
        {"model.norm.weight": np.zeros(32, np.float32)}, tmp_path / "vast" / "model.safetensors"
    )
    done = inferno("explain", "vast", "--check")
    assert (
        done.returncode == 3
        and "num_hidden_layers is 9000, but 1 tensors are stored" in done.stderr
    )


def test_every_option_is_an_environment_variable_by_its_flag(inferno: Inferno) -> None:
    done = inferno(
        "explain",
        "demo",
        "--json",
        INFERNO_MAX_NUM_SEQS="3",
        INFERNO_SERVED_MODEL_NAME="ignored by explain",
    )
    assert json.loads(done.stdout)["max_num_seqs"] == 3
    assert inferno("explain", "demo", INFERNO_JSON="1").stdout.startswith("{")


def test_the_attention_backend_may_come_from_the_environment(inferno: Inferno, model: Path) -> None:
    done = inferno("explain", str(model), INFERNO_ATTENTION_BACKEND="torch")
    assert "  torch: " in done.stdout, done.stderr
    done = inferno("explain", str(model), INFERNO_ATTENTION_BACKEND="xformers")
    assert done.returncode == 2 and "xFormers is retired as an attention backend" in done.stderr
