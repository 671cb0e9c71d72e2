"""PEFT's files: what is read of them, and which are refused."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from inferno.contracts import AdapterBase, Architecture, RowsView, expert_rows
from inferno.errors import CheckpointError, InfernoError, UnsupportedError
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


def test_pairs_of_embeddings_are_those_of_the_transposed_matrix(tmp_path: Path) -> None:
    """PEFT embeds with A's columns; its own copy of the matrix beside the pair is not read."""
    name = "base_model.model.model.embed_tokens"
    a, b = torch.randn(4, 20), torch.randn(6, 4)
    tensors = {
        f"{name}.lora_embedding_A": a,
        f"{name}.lora_embedding_B": b,
        f"{name}.base_layer.weight": torch.ones(20, 6),
    }
    adapter = opened(tmp_path, tensors)
    pair = adapter.pairs["model.embed_tokens"]
    assert (pair.rank, pair.inputs, pair.outputs) == (4, 6, 20)
    ours_RI, ours_OR = adapter.read()["model.embed_tokens"]
    torch.testing.assert_close(ours_OR @ ours_RI, (b @ a).T)
    with pytest.raises(CheckpointError, match="lora_B is missing"):
        opened(tmp_path, {f"{name}.lora_embedding_A": a})
    with pytest.raises(UnsupportedError, match="beside a pair"):
        opened(tmp_path, {**tensors, f"{name}.base_layer.weight": torch.ones(21, 6)})


def tied(seed: int = 0) -> dict[str, Tensor]:
    """The pairs of an embedding and of the head that is tied to it, and of one more layer."""
    draw = torch.Generator().manual_seed(seed)
    a_RV, b_DR = torch.randn(4, 20, generator=draw), torch.randn(6, 4, generator=draw)
    rows, head = "base_model.model.model.embed_tokens.", "base_model.model.lm_head."
    return {
        **pair(Q, 4),
        f"{rows}lora_embedding_A": a_RV,
        f"{rows}lora_embedding_B": b_DR,
        f"{rows}base_layer.weight": torch.ones(20, 6),
        f"{head}lora_A.weight": b_DR.T.contiguous(),
        f"{head}lora_B.weight": a_RV.T.contiguous(),
        f"{head}base_layer.weight": torch.ones(20, 6),
    }


def test_the_copy_that_a_tied_head_has_of_the_embeddings_pair_is_left_out(tmp_path: Path) -> None:
    """With `ensure_weight_tying`, PEFT stores it; it is added in both places as it is. Without, the
    head has a pair of its own, which the model accepts or refuses."""
    adapter = opened(tmp_path, tied(), ensure_weight_tying=True)
    assert adapter.pairs.keys() == adapter.read().keys() == {Q, "model.embed_tokens"}
    assert {*opened(tmp_path, tied()).pairs} == {Q, "model.embed_tokens", "lm_head"}
    changed = tied()
    changed["base_model.model.lm_head.lora_B.weight"][3, 1] += 1
    with pytest.raises(UnsupportedError, match="they are tied"):
        opened(tmp_path, changed, ensure_weight_tying=True).read()


EXPERTS = "model.layers.0.mlp.experts"
E, D, I = 3, 6, 5  # noqa: E741


def fused(rank: int = 4, both: int = 1) -> dict[str, Tensor]:
    """The pairs of `gate_up_proj` and `down_proj`, as PEFT's nested wrappers name them; the former
    of `both` times the rank."""
    draw = torch.Generator().manual_seed(rank)
    inner, outer = f"base_model.model.{EXPERTS}.base_layer", f"base_model.model.{EXPERTS}"
    return {
        f"{inner}.lora_A.weight": torch.randn(E * both * rank, D, generator=draw),
        f"{inner}.lora_B.weight": torch.randn(2 * I, E * both * rank, generator=draw),
        f"{outer}.lora_A.weight": torch.randn(E * rank, I, generator=draw),
        f"{outer}.lora_B.weight": torch.randn(D, E * rank, generator=draw),
    }


