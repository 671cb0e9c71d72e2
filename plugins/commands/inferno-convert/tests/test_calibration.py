"""Calibration: what it sees of experts and recurrent layers, what it scales, and its resumption."""

from __future__ import annotations

import json
import signal
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import Tensor, nn

from inferno.catalog import load_catalog
from inferno.contracts import Checkpoint, FetchOptions, Seen, WriteOptions, Writer, without
from inferno.errors import UnsupportedError
from inferno.testing import TOY_MOE_SIZES, TOY_SIZES, assert_same_tokens, run_python, torch_only
from inferno.testing.writer import TEXT, skewed_model
from inferno_convert.convert import convert
from inferno_convert.folder import Folder
from inferno_convert.layers import Layers, Sights, Watching
from inferno_convert.place import MANIFEST
from inferno_convert.scaling import Scaler, distance
from inferno_convert.source import Source

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TOY_SIZES}
EXPERTS = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **TOY_MOE_SIZES}
GEMMA = {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "head_dim": 16,
    **TOY_SIZES,
    "tie_word_embeddings": True,
}
PHI = {
    "architectures": ["PhiForCausalLM"],
    "model_type": "phi",
    **TOY_SIZES,
    "num_key_value_heads": 4,
}
MAMBA = {
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "hidden_size": 64,
    "expand": 2,
    "head_dim": 16,
    "num_heads": 8,
    "n_groups": 1,
    "state_size": 16,
    "num_hidden_layers": 2,
    "vocab_size": 160,
    "tie_word_embeddings": False,
}
GRANITE = {
    **TOY_SIZES,
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "layer_types": ["mamba", "attention"],
    "mamba_d_head": 16,
    "mamba_d_state": 32,
    "mamba_n_heads": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_local_experts": 4,
    "position_embedding_type": "nope",
    "shared_intermediate_size": 64,
}
QWEN3_NEXT = {
    **TOY_MOE_SIZES,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "full_attention_interval": 2,
    "head_dim": 32,
    "linear_key_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "shared_expert_intermediate_size": 32,
}
TOKENS = [list(range(3, 100)), list(range(50, 90))]


def layers_of(config: Mapping[str, Any], folder: Path) -> Layers:
    source = Source.open(str(skewed_model(folder, config)), FetchOptions(), load_catalog())
    return Layers.of(source.as_stored(), TOKENS)


def run(layers: Layers, sights: Watching) -> tuple[dict[str, Tensor], Any]:
    """Run the first layer. Returns its tensors, and the output for the first tokens."""
    tensors = layers.tensors(0)
    layer, _ = layers.load(0, tensors, sights)
    with torch.inference_mode():
        first, *_ = layers.run(layer, 0)
    return tensors, first


def test_an_expert_sees_its_own_tokens_only(tmp_path: Path) -> None:
    layers, sights = layers_of(EXPERTS, tmp_path), Sights()
    run(layers, sights)
    seen = sights.found()
    start = "model.layers.0.mlp.experts"
    experts = EXPERTS["num_experts"]
    counts = [
        seen[path].count if (path := f"{start}.{expert}.up_proj") in seen else 0
        for expert in range(experts)
    ]
    tokens = sum(map(len, TOKENS))
    assert sum(counts) == EXPERTS["num_experts_per_tok"] * tokens
    assert max(counts) < tokens
    for expert, count in enumerate(counts):
        paths = [f"{start}.{expert}.{name}_proj" for name in ("gate", "up", "down")]
        if count == 0:
            assert not seen.keys() & {*paths}
            continue
        gate, up, down = (seen[path] for path in paths)
        assert gate.gram_II is up.gram_II, "they have one input, which is summed up once"
        assert down.count == count and down.gram_II is not up.gram_II


@pytest.mark.slow
def test_experts_without_tokens_are_rounded_to_the_nearest_and_said(tmp_path: Path) -> None:
    config = {**EXPERTS, "num_experts": 24, "num_experts_per_tok": 1}
    source = skewed_model(tmp_path, config)
    text = tmp_path / "text.txt"
    text.write_text("ab" * 20)
    options = WriteOptions(group=32)
    plain = convert(str(source), "gptq-int4", tmp_path / "plain", options)
    made = convert(str(source), "gptq-int4", tmp_path / "seen", options, calibrate=text)
    assert not any("saw no input" in note for note in plain.notes)
    [warning] = [note for note in made.notes if "saw no input" in note]
    assert 0 < int(warning.split()[0]) < 2 * 24 * 3


