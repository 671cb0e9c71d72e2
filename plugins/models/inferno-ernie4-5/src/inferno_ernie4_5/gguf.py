"""The GGUF dialect of ERNIE 4.5. Its checkpoints rotate adjacent elements, as llama.cpp does, whose
converter therefore leaves rows in their order. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import Dialect


def _ernie4_5(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Files without a width of heads mean hidden size / heads, not the default of `config.json`."""
    return {"head_dim": None, **fields}


ERNIE = Dialect(
    architecture="ernie4_5",
    constants={"model_type": "ernie4_5"},
    present={"use_bias": "blk.0.attn_q.bias"},
    config=_ernie4_5,
)
