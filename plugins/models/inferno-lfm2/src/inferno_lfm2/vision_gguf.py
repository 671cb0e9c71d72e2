"""The GGUF dialect of LFM2-VL's image encoder. Imports no torch.

Files do not say how images are cut into tiles: as in all published checkpoints, by the defaults of
`Tiling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.configs.encoder_files import SIZES, looks, siglip, sizes, some
from inferno.contracts import EncoderDialect

_ALONE = 768
"""The hidden size of LFM2-VL-450M's encoder. Only this model sees tiles without the whole image.
LFM2.5-VL-450M has the same size, but no norm in its projector."""
_RESAMPLE = {"lanczos": 1, "bilinear": 2, "bicubic": 3}
"""As Pillow numbers them."""


def _lfm2_vl(text: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    # One tensor of a pair is enough to expect both, so that a file without the other is refused.
    norm = fields["norm_weight"] or fields["norm_bias"]
    return {
        "model_type": "lfm2_vl",
        "text_config": text,
        "vision_config": {
            **sizes(fields),
            **some(fields, layer_norm_eps="eps", num_patches="places"),
        },
        "downsample_factor": fields["scale"],
        **some(fields, projector_hidden_size="inner", image_token_id="image_token_id"),
        "projector_bias": fields["first_bias"] or fields["second_bias"],
        "projector_use_layernorm": norm,
        "use_thumbnail": not (norm and fields["hidden_size"] == _ALONE),
    }


def _processor(fields: Mapping[str, Any]) -> dict[str, Any]:
    resample = {"resample": _RESAMPLE[fields["resize"]]} if "resize" in fields else {}
    return {**looks(fields), **resample}


_PROJECTOR = "multi_modal_projector"
LFM2_ENCODER = EncoderDialect(
    kind="lfm2",
    texts=("lfm2",),
    fields={**SIZES, "resize": "clip.vision.image_resize_algo"},
    assumed={"scale": 2},  # patches along a token's side
    present={
        "norm_weight": "mm.input_norm.weight",
        "norm_bias": "mm.input_norm.bias",
        "first_bias": "mm.1.bias",
        "second_bias": "mm.2.bias",
    },
    # The files' image size does not tell how many position embeddings there are.
    shapes={"places": ("v.position_embd.weight", 0), "inner": ("mm.1.weight", 0)},
    tokens={"image_token_id": "<image>"},
    modules={
        **siglip("vision_tower"),
        "mm.input_norm": f"{_PROJECTOR}.layer_norm",
        "mm.1": f"{_PROJECTOR}.linear_1",
        "mm.2": f"{_PROJECTOR}.linear_2",
    },
    colours_last=frozenset({"v.patch_embd"}),
    config=_lfm2_vl,
    processor=_processor,
)
