"""Adapters that are merged into what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conversions import GPT_OSS, catalog, model
from safetensors.torch import load_file, save_file

from inferno import LLM, SamplingParams
from inferno.contracts import WriteOptions
from inferno.errors import CheckpointError, OptionError, UnsupportedError
from inferno.plan import resolve
from inferno.testing import random_tensors
from inferno_convert.convert import convert

__all__ = ["catalog", "model"]

Q, UP = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"
EXACT = WriteOptions(dtype="float32")


def written(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> str:
    """Write an adapter of rank 4 as PEFT does."""
    folder.mkdir()
    given = {"peft_type": "LORA", "r": 4, "lora_alpha": 2, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(given))
    named = {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}
    save_file(named, folder / "adapter_model.safetensors")
    return str(folder)


def pair(path: str, weight_OI: torch.Tensor, seed: int = 0) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        f"{path}.lora_A.weight": torch.randn(4, weight_OI.shape[1], generator=draw),
        f"{path}.lora_B.weight": torch.randn(weight_OI.shape[0], 4, generator=draw),
    }


def delta(tensors: dict[str, torch.Tensor], path: str) -> torch.Tensor:
    return 0.5 * tensors[f"{path}.lora_B.weight"] @ tensors[f"{path}.lora_A.weight"]


def merged(source: Path, adapter: str | list[str], folder: Path, **more: Any) -> Any:
    adapters = [adapter] if isinstance(adapter, str) else adapter
    convert(str(source), "safetensors", folder, EXACT, adapters=adapters, **more)
    return load_file(folder / "model.safetensors")


def test_matrices_are_changed_in_float32_and_others_are_copied(model: Path, tmp_path: Path) -> None:
    theirs = load_file(model / "model.safetensors")
    tensors = {**pair(Q, theirs[f"{Q}.weight"]), **pair(UP, theirs[f"{UP}.weight"], 1)}
    ours = merged(model, written(tmp_path / "adapter", tensors), tmp_path / "out")
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        path = name.removesuffix(".weight")
        wanted = tensor.float() + (delta(tensors, path) if path in (Q, UP) else 0)
        assert torch.equal(ours[name], wanted)


def test_several_adapters_are_added_up(model: Path, tmp_path: Path) -> None:
    theirs = load_file(model / "model.safetensors")[f"{Q}.weight"]
    both = [pair(Q, theirs, seed) for seed in (1, 2)]
    refs = [written(tmp_path / str(i), each) for i, each in enumerate(both)]
    ours = merged(model, refs, tmp_path / "out")[f"{Q}.weight"]
    torch.testing.assert_close(ours, theirs.float() + sum(delta(each, Q) for each in both))


def test_norms_of_rows_are_those_of_a_dora(model: Path, tmp_path: Path) -> None:
    """Which is refused beside a model, and merged into one."""
    theirs = load_file(model / "model.safetensors")[f"{Q}.weight"].float()
    norms_O = torch.rand(len(theirs), generator=torch.Generator().manual_seed(3)) + 0.5
    tensors = {**pair(Q, theirs), f"{Q}.lora_magnitude_vector": norms_O}
    adapter = written(tmp_path / "adapter", tensors, use_dora=True)
    changed = theirs + delta(tensors, Q)
    wanted = norms_O[:, None] * changed / changed.norm(dim=1, keepdim=True)
    ours = merged(model, adapter, tmp_path / "out")[f"{Q}.weight"]
    torch.testing.assert_close(ours, wanted)


def test_quantized_matrices_are_changed_and_quantized_again(tmp_path: Path) -> None:
    """By their values, not by what their blocks were rounded from."""
    dense = Path(resolve("demo").path)
    theirs = load_file(dense / "model.safetensors")[f"{Q}.weight"].float()
    tensors = pair(Q, theirs)
    adapter = written(tmp_path / "adapter", tensors)
    convert(str(dense), "q8_0", base := tmp_path / "base.gguf")
    with pytest.raises(OptionError, match="a second time"):
        convert(str(base), "q8_0", tmp_path / "x.gguf", adapters=[adapter])
    convert(str(base), "q8_0", out := tmp_path / "out.gguf", adapters=[adapter], requantize=True)
    values = merged(base, adapter, tmp_path / "exact")[f"{Q}.weight"]
    convert(str(out), "safetensors", tmp_path / "dense", EXACT)
    ours = load_file(tmp_path / "dense" / "model.safetensors")[f"{Q}.weight"]
    wanted = theirs + delta(tensors, Q)
    for matrix in (values, ours):
        assert 0 < float((matrix - wanted).norm()) < 0.01 * float(wanted.norm())


@pytest.mark.slow
def test_answers_are_those_of_the_adapter_beside_the_model(tmp_path: Path) -> None:
    """With the embedding, which is the output head too, and every linear layer changed."""
    dense = Path(resolve("demo").path)
    tensors: dict[str, torch.Tensor] = {}
    for name, weight_OI in load_file(dense / "model.safetensors").items():
        path, shrink = name.removesuffix(".weight"), 0.3 * weight_OI.float().std()
        if path.endswith("_proj"):
            factors = pair(path, weight_OI)
            tensors |= {k: v * shrink if "lora_B" in k else v for k, v in factors.items()}
        elif path.endswith("embed_tokens"):
            draw = torch.Generator().manual_seed(7)
            rows, columns = weight_OI.shape
            tensors[f"{path}.lora_embedding_A"] = torch.randn(4, rows, generator=draw)
            tensors[f"{path}.lora_embedding_B"] = torch.randn(columns, 4, generator=draw) * shrink
    adapter = written(tmp_path / "adapter", tensors)
    convert(str(dense), "safetensors", tmp_path / "out", EXACT, adapters=[adapter])
    given: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 4}
    greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    prompt = [5 + 7 * i % 90 for i in range(40)]
    with LLM("demo", loras={"own": adapter}, **given) as llm:
        base, ours = (
            llm.generate([prompt], greedy, lora=each)[0].outputs[0] for each in (None, "own")
        )
    with LLM(str(tmp_path / "out"), **given) as llm:
        theirs = llm.generate([prompt], greedy)[0].outputs[0]
    assert ours.token_ids == theirs.token_ids != base.token_ids


def test_experts_that_are_stored_as_one_tensor_are_changed_in_it(tmp_path: Path) -> None:
    tensors = random_tensors(GPT_OSS, tmp_path / "source")
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**GPT_OSS, "dtype": "float32"}))
    experts = "model.layers.1.mlp.experts"
    stored = tensors[f"{experts}.gate_up_proj"]  # (experts, inputs, outputs), in turns
    factors = pair(f"{experts}.2.up_proj", stored[2, :, 1::2].T)
    ours = merged(folder, written(tmp_path / "adapter", factors), tmp_path / "out")
    wanted = stored.clone()
    wanted[2, :, 1::2] += delta(factors, f"{experts}.2.up_proj").T
    torch.testing.assert_close(ours[f"{experts}.gate_up_proj"], wanted)


def test_an_adapter_of_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    theirs = load_file(model / "model.safetensors")[f"{Q}.weight"]
    other = written(tmp_path / "shape", pair(Q, theirs[:, :-1]))
    with pytest.raises(CheckpointError, match="another model"):
        merged(model, other, tmp_path / "out")
    unknown = written(tmp_path / "name", pair("model.layers.9.mlp.up_proj", theirs))
    with pytest.raises(CheckpointError, match="no such matrix"):
        merged(model, unknown, tmp_path / "out")
    broken = written(tmp_path / "nan", pair(Q, theirs * float("nan")))
    pairs = {name: each * float("nan") for name, each in pair(Q, theirs).items()}
    save_file(
        {f"base_model.model.{name}": each for name, each in pairs.items()},
        Path(broken) / "adapter_model.safetensors",
    )
    with pytest.raises(CheckpointError, match="not finite"):
        merged(model, broken, tmp_path / "out")
    with pytest.raises(UnsupportedError, match="no adapter"):
        merged(model, str(model), tmp_path / "out")
    assert not (tmp_path / "out").exists()
