"""Hunyuan for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture, Spelling, spelled
from inferno_hunyuan.gguf import HUNYUAN, HUNYUAN_MOE

DENSE = Architecture(
    name="HunYuanDenseV1ForCausalLM",
    model_types=("hunyuan_v1_dense",),
    config="inferno_hunyuan.config:HunyuanConfig.from_json",
    build="inferno_hunyuan.model:HunYuanDenseV1ForCausalLM",
    adapt="inferno_hunyuan.checkpoint:usual_names",
    divides=DECODER,
    dialects={"gguf": HUNYUAN},
    checkpoints=(
        "tencent/Hunyuan-0.5B-Instruct",
        "tencent/Hunyuan-1.8B-Instruct",
        "tencent/Hunyuan-4B-Instruct",
        "tencent/Hunyuan-7B-Instruct",
    ),
)
MOE = Architecture(
    name="HunYuanMoEV1ForCausalLM",
    model_types=("hunyuan_v1_moe",),
    config="inferno_hunyuan.config:HunyuanMoeConfig.from_json",
    build="inferno_hunyuan.model:HunYuanMoEV1ForCausalLM",
    adapt="inferno_hunyuan.checkpoint:usual_names",
    divides=DECODER,
    dialects={"gguf": HUNYUAN_MOE},
    checkpoints=("tencent/Hunyuan-A13B-Instruct", "tencent/Hunyuan-A13B-Pretrain"),
)
OCR = Spelling(
    name="HunYuanVLTextModel",
    model_types=("hunyuan_vl_text",),
    fields={"attention_head_dim": "head_dim"},
    config="inferno_hunyuan.config:of_text_part",
    checkpoints=("tencent/HunyuanOCR",),
)
"""The text part of HunyuanOCR."""


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [DENSE, MOE, spelled(DENSE, OCR)]
