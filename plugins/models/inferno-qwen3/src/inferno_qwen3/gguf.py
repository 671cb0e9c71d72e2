"""The GGUF dialects of Qwen3, and of Qwen3-VL's encoder. Imports no torch."""

from __future__ import annotations

import attrs

from inferno.configs.encoder_files import SECTIONS, deep_encoder
from inferno.contracts import Dialect

_PLAIN = Dialect(
    architecture="qwen3",
    constants={"model_type": "qwen3"},
    present={"attention_bias": "blk.0.attn_q.bias"},
)
QWEN3 = attrs.evolve(
    _PLAIN,
    # The text model of Qwen3-VL.
    variants=(attrs.evolve(_PLAIN, architecture="qwen3vl", **SECTIONS),),
)
QWEN3_VL = deep_encoder("qwen3vl_merger", ("qwen3vl",), "qwen3_vl")