@pytest.mark.parametrize(
    ("config", "pairs"),
    [
        (
            LLAMA,
            {
                "input_layernorm": {f"self_attn.{name}_proj" for name in "qkv"},
                "post_attention_layernorm": {"mlp.gate_proj", "mlp.up_proj"},
                "mlp.up_proj": {"mlp.down_proj"},
            },
        ),
        (
            GEMMA,
            {
                "input_layernorm": {f"self_attn.{name}_proj" for name in "qkv"},
                "pre_feedforward_layernorm": {"mlp.gate_proj", "mlp.up_proj"},
                "mlp.up_proj": {"mlp.down_proj"},
            },
        ),
        (
            PHI,
            {
                "input_layernorm": {*(f"self_attn.{name}_proj" for name in "qkv"), "mlp.fc1"},
                "self_attn.v_proj": {"self_attn.dense"},
            },
        ),
        (MAMBA, {"norm": {"mixer.in_proj"}, "mixer.norm": {"mixer.out_proj"}}),
    ],
    ids=["llama", "gemma", "phi", "mamba2"],
)
def test_what_reads_a_norm_or_a_matrix_follows_from_no_names(
    config: dict[str, Any], pairs: Mapping[str, set[str]], tmp_path: Path
) -> None:
    layers, sights = layers_of(config, tmp_path), Sights()
    tensors, first = run(layers, sights)
    start = f"{layers.paths[0]}."
    seen = {path.removeprefix(start): each for path, each in sights.found().items()}
    scaler = Scaler(layers, 0, dict(tensors), first)
    with torch.inference_mode():
        scaler.run(seen, Doubling())
        layer, _ = layers.load(0, scaler.tensors, None)
        assert distance(first, next(layers.run(layer, 0))) < 1e-4
    assert scaler.scaled == set().union(*pairs.values())
    norms = {name for name in pairs if tensors[f"{name}.weight"].ndim == 1}
    for norm in norms:
        offset = 1.0 if config is GEMMA else 0.0
        ratio = (scaler.tensors[f"{norm}.weight"] + offset) / (tensors[f"{norm}.weight"] + offset)
        assert torch.allclose(ratio, 1 / Doubling.factor(len(ratio)), rtol=1e-5)


class Doubling:
    """Scales every other column."""

    @staticmethod
    def factor(columns: int) -> Tensor:
        return torch.tensor([1.0, 2.0]).repeat(columns // 2)

    def scale(self, readers: Sequence[tuple[Tensor, Seen]]) -> Tensor:
        return self.factor(readers[0][0].shape[1])


@pytest.mark.slow
def test_experts_are_scaled_with_their_router(tmp_path: Path) -> None:
    """Also those that no token chose: the norm in front of all has changed."""
    layers, sights = layers_of({**EXPERTS, "num_experts": 24}, tmp_path), Sights()
    tensors, first = run(layers, sights)
    seen = {path.removeprefix("model.layers.0."): s for path, s in sights.found().items()}
    scaler = Scaler(layers, 0, dict(tensors), first)
    with torch.inference_mode():
        scaler.run(seen, Doubling())
    assert any("up_proj" in path for path in scaler.scaled)
    factor_D = Doubling.factor(EXPERTS["hidden_size"])
    for name in ("gate", *(f"experts.{expert}.gate_proj" for expert in range(24))):
        ours, theirs = (each[f"mlp.{name}.weight"] for each in (scaler.tensors, tensors))
        assert torch.allclose(ours, theirs * factor_D), name


def test_one_layer_is_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**LLAMA, "num_hidden_layers": 4}
    source, text = skewed_model(tmp_path, config), tmp_path / "text.txt"
    text.write_text(TEXT)
    alive: list[int] = []
    matrices: list[weakref.ref[Tensor]] = []
    tensors = Layers.tensors

    def counting(self: Layers, number: int) -> dict[str, Tensor]:
        alive.append(sum(each() is not None for each in matrices))
        layer = tensors(self, number)
        matrices.extend(weakref.ref(tensor) for tensor in layer.values() if tensor.ndim == 2)
        return layer

    monkeypatch.setattr(Layers, "tensors", counting)
    convert(str(source), "gptq-int4", tmp_path / "q", WriteOptions(group=32), calibrate=text)
    assert alive == [0] * 4 and len(matrices) == 4 * 7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "to", "renamed"),
    [(GRANITE, "gptq-int4", True), (QWEN3_NEXT, "awq-int4", False)],
    ids=["granite", "qwen3-next"],
)
def test_hybrids_are_calibrated(
    config: dict[str, Any], to: str, renamed: bool, tmp_path: Path
) -> None:
    """States, experts that are stored as one tensor, other names: the result has the model's."""
    source, text = skewed_model(tmp_path, config), tmp_path / "text.txt"
    text.write_text(TEXT)
    made = convert(str(source), to, tmp_path / "q", WriteOptions(group=32), calibrate=text)
    assert any("names of inferno's modules" in note for note in made.notes) == renamed
    exact = WriteOptions(dtype="float32")
    convert(str(tmp_path / "q"), "safetensors", tmp_path / "values", exact)
    assert_same_tokens((tmp_path / "q", tmp_path / "values"), torch_only())


