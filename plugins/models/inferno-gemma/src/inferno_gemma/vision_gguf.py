"""The GGUF dialect of Gemma 3's image encoder. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.configs.encoder_files import SIZES, looks, siglip, sizes, some
from inferno.contracts import EncoderDialect
from inferno_gemma.vision_config import PLACE

_SPARE = "<unused98>"


def _gemma3(text: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    side = fields["image_size"] // fields["patch_size"] // fields["scale"]
    whole: dict[str, Any] = {
        "model_type": "gemma3",
        "text_config": text,
        "vision_config": {**sizes(fields), **some(fields, layer_norm_eps="eps")},
        "mm_tokens_per_image": side**2,
    }
    if "image_token_id" in fields or "spare" not in fields:
        return {**whole, **some(fields, image_token_id="image_token_id")}
    # Many files have only the rows of SentencePiece's vocabulary, and not the one of an image's
    # places, which no embedding is read of: another unused token stands there.
    return {**whole, "image_token_id": fields["spare"], "image_place": _SPARE}


_PROJECTOR = "multi_modal_projector"
GEMMA3_ENCODER = EncoderDialect(
    kind="gemma3",
    texts=("gemma3",),
    fields=SIZES,
    assumed={"scale": 4},  # patches of a token's side
    tokens={"image_token_id": PLACE, "spare": _SPARE},
    modules={
        **siglip("vision_tower"),
        "mm.input_projection.weight": f"{_PROJECTOR}.mm_input_projection_weight",
        "mm.soft_emb_norm": f"{_PROJECTOR}.mm_soft_emb_norm",
    },
    added={"mm.soft_emb_norm": 1.0},
    config=_gemma3,
    processor=looks,
)
