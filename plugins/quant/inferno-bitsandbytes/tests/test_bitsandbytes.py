"""Values are those that bitsandbytes reads; models give the tokens of their dense twins.

Suffixes: O rows, I columns, N blocks of consecutive values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes_format import TABLES, VECTORS, config, encode, parts_of, values
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inferno.contracts import LINEAR, Device, KernelNeed, QuantScheme, TextAssets, lazy
from inferno.errors import CheckpointError
from inferno.testing import (
    TOY_MOE_SIZES,
    TOY_SIZES,
    Encoded,
    QuantSchemeTests,
    assert_kernels,
    assert_refused,
    assert_same_tokens,
    change_quant_config,
    load_catalog,
    stored_matrix,
    torch_only,
    write_twins,
)
from inferno_bitsandbytes import holds, inferno_quant_schemes, refuses
from inferno_bitsandbytes.checkpoint import adapt
from inferno_bitsandbytes.weight import load

NAMES = sorted({name.partition(".")[0] for name in VECTORS})
LLAMA = {**TOY_SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
QWEN3_MOE = {
    **TOY_MOE_SIZES,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
}


class BitsandbytesTests(QuantSchemeTests):
    kind = "nf4"
    block = 64
    nested = False

    def parts(self, rows: int, columns: int, seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        weight_OI = torch.randn(rows, columns, generator=generator)
        stored, _ = encode(weight_OI, self.kind, self.block, nested=self.nested)
        return parts_of(stored, (rows, columns))

    def dense(self, parts: Mapping[str, Tensor]) -> Tensor:
        return values(parts)


class TestNf4(BitsandbytesTests):
    scheme = "bitsandbytes"
    quant_config = config("nf4")


class TestNestedNf4(BitsandbytesTests):
    scheme = "bitsandbytes"
    quant_config = config("nf4", nested=True)
    nested = True


class TestFp4(BitsandbytesTests):
    scheme = "bitsandbytes"
    quant_config = config("fp4")
    kind, block = "fp4", 128


class TestBlocksAcrossRows(BitsandbytesTests):
    scheme = "bitsandbytes"
    quant_config = config("nf4")
    shapes = ((64, 96), (7, 80), (3, 6))
    block = 128


class TestInt8(BitsandbytesTests):
    scheme = "bitsandbytes"
    quant_config = config("int8")
    kind = "int8"


class Tensors:
    """A checkpoint of tensors in memory."""

    config: Mapping[str, Any] = {}

    def __init__(self, stored: Mapping[str, Tensor]) -> None:
        self.stored = stored
        self.tensors = stored_matrix(stored, {}).parts

    def read(self, name: str) -> Tensor:
        return self.stored[name]

    def text(self) -> TextAssets:
        return TextAssets()

    def close(self) -> None:
        pass


def module(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parts of a module, as the scheme's `adapt` shows them."""
    checkpoint = adapt(Tensors({f"proj.{name}": tensor for name, tensor in stored.items()}))
    parts = {name: checkpoint.read(name) for name in checkpoint.tensors}
    assert stored_matrix(parts, {}).parts == checkpoint.tensors
    return {name.removeprefix("proj."): tensor for name, tensor in parts.items()}


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_that_bitsandbytes_reads(name: str) -> None:
    stored = {n.partition(".")[2]: t for n, t in VECTORS.items() if n.partition(".")[0] == name}
    wanted = stored.pop("values")
    parts = module(stored)
    matrix = stored_matrix(parts, config(name.partition("_")[0]))
    assert refuses(matrix) is None
    weight = load(matrix, parts, dtype="float32")
    last_rows = weight.rows(torch.arange(weight.shape[0]))[-4:]
    if name == "int8":  # the scale is rounded to float16, the codes are not
        assert (last_rows / wanted - 1).nan_to_num(0).abs().max() <= 2**-11
    else:
        assert torch.equal(last_rows, wanted)


def llm_int8(x_TI: Tensor, codes_OI: Tensor, scb_O: Tensor, threshold: float = 6.0) -> Tensor:
    """The products as bitsandbytes defines them: columns of x with an outlier in floats, the others
    rounded to int8 row by row (arXiv:2208.07339)."""
    outlier_I = (x_TI.abs() >= threshold).any(0)
    scale_T1 = x_TI[:, ~outlier_I].abs().amax(1, keepdim=True) / 127
    rounded_TI = (x_TI[:, ~outlier_I] / scale_T1).round() * scale_T1
    weight_OI = codes_OI.double() * scb_O.double()[:, None] / 127
    floats_TO = x_TI[:, outlier_I] @ weight_OI[:, outlier_I].T
    y_TO: Tensor = rounded_TI @ weight_OI[:, ~outlier_I].T + floats_TO
    return y_TO


