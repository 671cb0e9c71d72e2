"""Importance matrices are read in both forms, and anything else ends in a typed error."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferno.contracts import DenseMatrices
from inferno.errors import OptionError
from inferno.testing import load_catalog
from inferno_gguf.imatrix import read
from inferno_gguf.names import Name, names_of

Values = Mapping[str, np.ndarray]

PATHS = {
    "model.embed_tokens": (64, 32),
    "model.layers.0.self_attn.q_proj": (32, 32),
    "model.layers.0.mlp.experts.0.down_proj": (32, 16),
    "model.layers.0.mlp.experts.1.down_proj": (32, 16),
    "model.layers.0.mlp.gate": (2, 32),
    "lm_head": (64, 32),
}
MATRICES = DenseMatrices(
    shapes=PATHS,
    architecture=load_catalog().architecture("Qwen3MoeForCausalLM").item,
    config={},
)
Q, DOWN = "blk.0.attn_q.weight", "blk.0.ffn_down_exps.weight"


def entries() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {Q: rng.random(32, np.float32), DOWN: rng.random(32, np.float32)}


def write_dat(path: Path, values: Values, calls: int = 3) -> Path:
    out = struct.pack("<i", len(values))
    for name, each in values.items():
        out += struct.pack("<i", len(name)) + name.encode()
        out += struct.pack("<ii", calls, each.size) + (each * calls).astype("<f4").tobytes()
    path.write_bytes(out + struct.pack("<i", 7) + struct.pack("<i", 4) + b"text")
    return path


def write_gguf(path: Path, values: Values, counts: Mapping[str, list[float]]) -> Path:
    import gguf

    writer = gguf.GGUFWriter(path, "")
    writer.add_type("imatrix")
    writer.add_uint32("imatrix.chunk_count", 1)
    for name, each in values.items():
        count = np.array(counts[name], np.float32)
        sums = each.reshape(len(count), -1) * count[:, None]
        writer.add_tensor(f"{name}.in_sum2", sums.astype(np.float32))
        writer.add_tensor(f"{name}.counts", count[:, None])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_dialects_read_backwards() -> None:
    assert names_of(MATRICES) == {
        "model.embed_tokens": Name("token_embd"),
        "model.layers.0.self_attn.q_proj": Name("blk.0.attn_q"),
        "model.layers.0.mlp.experts.0.down_proj": Name("blk.0.ffn_down_exps", 0),
        "model.layers.0.mlp.experts.1.down_proj": Name("blk.0.ffn_down_exps", 1),
        "model.layers.0.mlp.gate": Name("blk.0.ffn_gate_inp"),
        "lm_head": Name("output"),
    }


@pytest.mark.parametrize("form", ["dat", "gguf"])
def test_both_forms_are_read(form: str, tmp_path: Path) -> None:
    values = entries()
    if form == "dat":
        path = write_dat(tmp_path / "imatrix.dat", values)
    else:
        path = write_gguf(tmp_path / "imatrix.gguf", values, {Q: [5.0], DOWN: [4.0, 9.0]})
    weights = read(path, MATRICES)
    assert weights is not None and set(weights) == {
        path for path in PATHS if "q_proj" in path or "down_proj" in path
    }
    np.testing.assert_allclose(weights["model.layers.0.self_attn.q_proj"], values[Q], rtol=1e-6)
    for expert in (0, 1):
        ours = weights[f"model.layers.0.mlp.experts.{expert}.down_proj"]
        np.testing.assert_allclose(ours, values[DOWN].reshape(2, 16)[expert], rtol=1e-6)


def test_an_expert_that_saw_no_token_weighs_its_columns_alike(
    tmp_path: Path,
) -> None:
    path = write_gguf(tmp_path / "i.gguf", {DOWN: entries()[DOWN]}, {DOWN: [4.0, 0.0]})
    weights = read(path, MATRICES)
    assert weights is not None
    assert (weights["model.layers.0.mlp.experts.1.down_proj"] == 1).all()


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({Q: np.ones(48, np.float32)}, "48 values, the model's matrix 32 columns"),
        ({DOWN: np.ones(16, np.float32)}, "16 values"),
        ({"blk.0.elsewhere.weight": np.ones(32, np.float32)}, "no entry for any matrix"),
        ({Q: np.full(32, np.nan, np.float32)}, "not importances"),
        ({Q: np.full(32, -1, np.float32)}, "not importances"),
    ],
)
def test_a_file_of_another_model_is_refused(values: Values, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=complaint) as caught:
        read(write_dat(tmp_path / "i.dat", values), MATRICES)
    assert caught.value.remedy


def test_another_gguf_file_is_refused(tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_type("model")
    writer.add_tensor("output.weight", np.ones((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(OptionError, match="a GGUF file of a model"):
        read(tmp_path / "model.gguf", MATRICES)


@settings(max_examples=200, deadline=None)
@given(cut=st.integers(0, 400), at=st.integers(0, 400), byte=st.integers(0, 255))
def test_a_damaged_file_is_an_error_or_nothing(
    cut: int, at: int, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "i.dat"
    raw = bytearray(write_dat(path, entries()).read_bytes())
    raw[min(at, len(raw) - 1)] = byte
    path.write_bytes(raw[: len(raw) - min(cut, len(raw))])
    try:
        weights = read(path, MATRICES)
    except OptionError as error:
        assert error.cause and error.remedy
    else:
        assert weights is None or all(np.isfinite(each).all() for each in weights.values())


@settings(max_examples=100, deadline=None)
@given(raw=st.binary(max_size=200))
def test_any_other_file_is_none_of_its_own(
    raw: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("other") / "file"
    path.write_bytes(raw)
    try:
        assert read(path, MATRICES) is None
    except OptionError as error:
        assert error.remedy