def test_names_that_the_models_plugin_would_not_find_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = skewed_model(tmp_path, GRANITE)
    opened = Source.open(str(source), FetchOptions(), load_catalog())
    adapt = opened.architecture.adapt
    assert adapt is not None

    def once(checkpoint: Checkpoint) -> Checkpoint:
        stacked = any(name.endswith("input_linear.weight") for name in checkpoint.tensors)
        return adapt(checkpoint) if stacked else without(checkpoint, (".weight",))

    opened.architecture = evolve(opened.architecture, adapt=once)
    encoding = opened.catalog.named(Writer, "gptq-int4").item.encoding
    assert encoding is not None
    with pytest.raises(UnsupportedError, match="would not find"):
        Folder.of(opened, WriteOptions(group=32), encoding(WriteOptions(group=32)))


_KILLED = """
import os, signal, sys
from pathlib import Path
from inferno.contracts import WriteOptions
from inferno_convert.convert import convert
from inferno_convert import writing

source, text, out, to, count = *map(Path, sys.argv[1:4]), sys.argv[4], int(sys.argv[5])
writing.SYNC_BYTES = 1
write_piece = writing._write_piece

def killed(piece, files):
    global count
    count -= 1
    if count < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return write_piece(piece, files)

writing._write_piece = killed
convert(str(source), to, out, WriteOptions(group=32), calibrate=text)
"""


@pytest.mark.slow
@pytest.mark.parametrize("to", ["gptq-int4", "awq-int4"])
def test_a_killed_calibration_continues_and_ends_with_the_same_bytes(
    to: str, tmp_path: Path
) -> None:
    """The layers that are written are run as they were written, for the next ones' inputs."""
    source, text = skewed_model(tmp_path, {**LLAMA, "num_hidden_layers": 3}), tmp_path / "t.txt"
    text.write_text(TEXT)

    def run_until(out: str, count: int) -> int:
        path = str(tmp_path / out)
        return run_python(_KILLED, str(source), str(text), path, to, str(count)).returncode

    assert run_until("whole", 1000) == 0
    pieces = json.loads((tmp_path / "whole" / MANIFEST).read_text())["files"]
    for count in (4, 1):  # three tensors outside of layers and a layer; then one more layer
        assert run_until("out", count) == -signal.SIGKILL
        assert not (tmp_path / "out").exists()
    assert run_until("out", 1000) == 0
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["files"] == pieces


def test_layers_are_modules_of_the_model(tmp_path: Path) -> None:
    layers = layers_of(MAMBA, tmp_path)
    assert all(isinstance(module, nn.Module) for module in layers.modules(0).values())
    assert {"norm", "mixer.in_proj", "mixer.out_proj"} <= layers.modules(0).keys()
