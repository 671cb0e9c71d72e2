"""The GGUF dialect of Gemma 4's image encoder. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.configs.encoder_files import SIZES, layer, looks, sizes, some
from inferno.contracts import EncoderDialect


def _gemma4(text: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Files do not say in which models the positions of an image attend to each other: those that
    have no inputs per layer, 26B-A4B and 31B. Fields that they lack have the family's defaults."""
    head_dim = fields["head_dim"]
    vision = {
        **sizes(fields),
        **some(fields, rms_norm_eps="eps", pooling_kernel_size="scale", standardize="standardized"),
        **some(fields, use_clipped_linears="clips", position_embedding_size="places"),
        "head_dim": head_dim,
        "num_key_value_heads": fields["key_rows"] // head_dim,
    }
    spans = None if text.get("hidden_size_per_layer_input") else "vision"
    return {
        "model_type": "gemma4",
        "text_config": {**text, "use_bidirectional_attention": spans},
        "vision_config": vision,
        **some(fields, image_token_id="image_token_id", boi_token_id="begin", eoi_token_id="end"),
    }


_TOWER = "vision_tower"
_PRODUCTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS = {
    "ln1": "input_layernorm",
    "attn_post_norm": "post_attention_layernorm",
    "ln2": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
GEMMA4_ENCODER = EncoderDialect(
    kind="gemma4v",
    texts=("gemma4",),
    fields=SIZES,
    assumed={"scale": 3},  # patches of a token's side
    present={"standardized": "v.std_bias", "clips": "v.blk.0.attn_q.input_max"},
    shapes={
        "head_dim": ("v.blk.0.attn_q_norm.weight", 0),
        "key_rows": ("v.blk.0.attn_k.weight", 0),
        "places": ("v.position_embd.weight", 1),
    },
    tokens={"image_token_id": "<|image|>", "begin": "<|image>", "end": "<image|>"},
    modules={
        "v.patch_embd": f"{_TOWER}.patch_embedder.input_proj",
        "v.position_embd.weight": f"{_TOWER}.patch_embedder.position_embedding_table",
        **layer(f"{_TOWER}.encoder.layers.{{n}}", {**_NORMS, **_PRODUCTS}),
        **layer(  # beside the limits of its inputs and outputs
            f"{_TOWER}.encoder.layers.{{n}}",
            {f"{stored}.weight": f"{ours}.linear.weight" for stored, ours in _PRODUCTS.items()},
        ),
        "v.std_bias": f"{_TOWER}.std_bias",
        "v.std_scale": f"{_TOWER}.std_scale",
        "mm.input_projection": "embed_vision.embedding_projection",
    },
    skipped=("a.", "mm.a."),
    scalars=frozenset({"input_min", "input_max", "output_min", "output_max"}),
    colours_last=frozenset({"v.patch_embd"}),
    config=_gemma4,
    processor=looks,
)
