"""The GGUF dialect of Llama 4's image encoder. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.configs.encoder_files import SIZES, layer, looks, sizes, some
from inferno.contracts import EncoderDialect
from inferno_llama4.vision_config import PATCH


def _llama4(text: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    adapter = ("projector_input_dim", "projector_output_dim", "vision_output_dim")
    return {
        "model_type": "llama4",
        "text_config": text,
        "vision_config": {
            **sizes(fields),
            **some(fields, **dict.fromkeys(adapter, "adapter")),
            "pixel_shuffle_ratio": 1 / fields["scale"],
        },
        **some(fields, image_token_id="image_token_id"),
        **some(fields, boi_token_index="begin", eoi_token_index="end"),
    }


_TOWER = "vision_model"
LLAMA4_ENCODER = EncoderDialect(
    kind="llama4",
    texts=("llama4",),
    fields=SIZES,
    shapes={"adapter": ("mm.model.mlp.1.weight", 0)},
    tokens={"image_token_id": PATCH, "begin": "<|image_start|>", "end": "<|image_end|>"},
    modules={
        "v.patch_embd": f"{_TOWER}.patch_embedding.linear",
        "v.class_embd": f"{_TOWER}.class_embedding",
        "v.position_embd.weight": f"{_TOWER}.positional_embedding_vlm",
        "v.pre_ln": f"{_TOWER}.layernorm_pre",
        "v.post_ln": f"{_TOWER}.layernorm_post",
        **layer(
            f"{_TOWER}.model.layers.{{n}}",
            {
                "ln1": "input_layernorm",
                "ln2": "post_attention_layernorm",
                "attn_post_norm": "post_attention_layernorm",  # since gguf-py knows Gemma 4
                "attn_q": "self_attn.q_proj",
                "attn_k": "self_attn.k_proj",
                "attn_v": "self_attn.v_proj",
                "attn_out": "self_attn.o_proj",
                "ffn_up": "mlp.fc1",
                "ffn_down": "mlp.fc2",
            },
        ),
        "mm.model.mlp.1": f"{_TOWER}.vision_adapter.mlp.fc1",
        "mm.model.mlp.2": f"{_TOWER}.vision_adapter.mlp.fc2",
        "mm.model.fc": "multi_modal_projector.linear_1",
    },
    config=_llama4,
    processor=looks,
)
