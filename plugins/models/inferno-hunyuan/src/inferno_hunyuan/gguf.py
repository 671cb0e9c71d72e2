"""The GGUF dialect of Hunyuan. Files have the stretched rotary base. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Dialect

HUNYUAN = Dialect(
    architecture="hunyuan-dense",
    constants={"model_type": "hunyuan_v1_dense"},
    present={"attention_bias": "blk.0.attn_q.bias"},
)