def moe(adapt: Any = None) -> AdapterBase:
    architecture = Architecture(name="Toy", config="toy:config", build="toy:build", adapt=adapt)
    config = {"num_experts": E, "hidden_size": D, "moe_intermediate_size": I}
    return AdapterBase(architecture=architecture, config=config)


TARGETS = {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}


def deltas(tensors: dict[str, Tensor], prefix: str, rank: int = 4) -> Tensor:
    """What PEFT adds to a parameter with the experts first."""
    a = tensors[f"{prefix}.lora_A.weight"].view(E, rank, -1)
    b = tensors[f"{prefix}.lora_B.weight"]
    return torch.einsum("ore,eri->eoi", b.view(len(b), rank, E), a)


def test_pairs_of_all_experts_in_one_are_divided_among_them(tmp_path: Path) -> None:
    tensors = fused()
    adapter = open_adapter(written(tmp_path, tensors, **TARGETS), moe())
    assert len(adapter.pairs) == 3 * E
    values = {path: b @ a for path, (a, b) in adapter.read().items()}
    both = deltas(tensors, f"base_model.model.{EXPERTS}.base_layer")
    down = deltas(tensors, f"base_model.model.{EXPERTS}")
    for e in range(E):
        for name, wanted in (("gate", both[e, :I]), ("up", both[e, I:]), ("down", down[e])):
            path = f"{EXPERTS}.{e}.{name}_proj"
            torch.testing.assert_close(values[path], wanted)
            pair = adapter.pairs[path]
            assert (pair.rank, pair.scale) == (4, 2.0)
            assert (pair.outputs, pair.inputs) == tuple(wanted.shape)


def test_linear_layers_of_experts_become_parameters_with_patterns_of_their_own(
    tmp_path: Path,
) -> None:
    """What PEFT writes of `target_modules=["gate_proj", "up_proj", "down_proj"]` where transformers
    holds all experts in two parameters: targets without a module, and twice the rank and alpha for
    the one that holds two matrices."""
    tensors = fused(both=2)
    config = {
        "target_parameters": ["down_proj", "gate_up_proj"],
        "rank_pattern": {r".*\.gate_up_proj": 8},
        "alpha_pattern": {r".*\.gate_up_proj": 24},
    }
    adapter = open_adapter(written(tmp_path, {**tensors, **pair(Q, 4)}, **config), moe())
    assert (adapter.pairs[Q].rank, adapter.pairs[Q].scale) == (4, 2.0)
    values = {path: b @ a for path, (a, b) in adapter.read().items()}
    both = deltas(tensors, f"base_model.model.{EXPERTS}.base_layer", 8)
    down = deltas(tensors, f"base_model.model.{EXPERTS}")
    for path, rank, scale, wanted in (
        (f"{EXPERTS}.2.gate_proj", 8, 3.0, both[2, :I]),
        (f"{EXPERTS}.2.up_proj", 8, 3.0, both[2, I:]),
        (f"{EXPERTS}.2.down_proj", 4, 2.0, down[2]),
    ):
        assert (adapter.pairs[path].rank, adapter.pairs[path].scale) == (rank, scale)
        torch.testing.assert_close(values[path], wanted)


def test_patterns_of_the_module_of_experts_are_none_of_its_parameters(tmp_path: Path) -> None:
    patterns = {"rank_pattern": {"experts": 2}, "alpha_pattern": {"experts": 9}}
    adapter = open_adapter(written(tmp_path, fused(), **TARGETS, **patterns), moe())
    assert {(each.rank, each.scale) for each in adapter.pairs.values()} == {(4, 2.0)}


def alternating(checkpoint: Any) -> RowsView:
    """As some models store them: transposed, gate and up in turns."""
    [(name, info)] = checkpoint.tensors.items()
    matrix = name.rpartition(".")[2]
    names = ("gate_proj", "up_proj") if matrix == "gate_up_proj" else ("down_proj",)
    rows = expert_rows(name, info, EXPERTS, names, interleaved=True, transposed=True)
    return RowsView(checkpoint, rows)


