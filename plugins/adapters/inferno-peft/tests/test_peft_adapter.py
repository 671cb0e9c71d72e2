"""PEFT's files: what is read of them, and which are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from inferno.contracts import AdapterBase, Architecture
from inferno.errors import CheckpointError, UnsupportedError
from inferno.testing import run_python
from inferno_peft import matches
from inferno_peft.adapter import PeftAdapter, open_adapter

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"


def base() -> AdapterBase:
    architecture = Architecture(name="Toy", config="toy:config", build="toy:build")
    return AdapterBase(architecture=architecture, config={})


def pair(path: str, rank: int, inputs: int = 6, outputs: int = 10) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(rank)
    name = f"base_model.model.{path}.lora_"
    return {
        f"{name}A.weight": torch.randn(rank, inputs, generator=draw),
        f"{name}B.weight": torch.randn(outputs, rank, generator=draw),
    }


def written(folder: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    given = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(given))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def opened(folder: Path, tensors: dict[str, Tensor], **config: Any) -> PeftAdapter:
    return open_adapter(written(folder, tensors, **config), base())


def test_pairs_have_their_shapes_scales_and_values(tmp_path: Path) -> None:
    tensors = {**pair(Q, 4), **pair(DOWN, 2, 3, 5)}
    ranks, alphas = {"down_proj": 2}, {r"layers\.1\.mlp\.down_proj": 6}
    adapter = opened(tmp_path, tensors, rank_pattern=ranks, alpha_pattern=alphas)
    assert matches(tmp_path) and not matches(tmp_path / "adapter_config.json")
    q, down = adapter.pairs[Q], adapter.pairs[DOWN]
    assert (q.rank, q.scale, q.inputs, q.outputs) == (4, 2.0, 6, 10)
    assert (down.rank, down.scale, down.inputs, down.outputs) == (2, 3.0, 3, 5)
    values = adapter.read()
    assert set(values) == {Q, DOWN}
    assert torch.equal(values[Q][0], tensors[f"base_model.model.{Q}.lora_A.weight"])
    assert torch.equal(values[DOWN][1], tensors[f"base_model.model.{DOWN}.lora_B.weight"])


def test_rank_stabilized_scales_divide_by_the_root_of_the_rank(tmp_path: Path) -> None:
    adapter = opened(tmp_path, pair(Q, 4), use_rslora=True)
    assert adapter.pairs[Q].scale == pytest.approx(8 / math.sqrt(4))


def test_the_digest_is_that_of_the_content_not_of_the_place(tmp_path: Path) -> None:
    first = opened(tmp_path / "a", pair(Q, 4))
    assert first.digest == opened(tmp_path / "b", pair(Q, 4)).digest
    assert len(bytes.fromhex(first.digest)) == 16
    assert first.digest != opened(tmp_path / "c", pair(Q, 4), lora_alpha=9).digest
    tensors = pair(Q, 4)
    tensors[f"base_model.model.{Q}.lora_B.weight"][0, 0] += 1
    assert first.digest != opened(tmp_path / "d", tensors).digest


def test_files_that_change_after_they_were_opened_are_not_read(tmp_path: Path) -> None:
    adapter = opened(tmp_path, pair(Q, 4))
    written(tmp_path, pair(DOWN, 4))
    with pytest.raises(CheckpointError, match="have changed"):
        adapter.read()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"alora_invocation_tokens": [1, 2]}, "aLoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "lora_only"}, "biases"),
        ({"lora_bias": True}, "biases"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa"),
        ({"use_qalora": True}, "use_qalora"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters"),
    ],
)
def test_more_than_pairs_of_matrices_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnsupportedError, match=reason) as caught:
        opened(tmp_path, pair(Q, 4), **config)
    assert "Merge" in caught.value.remedy


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({f"{Q}.lora_magnitude_vector": torch.ones(4)}, "DoRA"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(4, 9)}, "embeddings"),
        ({"base_model.model.lm_head.weight": torch.ones(4, 9)}, "no pair of matrices"),
    ],
)
def test_other_tensors_are_refused_by_name(
    tmp_path: Path, tensors: dict[str, Tensor], reason: str
) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        opened(tmp_path, {**pair(Q, 4), **tensors})


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"r": 10**12}, "r is"),
        ({"r": 0}, "r is"),
        ({"r": 8}, "has rank 4"),
        ({"lora_alpha": float("nan")}, "lora_alpha"),
        ({"rank_pattern": []}, None),
        ({"rank_pattern": {"(a+)+(b+)+(c+)+$": 2}}, "wrong or too long"),
        ({"alpha_pattern": {"(": 2}}, "wrong or too long"),
        ({"alpha_pattern": "q_proj"}, "no object"),
    ],
)
def test_damaged_configs_are_refused(
    tmp_path: Path, config: dict[str, Any], reason: str | None
) -> None:
    if reason is None:
        assert opened(tmp_path, pair(Q, 4), **config).pairs  # an empty list says nothing
        return
    with pytest.raises(CheckpointError, match=reason):
        opened(tmp_path, pair(Q, 4), **config)


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    tensors = pair(Q, 4)
    a, b = tensors
    with pytest.raises(CheckpointError, match="lora_B is missing"):
        opened(tmp_path, {a: tensors[a]})
    with pytest.raises(CheckpointError, match="ranks differ"):
        opened(tmp_path, {a: tensors[a], b: torch.ones(10, 3)})
    with pytest.raises(CheckpointError, match="stored as"):
        opened(tmp_path, {a: tensors[a].to(torch.int8), b: tensors[b]})
    with pytest.raises(CheckpointError, match="no pair"):
        opened(tmp_path, {})
    file = written(tmp_path, tensors) / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_adapter(tmp_path, base())
    file.unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        open_adapter(tmp_path, base())
    (tmp_path / "adapter_model.bin").write_bytes(b"pickle")
    with pytest.raises(UnsupportedError, match="may run code"):
        open_adapter(tmp_path, base())
    (tmp_path / "adapter_config.json").write_text("[" * 100_000)
    file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="no JSON object"):
        open_adapter(tmp_path, base())


def test_opening_imports_no_torch(tmp_path: Path) -> None:
    written(tmp_path, pair(Q, 4))
    run_python(
        "import sys; from pathlib import Path; from inferno_peft.adapter import open_adapter; "
        f"open_adapter(Path({str(tmp_path)!r}), None); assert 'torch' not in sys.modules"
    )
