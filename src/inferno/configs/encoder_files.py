"""What encoders that GGUF files store apart have in common, whatever their family: parts of an
`EncoderDialect`. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.configs.vision import ENCODER
from inferno.contracts import EncoderDialect, EncoderJoin

_PREFIX = "clip.vision"
SIZES: Mapping[str, str] = {
    "layers": f"{_PREFIX}.block_count",
    "hidden_size": f"{_PREFIX}.embedding_length",
    "intermediate_size": f"{_PREFIX}.feed_forward_length",
    "heads": f"{_PREFIX}.attention.head_count",
    "image_size": f"{_PREFIX}.image_size",
    "patch_size": f"{_PREFIX}.patch_size",
    "merge": f"{_PREFIX}.spatial_merge_size",
    "scale": f"{_PREFIX}.projector.scale_factor",
    "eps": f"{_PREFIX}.attention.layer_norm_epsilon",
    "width": f"{_PREFIX}.projection_dim",
    "image_mean": f"{_PREFIX}.image_mean",
    "image_std": f"{_PREFIX}.image_std",
    "min_pixels": f"{_PREFIX}.image_min_pixels",
    "max_pixels": f"{_PREFIX}.image_max_pixels",
}
"""An `EncoderDialect.fields`. `width` is that of the text model's embeddings."""
HEADS = SIZES["heads"]
PATCHES = EncoderJoin(parts=("v.patch_embd.weight", "v.patch_embd.weight.1"), axis=2)
"""A convolution of two frames, which files store as one of each."""


def layer(path: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return a layer's part of `EncoderDialect.modules`: `names` has what files call its modules,
    and their paths in the layer of the original checkpoint at `path`, which has `{n}`."""
    return {f"v.blk.{{n}}.{stored}": f"{path}.{ours}" for stored, ours in names.items()}


def siglip(tower: str) -> dict[str, str]:
    """Return the part of `EncoderDialect.modules` of SigLIP's encoder, which is at the path `tower`
    of the original checkpoint."""
    parts = {
        "ln1": "layer_norm1",
        "ln2": "layer_norm2",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_out": "self_attn.out_proj",
        "ffn_up": "mlp.fc1",
        "ffn_down": "mlp.fc2",
    }
    return {
        "v.patch_embd": f"{tower}.embeddings.patch_embedding",
        "v.position_embd": f"{tower}.embeddings.position_embedding",
        **layer(f"{tower}.encoder.layers.{{n}}", parts),
        "v.post_ln": f"{tower}.post_layernorm",
    }


def looks(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what files have of `preprocessor_config.json`: an `EncoderDialect.processor`."""
    names = ("image_mean", "image_std", "min_pixels", "max_pixels")
    return {name: fields[name] for name in names if name in fields}


def some(fields: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """Return fields under other names: those that there are."""
    return {ours: fields[name] for ours, name in names.items() if name in fields}


def sizes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of an encoder under the names that most of them have in `vision_config`."""
    same = ("hidden_size", "intermediate_size", "image_size", "patch_size")
    numbers = some(fields, num_hidden_layers="layers", num_attention_heads="heads")
    return {**some(fields, **{name: name for name in same}), **numbers}


def with_sections(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a text model's config with `mrope_section`, the pairs that turn by each dimension,
    among the rotary parameters. A `Dialect.config`: files have four dimensions."""
    config = dict(fields)
    sections = config.pop("mrope_section", None)
    if isinstance(sections, list):
        rope = {"rope_type": "default", **config.get("rope_scaling", {})}
        config["rope_scaling"] = {**rope, "mrope_section": sections[:3]}
    return config


def has_sections(config: Mapping[str, Any]) -> bool:
    """Return whether a text model's positions have three dimensions: a `Dialect.writes`."""
    return bool(sections_of(config)["mrope_section"])


def sections_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `mrope_section` as files have it: the `Dialect.inverse` of `with_sections`."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    sections = rope.get("mrope_section")
    return {"mrope_section": [*sections, 0] if sections else None}


SECTIONS: Mapping[str, Any] = {
    "fields": {"mrope_section": "rope.dimension_sections"},
    "config": with_sections,
    "inverse": sections_of,
    "writes": has_sections,
}
"""What the `Dialect` of a text model has whose positions have three dimensions, if images are among
them; alone, the three are one."""


def deep_encoder(kind: str, texts: tuple[str, ...], model_type: str) -> EncoderDialect:
    """Return the dialect of files with a `DeepVisionConfig`'s encoder; `model_type` is the whole
    model's."""

    def config(text: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
        vision = {
            **some(fields, hidden_size="hidden_size", intermediate_size="intermediate_size"),
            **some(fields, patch_size="patch_size", spatial_merge_size="merge"),
            **some(fields, out_hidden_size="width", depth="layers", num_heads="heads"),
            # The size of an image with a patch for each position embedding.
            "num_position_embeddings": (fields["image_size"] // fields["patch_size"]) ** 2,
            "deepstack_visual_indexes": [n for n, deep in enumerate(fields["deep"]) if deep],
        }
        whole = {"model_type": model_type, "text_config": text, "vision_config": vision}
        return {**whole, **some(fields, image_token_id="image_token_id")}

    products = {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}
    return EncoderDialect(
        kind=kind,
        texts=texts,
        fields={**SIZES, "deep": f"{_PREFIX}.is_deepstack_layers"},
        tokens={"image_token_id": "<|image_pad|>"},
        joins={f"{ENCODER}.patch_embed.proj.weight": PATCHES},
        modules={
            "v.patch_embd": f"{ENCODER}.patch_embed.proj",
            "v.position_embd": f"{ENCODER}.pos_embed",
            **layer(
                f"{ENCODER}.blocks.{{n}}",
                {
                    "ln1": "norm1",
                    "ln2": "norm2",
                    "attn_qkv": "attn.qkv",
                    "attn_out": "attn.proj",
                    "ffn_up": "mlp.linear_fc1",
                    "ffn_down": "mlp.linear_fc2",
                },
            ),
            "v.post_ln": f"{ENCODER}.merger.norm",
            "mm.0": f"{ENCODER}.merger.linear_fc1",
            "mm.2": f"{ENCODER}.merger.linear_fc2",
            **{
                f"v.deepstack.{{n}}.{theirs}": f"{ENCODER}.deepstack_merger_list.{{k}}.{ours}"
                for theirs, ours in products.items()
            },
        },
        config=config,
        processor=looks,
    )