def test_the_architecture_says_which_rows_an_expert_has(tmp_path: Path) -> None:
    tensors = fused()
    adapter = open_adapter(written(tmp_path, tensors, **TARGETS), moe(alternating))
    a, b = adapter.read()[f"{EXPERTS}.1.up_proj"]
    both = deltas(tensors, f"base_model.model.{EXPERTS}.base_layer")
    torch.testing.assert_close(b @ a, both[1, 1::2])


def test_early_versions_of_peft_stored_the_pairs_of_transposed_experts(tmp_path: Path) -> None:
    name = f"base_model.model.{EXPERTS}.lora_"
    a, b = torch.randn(E * 4, D), torch.randn(I, E * 4)
    tensors = {f"{name}A.weight": a, f"{name}B.weight": b}
    adapter = open_adapter(written(tmp_path, tensors, **TARGETS), moe())
    ours_RI, ours_OR = adapter.read()[f"{EXPERTS}.2.down_proj"]
    delta = b.view(I, 4, E)[..., 2] @ a.view(E, 4, D)[2]
    torch.testing.assert_close(ours_OR @ ours_RI, delta.T)


def test_experts_of_another_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not 4 for each of the model's 3 experts"):
        name = f"base_model.model.{EXPERTS}.lora_"
        tensors = {f"{name}A.weight": torch.ones(20, D), f"{name}B.weight": torch.ones(I, 20)}
        open_adapter(written(tmp_path, tensors, **TARGETS), moe())
    with pytest.raises(CheckpointError, match="no tensor of the model's experts has 7 rows"):
        tensors = {f"{name}A.weight": torch.ones(12, D), f"{name}B.weight": torch.ones(7, 12)}
        open_adapter(written(tmp_path, tensors, **TARGETS), moe())


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
        ({"alora_invocation_tokens": [1, 2], "use_dora": True}, "aLoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "lora_only"}, "biases"),
        ({"lora_bias": True}, "biases"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa"),
        ({"use_qalora": True}, "use_qalora"),
    ],
)
def test_more_than_pairs_of_matrices_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnsupportedError, match=reason) as caught:
        opened(tmp_path, pair(Q, 4), **config)
    assert ("Merge" in caught.value.remedy) == (reason != "aLoRA")


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({f"{Q}.lora_magnitude_vector": torch.ones(4)}, "DoRA"),
        ({f"base_model.model.{DOWN}.base_layer.weight": torch.ones(4, 9)}, "no pair of matrices"),
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
        ({"target_parameters": "all"}, "target_parameters"),
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
    with pytest.raises(CheckpointError, match="rank 4000, more than"):
        opened(tmp_path, {a: torch.ones(4000, 9), b: torch.ones(9, 4000)}, r=4000)
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


def test_a_damaged_file_is_read_or_refused_and_nothing_else(tmp_path: Path) -> None:
    """Bytes changed at random, and the file cut anywhere."""
    written(tmp_path, {**pair(Q, 4), **pair(DOWN, 4, 3, 5)})
    draw, refused = random.Random(7), 0
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        whole = (tmp_path / name).read_bytes()
        for _ in range(150):
            data = bytearray(whole[: draw.choice([len(whole), draw.randrange(len(whole))])])
            for _ in range(draw.randint(0, 4) if data else 0):
                data[draw.randrange(min(len(data), 500))] = draw.randrange(256)
            (tmp_path / name).write_bytes(data)
            try:
                adapter = open_adapter(tmp_path, base())
                assert adapter.read().keys() == adapter.pairs.keys()
            except InfernoError as error:
                refused += 1
                assert error.remedy and len(str(error)) < 800
        (tmp_path / name).write_bytes(whole)
    assert refused > 100
