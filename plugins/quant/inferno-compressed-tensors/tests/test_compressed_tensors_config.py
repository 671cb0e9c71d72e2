"""What a config says of compressed-tensors is read, or refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_toys import FORMATS, LLAMA, config, encode, toy_checkpoints
from hypothesis import given, settings
from hypothesis import strategies as st

from inferno.contracts import TensorInfo
from inferno.errors import UnsupportedError
from inferno.testing import assert_refused, change_quant_config, convert, plan_of, stored_matrix
from inferno_compressed_tensors import holds, refuses


def test_the_first_target_that_names_a_module_counts() -> None:
    weights = FORMATS["int4-group"]
    groups = {
        "of all": {"targets": ["Linear"], "weights": {**weights, "num_bits": 8}},
        "of some": {
            "targets": ["re:.*down_proj", "model.layers.0.mlp.up_proj"],
            "weights": weights,
        },
        "of none": {"targets": ["re:.*o_proj"], "weights": None},
    }
    named = {**config("int4-group"), "config_groups": groups}
    parts, _ = encode(torch.randn(32, 64), "int4-group")
    reasons = {
        name: refuses(stored_matrix(parts, named, f"model.layers.0.{name}"))
        for name in ("mlp.up_proj", "mlp.down_proj", "mlp.gate_proj", "self_attn.o_proj")
    }
    assert reasons["mlp.up_proj"] is None and reasons["mlp.down_proj"] is None
    assert "weight_scale" in str(reasons["mlp.gate_proj"]), "read with 8 bits"
    assert "not quantized" in str(reasons["self_attn.o_proj"])


@pytest.mark.parametrize(
    ("target", "said"), [("re:(([a-z0-9._])+)+!", "for ever"), ("re:(", "not a pattern")]
)
def test_targets_that_could_hang_or_are_malformed_are_refused(target: str, said: str) -> None:
    groups = {"of some": {"targets": [target], "weights": FORMATS["int4-group"]}}
    parts, _ = encode(torch.randn(32, 64), "int4-group")
    named = {**config("int4-group"), "config_groups": groups}
    reason = refuses(stored_matrix(parts, named, "model.layers.0.mlp.experts.0.up_proj"))
    assert reason is not None and repr(target) in reason and said in reason


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_bits": 3}, "4 packed bits"),
        ({"num_bits": None}, "4 packed bits"),
        ({"group_size": 64}, "groups of 64"),
        ({"group_size": "all"}, "group_size"),
        ({"symmetric": False}, "zero points"),
        ({"symmetric": "no"}, "symmetric"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_named(
    change: Mapping[str, Any], said: str
) -> None:
    parts, _ = encode(torch.randn(32, 64), "int4-group")
    changed = config("int4-group")
    changed["config_groups"]["group_0"]["weights"] |= change
    assert said in str(refuses(stored_matrix(parts, changed)))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-300, 300) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(
    changes=st.dictionaries(st.sampled_from([*config("int4-group")]), _JSON, max_size=2),
    weights=st.dictionaries(
        st.sampled_from(["num_bits", "strategy", "group_size", "symmetric", "block_structure"]),
        _JSON,
        max_size=3,
    ),
    target=_JSON,
    shapes=st.dictionaries(
        st.sampled_from(["weight_packed", "weight_scale", "weight", "weight_zero_point"]),
        st.lists(st.integers(0, 300), max_size=3).map(tuple),
        max_size=2,
    ),
    kind=st.sampled_from([*FORMATS]),
)
def test_any_config_and_headers_are_read_or_refused_with_a_sentence(
    changes: Mapping[str, Any],
    weights: Mapping[str, Any],
    target: Any,
    shapes: Mapping[str, tuple[int, ...]],
    kind: str,
) -> None:
    parts, _ = encode(torch.ones(32, 64), kind)
    changed = config(kind)
    changed["config_groups"]["group_0"]["weights"] |= weights
    changed["config_groups"]["first"] = {"targets": [target, "Linear"], "weights": weights}
    stored = stored_matrix(parts, {**changed, **changes})
    for part, shape in shapes.items():
        if part in stored.parts:
            stored.parts[part] = TensorInfo(stored.parts[part].dtype, shape, 0)  # type: ignore[index]
    reason = refuses(stored)
    if reason is None:
        assert holds(stored, "float32").nbytes > 0
        return
    assert len(reason.split()) > 3


def test_rotations_at_run_time_are_refused_by_name_in_a_plan_and_in_a_conversion(
    tmp_path: Path,
) -> None:
    path, _ = toy_checkpoints(tmp_path, LLAMA, "int4-group")
    apply = [{"targets": ["Linear"], "location": "input", "inverse": False, "ignore": []}]
    transforms = {"config_groups": {"R4": {"type": "hadamard", "apply": apply}}}
    change_quant_config(path, lambda found: found.update(transform_config=transforms))
    for read in (plan_of, lambda ref: convert(ref, "safetensors", tmp_path / "dense")):
        with pytest.raises(UnsupportedError, match="transform_config: rotations at run time"):
            read(str(path))
    change_quant_config(
        path, lambda found: found.update(transform_config={})
    )  # as llm-compressor writes without any
    assert plan_of(str(path)).schemes


def test_a_format_that_is_not_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    pytest.importorskip("inferno_llama")
    packed_path, _ = toy_checkpoints(tmp_path, LLAMA, "int4-group")
    change_quant_config(
        packed_path, lambda config: config["config_groups"]["group_0"]["weights"].update(num_bits=2)
    )
    assert_refused(packed_path, "4 packed bits")
