"""Tensors of a checkpoint find the modules of a model, or what does not fit is named."""

from __future__ import annotations

import pytest
from torch import nn

from inferno.contracts import TensorInfo
from inferno.errors import CheckpointError
from inferno.weights.pairing import pair


def test_a_few_tensors_that_do_not_fit_are_named_and_the_others_counted() -> None:
    stray = {f"m{i}": {"weight": TensorInfo("float32", (2, 2), 16)} for i in range(6)}
    with pytest.raises(CheckpointError) as caught:
        pair(nn.Identity(), stray)
    assert "m3.weight is stored" in caught.value.cause and "m4" not in caught.value.cause
    assert caught.value.cause.endswith("; and 2 more")
    with pytest.raises(CheckpointError) as caught:
        pair(nn.Identity(), {name: stray[name] for name in ("m0", "m1", "m2", "m3")})
    assert caught.value.cause.endswith("m3.weight is stored, but the model has no such tensor")
