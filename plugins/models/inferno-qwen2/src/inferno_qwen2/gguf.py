"""The GGUF dialects of Qwen2, which are the defaults, and of Qwen2.5-VL's encoder. Imports no
torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from inferno.configs import ENCODER
from inferno.configs.encoder_files import (
    PATCHES,
    SECTIONS,
    SIZES,
    layer,
    looks,
    some,
)
from inferno.contracts import Dialect, EncoderDialect, EncoderJoin

_PLAIN = Dialect(architecture="qwen2", constants={"model_type": "qwen2"})
QWEN2 = attrs.evolve(
    _PLAIN,
    # The text model of Qwen2-VL and Qwen2.5-VL.
    variants=(attrs.evolve(_PLAIN, architecture="qwen2vl", **SECTIONS),),
)


def _qwen(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Halve the MLP's width: files have that of gate and up together, as the first Qwen's
    `config.json` does."""
    return {**fields, "intermediate_size": fields["intermediate_size"] // 2}


QWEN = attrs.evolve(
    _PLAIN,
    architecture="qwen",
    modules=dict.fromkeys(f"blk.{{n}}.attn_{qkv}" for qkv in "qkv"),  # one matrix, which is split
    config=_qwen,
    inverse=lambda config: {"intermediate_size": 2 * config["intermediate_size"]},
)


def _qwen2_5_vl(text: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Files say how many layers have windows before each that has none."""
    period, depth = fields.get("period"), fields["layers"]
    vision = {
        **some(fields, hidden_size="hidden_size", intermediate_size="intermediate_size"),
        **some(fields, patch_size="patch_size", window_size="window_size"),
        **some(fields, spatial_merge_size="merge", out_hidden_size="width"),
        "depth": depth,
        "num_heads": fields["heads"],
        "fullatt_block_indexes": [n for n in range(depth) if (n + 1) % period == 0]
        if period
        else list(range(depth)),
    }
    whole = {"model_type": "qwen2_5_vl", "text_config": text, "vision_config": vision}
    return {**whole, **some(fields, image_token_id="image_token_id")}


_QKV = {
    f"{ENCODER}.blocks.{{n}}.attn.qkv.{part}": EncoderJoin(
        parts=tuple(f"v.blk.{{n}}.attn_{name}.{part}" for name in "qkv")
    )
    for part in ("weight", "bias")
}
QWEN2_5_VL = EncoderDialect(
    kind="qwen2.5vl_merger",
    texts=("qwen2vl",),
    fields={
        **SIZES,
        "period": "clip.vision.n_wa_pattern",
        "window_size": "clip.vision.window_size",
    },
    assumed={"merge": 2, "window_size": 112},
    tokens={"image_token_id": "<|image_pad|>"},
    joins={f"{ENCODER}.patch_embed.proj.weight": PATCHES, **_QKV},
    modules={
        **layer(
            f"{ENCODER}.blocks.{{n}}",
            {
                "ln1": "norm1",
                "ln2": "norm2",
                "attn_qkv": "attn.qkv",
                "attn_out": "attn.proj",
                "ffn_gate": "mlp.gate_proj",
                "ffn_up": "mlp.up_proj",
                "ffn_down": "mlp.down_proj",
            },
        ),
        "v.post_ln": f"{ENCODER}.merger.ln_q",
        "mm.0": f"{ENCODER}.merger.mlp.0",
        "mm.2": f"{ENCODER}.merger.mlp.2",
    },
    config=_qwen2_5_vl,
    processor=looks,
)