@pytest.mark.parametrize(("outliers", "most"), [(0, 0.01), (3, 0.03)])
def test_int8_products_beside_bitsandbytes_own(outliers: int, most: float) -> None:
    """torch's are nearer to those of the values. A kernel that rounds activations loses, in the
    groups of an outlier, what the definition's split keeps: within a bound."""
    random = torch.Generator().manual_seed(outliers)
    codes_OI = torch.randint(-127, 128, (64, 256), generator=random, dtype=torch.int8)
    parts = {"weight": codes_OI, "SCB": torch.rand(64, generator=random) + 0.5}
    x_TI = torch.randn(16, 256, generator=random)
    x_TI[:, torch.randperm(256, generator=random)[:outliers]] *= 20
    x_TI = x_TI.bfloat16()
    exact_TO = x_TI.double() @ values(parts).double().T
    error = (llm_int8(x_TI.double(), codes_OI, parts["SCB"]) - exact_TO).norm()
    weight = load(stored_matrix(parts, config("int8")), parts, dtype="bfloat16")
    rounding = 2**-8 * exact_TO.norm()  # of results in bfloat16
    assert (weight.matmul(x_TI) - exact_TO).norm() < error + rounding
    need = KernelNeed(op=LINEAR, dtype="bfloat16", device=Device("cpu"), layout=weight.layout)
    offer, _ = load_catalog().kernel(need)
    if offer is not None:
        kernel: Any = lazy.resolved(offer.item.ops[LINEAR])
        assert (kernel(weight).matmul(x_TI) - exact_TO).norm() < most * exact_TO.norm() + rounding


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["nf4", "fp4"]),
    block=st.sampled_from([32, 64, 128, 256, 4096]),
    nested=st.booleans(),
    rows=st.integers(1, 9),
    columns=st.sampled_from([2, 6, 32, 64, 96, 128, 320, 512]),
    storage=st.sampled_from([torch.uint8, torch.int8, torch.bfloat16, torch.float32]),
    seed=st.integers(0, 1000),
)
def test_unpacking_is_bit_exact(
    kind: str,
    block: int,
    nested: bool,
    rows: int,
    columns: int,
    storage: torch.dtype,
    seed: int,
) -> None:
    weight_OI = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    stored, wanted = encode(weight_OI, kind, block, nested=nested)
    if stored["weight"].numel() % storage.itemsize == 0:
        stored["weight"] = stored["weight"].flatten().view(storage)[:, None]
    parts = module(stored)
    matrix = stored_matrix(parts, config(kind, nested=nested))
    assert refuses(matrix) is None
    weight, planned = load(matrix, parts, dtype="float32"), holds(matrix, "float32")
    assert torch.equal(weight.rows(torch.arange(rows)), wanted)
    assert (planned.layout, planned.shape) == (weight.layout, (rows, columns))


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("nf4", {"bnb_4bit_quant_type": "fp4"}, "nf4 is stored"),
        ("nf4", {"load_in_8bit": True}, "load_in_8bit"),
        ("int8", {"load_in_4bit": True}, "load_in_4bit"),
        ("nf4", {"quant_method": "gptq"}, "quant_method"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_named(
    kind: str, change: Mapping[str, Any], said: str
) -> None:
    stored, _ = encode(torch.randn(8, 64), kind)
    matrix = stored_matrix(parts_of(stored, (8, 64)), {**config(kind), **change})
    assert said in str(refuses(matrix))


STATE = "weight.quant_state.bitsandbytes__nf4"


def with_state(changes: Mapping[str, Any]) -> dict[str, Tensor]:
    stored, _ = encode(torch.randn(8, 64), "nf4", nested=True)
    state = json.loads(bytes(stored[STATE].numpy()))
    text = json.dumps({**state, **changes}).encode()
    return {**stored, STATE: torch.tensor(list(text), dtype=torch.uint8)}


@settings(max_examples=150, deadline=None)
@given(
    changes=st.dictionaries(
        st.sampled_from(["shape", "blocksize", "nested_blocksize", "nested_offset", "quant_type"]),
        st.none()
        | st.booleans()
        | st.integers(-300, 300)
        | st.floats()
        | st.sampled_from(["64", [8, 64], [64, 8], [512], [1, 8, 64], [True, 512], {}]),
        min_size=1,
    )
)
def test_a_description_that_contradicts_the_tensors_is_named(changes: Mapping[str, Any]) -> None:
    try:
        parts = module(with_state(changes))
        matrix = stored_matrix(parts, config())
        assert refuses(matrix) is None
        weight = load(matrix, parts, dtype="float32")
    except CheckpointError as error:
        assert error.cause and error.remedy
        return
    assert weight.rows(torch.arange(weight.shape[0])).isfinite().all()


@pytest.mark.parametrize("text", [b"", b"[", b"[]", b"\xff", b"[" * 4000, b"{}" + b" " * 5000])
def test_a_description_that_cannot_be_read_is_named(text: bytes) -> None:
    stored = with_state({}) | {STATE: torch.tensor(list(text), dtype=torch.uint8)}
    with pytest.raises(CheckpointError, match="quant_state"):
        module(stored)


def test_other_values_than_the_types_are_refused() -> None:
    stored, _ = encode(torch.randn(8, 64), "nf4")
    parts = parts_of(stored | {"weight.quant_map": TABLES["fp4"]}, (8, 64))
    with pytest.raises(CheckpointError, match="quant_map"):
        load(stored_matrix(parts, config()), parts, dtype="float32")
    stored, _ = encode(torch.randn(8, 64), "int8")
    parts = parts_of(stored | {"weight_format": torch.tensor(2, dtype=torch.uint8)}, (8, 64))
    with pytest.raises(CheckpointError, match="weight_format"):
        load(stored_matrix(parts, config("int8")), parts, dtype="float32")


def test_a_checkpoint_without_such_matrices_stays_as_it_is() -> None:
    checkpoint = Tensors(encode(torch.randn(8, 64), "int8")[0])
    assert adapt(checkpoint) is checkpoint


def toy_checkpoints(
    folder: Path, model_config: Mapping[str, Any], kind: str, *, nested: bool
) -> tuple[Path, Path]:
    """Write a random model with all matrices but embedding, head and router quantized, and its
    twin with their values."""

    def stored(name: str, number: int, tensor: Tensor) -> Encoded:
        quantized = name.endswith("proj.weight")
        return encode(tensor, kind, nested=nested) if quantized else None

    return write_twins(folder, model_config, config(kind, nested=nested), stored)


@pytest.mark.parametrize("model_config", [LLAMA, QWEN3_MOE], ids=["llama", "qwen3-moe"])
@pytest.mark.parametrize(
    ("kind", "nested"),
    [
        pytest.param("nf4", False, marks=pytest.mark.slow),
        ("nf4", True),
        pytest.param("fp4", False, marks=pytest.mark.slow),
        ("int8", False),
    ],
)
def test_a_checkpoint_gives_the_tokens_of_its_dense_twin(
    model_config: dict[str, Any], kind: str, nested: bool, tmp_path: Path
) -> None:
    pytest.importorskip(f"inferno_{model_config['model_type']}")
    twins = toy_checkpoints(tmp_path, model_config, kind, nested=nested)
    assert_same_tokens(twins, torch_only(), updates=False)


@pytest.mark.parametrize(
    ("kind", "layout"), [("nf4", "nf4_g64"), ("fp4", "fp4_g64"), ("int8", "int8_sym_g64")]
)
def test_kernels_compute_it(kind: str, layout: str, tmp_path: Path) -> None:
    pytest.importorskip("inferno_llama")
    assert_kernels(toy_checkpoints(tmp_path, LLAMA, kind, nested=False), layout)


def test_a_contradiction_is_an_error_of_the_plan(tmp_path: Path) -> None:
    pytest.importorskip("inferno_llama")
    packed, _ = toy_checkpoints(tmp_path, LLAMA, "nf4", nested=False)
    change_quant_config(packed, lambda config: config.update(bnb_4bit_quant_type="fp4"))
    assert_refused(packed, "nf4 is stored")


def test_the_scheme_is_declared_under_the_name_of_its_method() -> None:
    (scheme,) = inferno_quant_schemes()
    assert isinstance(scheme, QuantScheme) and scheme.name == config()["quant_method"]
