"""The GGUF dialect of Pixtral's encoder, as Mistral Small 3.1 and Ministral 3 have it. Imports no
torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.configs.encoder_files import HEADS, SIZES, layer, looks, sizes, some
from inferno.contracts import EncoderDialect


def _mistral3(text: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a file without `merge` projects is one patch: Pixtral 12B, which is another model."""
    kind = "ministral3" if text.get("model_type") == "ministral3" else "mistral"  # or llama
    return {
        "model_type": "mistral3",
        "text_config": {**text, "model_type": kind},
        "vision_config": {
            **sizes(fields),
            **some(fields, rope_theta="rope_theta"),
            "hidden_act": "silu" if fields.get("silu") else "gelu",
        },
        "spatial_merge_size": fields["merge"],
        **some(fields, multimodal_projector_bias="biased", image_token_id="image_token_id"),
    }


def _processor(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {**looks(fields), "size": {"longest_edge": fields["image_size"]}}


_TOWER, _PROJECTOR = "vision_tower", "multi_modal_projector"
PIXTRAL = EncoderDialect(
    kind="pixtral",
    # Mistral Small 3.1's text model is a Llama in most files.
    texts=("mistral3", "llama"),
    fields={**SIZES, "silu": "clip.use_silu", "rope_theta": "clip.rope.freq_base"},
    present={"biased": "mm.1.bias"},
    tokens={"image_token_id": "[IMG]"},
    modules={
        "v.patch_embd": f"{_TOWER}.patch_conv",
        "v.pre_ln": f"{_TOWER}.ln_pre",
        **layer(
            f"{_TOWER}.transformer.layers.{{n}}",
            {
                "ln1": "attention_norm",
                "ln2": "ffn_norm",
                "attn_q": "attention.q_proj",
                "attn_k": "attention.k_proj",
                "attn_v": "attention.v_proj",
                "attn_out": "attention.o_proj",
                "ffn_gate": "feed_forward.gate_proj",
                "ffn_up": "feed_forward.up_proj",
                "ffn_down": "feed_forward.down_proj",
            },
        ),
        "mm.input_norm": f"{_PROJECTOR}.norm",
        "mm.patch_merger": f"{_PROJECTOR}.patch_merger.merging_layer",
        "mm.1": f"{_PROJECTOR}.linear_1",
        "mm.2": f"{_PROJECTOR}.linear_2",
        "v.token_embd.img_break": None,  # a row of the text model's embedding
    },
    rotary_pairs=frozenset({"v.blk.{n}.attn_q", "v.blk.{n}.attn_k"}),
    heads=HEADS,
    config=_mistral3,
    processor=_processor,
)
